"""Signatures: what a known failure looks like, as data (``signatures.yaml``), and what it means and asks for.

A signature is a layer, clauses that must hold, clauses that must not, and words for a person. Sites add their own in
files of the same form. This module reads and checks such files; ``match`` looks for clauses in evidence, and ``engine``
decides what is a cause. The families of Xid errors are made here from the catalogue in ``api.xids``, which the metrics
exporter shares. Source of the rows: contracts/admin-workflow.md 12, contracts/driver-lifecycle.md 6.11.
"""

import functools
import importlib.resources
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from ..api import goyaml
from ..api.xids import XIDS
from ..api.xids import Action as XidAction
from .evidence import Kind
from .findings import Action, Layer, Severity

TEXTS: Final = (Kind.LOG, Kind.EVENT, Kind.KERNEL, Kind.NODE, Kind.CONTEXT)
"""The kinds of evidence that are prose, in which tokens are looked for unless a clause says in which."""


class SignatureError(ValueError):
    """A file of signatures is wrong; the message names file, signature and place."""


class Token(msgspec.Struct, frozen=True):
    """A piece of text to look for, case-insensitive, with any white space for a space.

    Written ``/…/`` it is a regular expression, matched within a line; else a text, which may go over lines.
    """

    written: str
    expression: str = ""
    """The regular expression, for text in lower case; empty for a plain text."""
    needs: str = ""
    """What a text must hold for the pattern to fit; to look for it first is many times quicker."""

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """The expression, compiled when it is first wanted: most are not, as no text holds what they need.

        Raises ValueError if it is no regular expression.
        """
        return _compiled(self.expression) if self.expression else None

    @classmethod
    def of(cls, written: str) -> "Token":
        """The token that a file writes so. ValueError if it is empty."""
        if len(written) > 2 and written[0] == written[-1] == "/":
            expression = _lowered(written[1:-1])
            return cls(written, expression, required(expression))
        if not written.strip():
            raise ValueError("a token is empty")
        return cls(" ".join(written.lower().split()))


@functools.lru_cache(maxsize=4096)
def _compiled(expression: str) -> re.Pattern[str]:
    try:
        return re.compile(expression, re.MULTILINE)
    except re.error as error:
        raise ValueError(f"the token /{expression}/ is no regular expression: {error}") from None


def _lowered(pattern: str) -> str:
    """A pattern for text in lower case; escapes and named groups stay: quicker than to ignore case in large logs."""
    return re.sub(r"\\.|\(\?P|[A-Z]+", lambda part: part[0] if part[0][0] in "\\(" else part[0].lower(), pattern)


_PIECE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]|.", re.DOTALL)
_QUANTIFIER: Final = re.compile(r"[*?+]|\{[0-9]*,?[0-9]*\}")


def required(pattern: str) -> str:
    """The longest text that whatever a pattern fits must hold, as far as it is plain to see; may be empty."""
    runs, depth, position = [""], 0, 0
    while position < len(pattern):
        piece = _PIECE.match(pattern, position)
        assert piece is not None  # the last alternative is any character
        position = piece.end()
        quantifier = _QUANTIFIER.match(pattern, position)
        text = _literal(piece[0])
        if piece[0] in "()":
            depth += 1 if piece[0] == "(" else -1
            runs.append("")
        elif depth == 0 and piece[0] == "|":
            return ""
        elif depth or not text or quantifier:
            runs.append("")
        else:
            runs[-1] += text
        position = quantifier.end() if quantifier and piece[0] != "(" else position
    return max(runs, key=len)


def _literal(piece: str) -> str:
    """The character that a piece of a pattern stands for; empty if it stands for several or for none."""
    if len(piece) == 1:
        return "" if piece in ".^$" else piece
    return piece[1] if piece[0] == "\\" and not piece[1].isalnum() else ""


Strings = str | list[str]


class Test(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a place in an object must be. Several fields of one test must all hold.

    ``at`` is the way there, a list of keys (a text: one key); ``*`` is any item of a list or any value of a mapping,
    ``pre*`` any key that begins so, ``field=value`` the item of a list that has it. One of the values found is enough.
    """

    at: Strings
    equals: Any = msgspec.UNSET
    one_of: list[Any] | None = None
    not_in: list[Any] | None = None
    """There, and none of these."""
    like: Strings | None = None
    """Tokens, of which one is in the value."""
    unlike: Strings | None = None
    """There, and none of these tokens is in it."""
    present: bool | None = None
    above: float | None = None
    below: float | None = None
    below_at: Strings | None = None
    """Less than the number at this place of the same object."""
    differs_at: Strings | None = None
    """Other than what is at this place of the same object, where something is."""
    default: Any = msgspec.UNSET
    """The value where the way leads nowhere; without it a test of what is not there does not hold."""


class Clause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing to look for; exactly one of ``text``, ``any``, ``all``, ``object``, ``label``, ``node``, ``ctx``."""

    text: Strings | None = None
    """Tokens, of which one is to be found."""
    sources: list[Kind] | None = msgspec.field(name="in", default=None)
    """The kinds of text to look in."""
    container: Strings | None = None
    """Only logs of containers so named; a log whose origin is unknown passes."""
    reason: Strings | None = None
    """Only events of such reasons."""
    any: list["Clause"] | None = None
    all: list["Clause"] | None = None
    object: str | None = None
    """A kind: some object of it for which all of ``where`` hold."""
    where: list[Test] = []
    select: list[Test] = []
    """With ``every``: the objects that are asked."""
    every: bool = False
    """All selected objects, at least one, must be so."""
    label: list[Test] | None = None
    """Tests of the node's labels."""
    node: list[Test] | None = None
    """Tests of facts of the node."""
    ctx: list[Test] | None = None
    """Tests of facts of the cluster."""
    anywhere: bool = False
    """Look in the whole evidence, not only in what is of the node."""
    if_seen: bool = False
    """Holds also when nothing of the kind was looked at: for circumstances, not for proofs."""


_FORMS: Final = ("text", "any", "all", "object", "label", "node", "ctx")
Id = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A known failure."""

    id: Id
    layer: Layer
    title: str
    """What is wrong, without the name of a node."""
    when: list[Clause]
    """All must hold."""
    cause: str
    confirm: str
    """A command that shows it to a person."""
    fix: list[str]
    """What to do, in this order."""
    severity: Severity
    source: str
    unless: list[Clause] = []
    """Contradicting evidence: none may hold."""
    action: Action = Action.NONE
    symptom: bool = False
    """Says that something is broken, not what: never the cause where another signature tells more."""
    up_to: Layer | None = None
    """Of a symptom: the highest layer whose failures can be behind it; its own unless given."""
    awaits: Layer | None = None
    """So it also looks while a node's operands up to this layer come up; until they had time, it is waited for."""
    explains: list[str] = []
    """Symptoms that this one accounts for although it is only ``info``."""

    @property
    def reach(self) -> Layer:
        """The highest layer whose failures explain this symptom."""
        return self.up_to or self.layer


def loads(text: str, source: str = "the file", *, sound: bool = False) -> list[Signature]:
    """The signatures of a file, checked; if it is known to be ``sound``, less. Raises :class:`SignatureError`."""
    try:
        document = goyaml.loads(text)
    except goyaml.DocumentError as error:
        raise SignatureError(f"{source} is not YAML: {error}") from None
    if not isinstance(document, list):
        raise SignatureError(f"{source} must be a list of signatures")
    found = [_signature(item, f"{source}, entry {number}", sound) for number, item in enumerate(document, start=1)]
    _check_unique(found, source)
    return found


def _signature(item: Any, where: str, sound: bool) -> Signature:
    called = item.get("id") if isinstance(item, Mapping) else None
    where = f"{where} ({called})" if called else where
    try:
        signature = msgspec.convert(item, Signature)
        if not sound:
            _check(signature)
    except (msgspec.ValidationError, ValueError) as error:
        raise SignatureError(f"{where}: {error}") from None
    return signature


def _check(signature: Signature) -> None:
    if not signature.when:
        raise ValueError("when must have a clause")
    for clause in walk([*signature.when, *signature.unless]):
        forms = [form for form in _FORMS if getattr(clause, form) is not None]
        if len(forms) != 1:
            raise ValueError(
                f"a clause must have one of {', '.join(_FORMS)}; this one has {', '.join(forms) or 'none'}"
            )
        if clause.object is None and (clause.where or clause.select or clause.every):
            raise ValueError("where, select and every go with object")
        if clause.text is None and (clause.sources is not None or clause.container or clause.reason):
            raise ValueError("in, container and reason go with text")
        for tests in (clause.where, clause.select, clause.label or [], clause.node or [], clause.ctx or []):
            for test in tests:
                _check_test(test)
        _check_tokens(clause.text)
    if signature.up_to and not signature.symptom:
        raise ValueError("up_to goes with symptom")


def _check_test(test: Test) -> None:
    _check_tokens(test.like)
    _check_tokens(test.unlike)
    asked = (
        *(test.one_of, test.not_in, test.like, test.unlike, test.present),
        *(test.above, test.below, test.below_at, test.differs_at),
    )
    if test.equals is msgspec.UNSET and all(each is None for each in asked):
        raise ValueError(f"the test at {way(test.at)} asks for nothing")


def _check_tokens(written: Strings | None) -> None:
    for token in tokens(written):
        _ = token.pattern


def _check_unique(found: Iterable[Signature], source: str) -> None:
    seen: set[str] = set()
    for signature in found:
        if signature.id in seen:
            raise SignatureError(f"{source}: the signature {signature.id} is there twice")
        seen.add(signature.id)


def walk(clauses: Iterable[Clause]) -> Iterator[Clause]:
    """The clauses and those within them."""
    for clause in clauses:
        yield clause
        yield from walk([*(clause.any or ()), *(clause.all or ())])


def way(at: Strings) -> tuple[str, ...]:
    """A test's way as keys."""
    return (at,) if isinstance(at, str) else tuple(at)


@functools.lru_cache(maxsize=4096)
def _token(written: str) -> Token:
    return Token.of(written)


def tokens(written: Strings | None) -> tuple[Token, ...]:
    """The tokens that a file writes so. ValueError for one that is none."""
    if written is None:
        return ()
    return tuple(_token(each) for each in ([written] if isinstance(written, str) else written))


# --- Ours -------------------------------------------------------------------------------------------------------------

_BY_SIGNATURES: Final = frozenset({48, 63, 64, 79, 92, 94, 95, 119, 120, 140})
"""Xid errors with a signature of their own (S25, S27, S28)."""
_FAMILIES: Final[Mapping[XidAction, tuple[Layer, Severity, Action, str]]] = {
    XidAction.IGNORE: (Layer.HARDWARE, Severity.INFO, Action.NONE, "nothing needs to be done"),
    XidAction.RESTART_APPLICATION: (
        Layer.WORKLOAD,
        Severity.WARNING,
        Action.CHECK_WORKLOAD,
        "restart the application; if it comes again with other programs on the same GPU, inspect the hardware",
    ),
    XidAction.RESET_GPU: (
        Layer.HARDWARE,
        Severity.CRITICAL,
        Action.RESET_GPU,
        "stop the GPU's clients and reset it (`nvidia-smi --gpu-reset -i INDEX`), or drain and reboot the node",
    ),
    XidAction.RESTART_NODE: (Layer.HARDWARE, Severity.FATAL, Action.DRAIN_AND_REBOOT, "drain and reboot the node"),
    XidAction.RESTART_VM: (
        Layer.HARDWARE,
        Severity.CRITICAL,
        Action.DRAIN_AND_REBOOT,
        "drain the node and restart its virtual machine",
    ),
    XidAction.UPDATE: (
        Layer.DRIVER,
        Severity.CRITICAL,
        Action.UPGRADE_COMPONENT,
        "bring driver, vGPU manager and firmware to releases that go together",
    ),
    XidAction.CHECK_MECHANICS: (
        Layer.HARDWARE,
        Severity.FATAL,
        Action.HARDWARE_INSPECTION,
        "check the board's power cables and seating",
    ),
    XidAction.WORKFLOW: (
        Layer.HARDWARE,
        Severity.CRITICAL,
        Action.HARDWARE_INSPECTION,
        "look at the errors beside it in the kernel's log; reset the GPU or reboot, inspect it if that does not help",
    ),
    XidAction.SUPPORT: (
        Layer.HARDWARE,
        Severity.CRITICAL,
        Action.CONTACT_SUPPORT,
        "gather the node's bug report (`nvidia-bug-report.sh`) and contact support",
    ),
    XidAction.NONE: (Layer.HARDWARE, Severity.WARNING, Action.CONTACT_SUPPORT, "ask support if it comes again"),
}
"""What each action of the catalogue means for a node: layer, severity, suggested action, fix."""


def xid_pattern(codes: Iterable[int]) -> str:
    """A token for any of these Xid errors as the driver prints them in the kernel's log."""
    numbers = "|".join(map(str, sorted(codes)))
    return rf"/nvrm: xid ?(?:\([^)]*\))?: ?(?:{numbers})(?![0-9])/"


def xid_families() -> list[Signature]:
    """A signature for each action of the Xid catalogue; errors that have a signature of their own are left out."""
    found = []
    for action, (layer, severity, suggested, fix) in _FAMILIES.items():
        codes = [code for code, xid in XIDS.items() if xid.action is action and code not in _BY_SIGNATURES]
        if not codes:
            continue
        found.append(
            Signature(
                id=f"XID-{action.name.replace('_', '-')}",
                layer=layer,
                title=f"the driver reported Xid errors: {action.value}",
                when=[Clause(text=xid_pattern(codes), sources=[Kind.KERNEL, Kind.LOG, Kind.NODE])],
                cause=f"a GPU error for which NVIDIA's catalogue says: {action.value}",
                confirm="dmesg | grep -i xid",
                fix=[fix],
                severity=severity,
                source="contracts/mig-exporter-validator.md 8",
                action=suggested,
            )
        )
    return found


FILES: Final = ("signatures.yaml", "signatures_public.yaml")
"""Our files: what the contracts name, and what people found and reported in public."""


@functools.cache
def builtin() -> tuple[Signature, ...]:
    """The signatures that come with the package, and the Xid families."""
    read = [loads(shipped(file), file, sound=True) for file in FILES]  # tests check them, a command need not
    return (*(each for found in read for each in found), *xid_families())


def shipped(file: str) -> str:
    """The text of a file of signatures that comes with the package."""
    return (importlib.resources.files(__package__) / file).read_text(encoding="utf-8")


def with_files(paths: Iterable[Path]) -> tuple[Signature, ...]:
    """Ours and those of a site's files; a site's signature takes the place of ours with its id.

    Raises:
        SignatureError: a file cannot be read or is wrong, or two files have one id.
    """
    added: list[Signature] = []
    for path in paths:
        try:
            added += loads(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise SignatureError(f"{path} cannot be read: {error}") from None
    _check_unique(added, "the files of signatures")
    replaced = {signature.id for signature in added}
    return (*(each for each in builtin() if each.id not in replaced), *added)
