"""Redaction: what may not leave a cluster is taken out before anything is shown or written (contracts/admin-workflow.md
1 and 13.4). The only rules there are; findings, reports and archives all go through them.

Works on lines as they come, whatever their length, and on documents (what YAML and JSON hold). Secrets become
:data:`MASK`; with :class:`Pseudonyms`, names of nodes, addresses and serial numbers become names that stay the same
throughout. Counts of what was taken out are kept by kind, values never. Redacting twice changes nothing.
"""

import base64
import binascii
import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any, Final

MASK: Final = "***"
LONGEST: Final = 1 << 16
"""Characters of a line that are looked at together; a longer line is cut where no secret can be."""
_ROUNDS: Final = 8
_LOOK_BACK: Final = 2048
"""Characters before a cut that must not begin anything that could go on after it."""
LEFT_OUT: Final = "[left out: a run of text too long to be looked through]"

_WORD: Final = r"(?:TOKEN|PASSW(?:OR)?D|PASSPHRASE|SECRET|KEY|CREDENTIAL|COOKIE)"
_NAME: Final = rf"(?<![A-Za-z0-9_.\-])[A-Za-z0-9_.\-]{{0,80}}?{_WORD}[A-Za-z0-9_.\-]{{0,80}}"
_STRONG: Final = (
    r"(?:token|passw(?:or)?d|passphrase|secret|credentials?|cookie|api[_-]?key|access[_-]?key(?:[_-]?id)?|private[_-]?key"
    r"|secret[_-]?key)"
)
_QUOTED: Final = r'"(?:\\.|[^"\\\n])*"|' + r"'[^'\n]*'"
_VALUE: Final = rf"""(?:{_QUOTED}|[^\s,;"'}}\]]+)"""
_OPAQUE: Final = r"[A-Za-z0-9+/_=.~\-]"
_NO_WORD: Final = r"""(?=[^\s"',;:()]{0,512}?[0-9])(?=[^\s"',;:()]{0,512}?[A-Za-z])[^\s"',;:()]"""
"""The first of several characters that are no word of prose: letters and digits mixed."""


class _Rule:
    """A kind of secret: the pattern's group ``v`` is taken out.

    Args:
        kind: what it is counted as.
        needs: in lower case, without which the pattern cannot fit: words of which all must be there, each with its
            alternatives (``a|b``). Looking for words costs a tenth of looking for a pattern.
        expression: compiled when a text first needs it, as commands that show little shall start quickly.
        flags: of the expression.
    """

    def __init__(self, kind: str, needs: str, expression: str, flags: int = re.IGNORECASE) -> None:
        self.kind = kind
        self.needs = tuple(tuple(each.split("|")) for each in needs.split())
        self._expression, self._flags = expression, flags

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self._expression, self._flags)


_NO_SECRET: Final = r"(?!(?:true|false|null|~|\{\}|\[\])\s*,?\s*$)"
"""What YAML writes for values that are no secret."""
_SIGN: Final = r"(?:[ \t]{1,9}=(?!=)[ \t]{0,9}|=[ \t]{1,9})"
_WORDS: Final = "token|passw|passphrase|secret|key|credential|cookie"
"""What names of :data:`_WORD` have within them."""
_RULES: Final = (
    _Rule(
        "private key",
        "private key-----",
        r"(?P<v>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,40}-----|$))",
        re.S,
    ),
    _Rule("registry auth", "docker", rf"""\.?docker(?:configjson|cfg)["']?\s*[:=]\s*(?P<v>{_QUOTED}|\S+)"""),
    _Rule(
        "registry auth",
        "auth|identitytoken|registrytoken :",
        rf"""["'](?:auth|identitytoken|registrytoken)["']\s*:\s*(?P<v>{_QUOTED})""",
    ),
    _Rule("registry auth", "auth:", r"^\s*auth:\s+(?P<v>\S+)\s*$"),
    _Rule(
        "authorization",
        "authorization",
        r"""\b(?:proxy-)?authorization["'\\]*\s*[:=]\s*\[?["'\\]*(?P<v>[^"'\\\r\n\]]+)""",
    ),
    _Rule(
        "registry auth",
        "auth|identitytoken|registrytoken =",
        rf"^\s*(?:auth|identitytoken|registrytoken)\s*=\s*(?P<v>{_QUOTED})",
        re.I | re.M,
    ),
    _Rule("authorization", "cookie", r"""\b(?:set-)?cookie["'\\]*\s*:\s*\[?["'\\]*(?P<v>[^"'\\\r\n\]]+)"""),
    _Rule(
        "bearer token",
        "bearer",
        rf"\b(?i:bearer)\s+(?P<v>(?=[a-z+/.\-]{{0,512}}[0-9A-Z_=~]){_OPAQUE}{{6,}}|{_OPAQUE}{{16,}})",
        0,
    ),
    _Rule("bearer token", "basic", rf"\bbasic\s+(?P<v>(?=[A-Za-z+/]*[0-9A-Z=]){_OPAQUE}{{12,}})", 0),
    _Rule("json web token", "eyj", r"\b(?P<v>eyJ[A-Za-z0-9_\-]{4,}\.[A-Za-z0-9_\-]{2,}(?:\.[A-Za-z0-9_\-]*)?)", 0),
    _Rule("url with user", "://", r"\b[a-z][a-z0-9+.\-]{1,20}://(?P<v>[^/\s\"'<>@]+(?:@[^/\s\"'<>@]+)*)@"),
    _Rule("cloud key", "akia|asia|aroa|aida", r"\b(?P<v>(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{16})\b", 0),
    _Rule("cloud key", "aiza|ya29", r"\b(?P<v>AIza[0-9A-Za-z_\-]{30,}|ya29\.[0-9A-Za-z_\-]{10,})", 0),
    _Rule(
        "cloud key",
        "ghp_|gho_|ghu_|ghs_|ghr_|_pat_|hf_",
        r"\b(?P<v>(?:gh[pousr]_|github_pat_|dckr_pat_|hf_)[0-9A-Za-z_\-]{10,})",
        0,
    ),
    _Rule("cloud key", "glpat-|nvapi-|xox", r"\b(?P<v>(?:glpat-|nvapi-|xox[abeprs]-)[0-9A-Za-z_\-]{10,})", 0),
    _Rule("cloud key", "sig =", r"[?&](?:sig|signature|x-amz-signature|x-goog-signature)=(?P<v>[^&\s\"']+)"),
    _Rule(
        "value by name",
        f"value {_WORDS}",
        rf"""\bname["']?\s*:\s*["']?{_NAME}["']?\s*,\s*["']?value["']?\s*:\s*(?P<v>{_QUOTED}|[^\n,}}]+)""",
    ),
    _Rule("value by name", f"= {_WORDS}", rf"""(?P<q>["']){_NAME}=(?P<v>[^"'\\\n]+)(?P=q)"""),
    _Rule("value by name", f"= {_WORDS}", rf"^\s*(?:-\s+|export\s+)?{_NAME}=(?P<v>\S.*)$", re.IGNORECASE | re.M),
    _Rule("value by name", f"= {_WORDS}", rf"{_NAME}=(?P<v>{_VALUE})"),
    _Rule("value by name", f"-- {_WORDS}", rf"--[a-z0-9\-]{{0,60}}{_STRONG}\s+(?P<v>(?!-){_VALUE})"),
    _Rule(
        "value by name",
        f": {_WORDS}",
        rf"""^\s*["']?[A-Z0-9_]{{0,80}}?{_WORD}[A-Z0-9_]{{0,80}}["']?\s*:[ \t]+(?P<v>{_NO_SECRET}\S.*)$""",
        re.M,
    ),
    _Rule(
        "value by name",
        f": {_WORDS}",
        rf"""^\s*(?:-\s+)?["']?[\w.\-]{{0,80}}?{_STRONG}["']?\s*:[ \t]+(?P<v>{_NO_SECRET}[^\s{{\[|>&].*)$""",
        re.IGNORECASE | re.M,
    ),
    _Rule(
        "value by name",
        f": {_WORDS}",
        rf"""["'][\w.\-]{{0,80}}?{_STRONG}\\?["']\s*:\s*(?P<v>{_QUOTED}|\\"[^"\n]*\\"|[0-9]+)""",
    ),
    _Rule("value by name", "pass", rf"\b(?:password|passwd|passphrase)\s*(?:is|:)\s+(?P<v>(?![{{\[]){_VALUE})"),
    # with spaces around the sign, as INI, TOML and logs have it
    _Rule(
        "value by name",
        f"= {_WORDS}",
        rf"""^\s*(?:-\s+|export\s+)?["']?[\w.\-]{{0,80}}?{_STRONG}["']?{_SIGN}(?P<v>{_NO_SECRET}[^\s{{\[].*)$""",
        re.IGNORECASE | re.M,
    ),
    _Rule(
        "value by name",
        f"= {_WORDS}",
        rf"""^\s*(?:export\s+)?[A-Z0-9_]{{0,80}}?{_WORD}[A-Z0-9_]{{0,80}}{_SIGN}(?P<v>{_NO_SECRET}[^\s{{\[].*)$""",
        re.M,
    ),
    _Rule(
        "value by name",
        f"= {_WORDS}",
        rf"""(?<![\w.\-])[\w.\-]{{0,80}}?{_STRONG}["']?{_SIGN}(?P<v>(?![{{\[]){_VALUE})""",
    ),
    # without a sign: only what is no word, as "password required" is prose
    _Rule("value by name", "pass", rf"""\b(?:password|passwd|passphrase)[ \t]+["']?(?P<v>{_NO_WORD}{{6,}})"""),
    _Rule("value by name", "login passw", r"\blogin[ \t]+\S{1,256}[ \t]+password[ \t]+(?P<v>\S+)"),
    _Rule(
        "value by name",
        "token|passw|passphrase|secret|_key|credential",
        rf"""\b[A-Z0-9_]{{0,80}}?(?:TOKEN|PASSW(?:OR)?D|PASSPHRASE|SECRET|_KEY|CREDENTIALS?)[ \t]+"""
        rf"""["']?(?P<v>{_NO_WORD}{{8,}})""",
        0,
    ),
    _Rule("value by name", f"env|arg {_WORDS}", rf"^\s*(?:ENV|ARG)[ \t]+{_NAME}[ \t]+(?P<v>\S.*)$", re.M),
    _Rule(
        "value by name",
        f": {_WORDS}",
        r"""(?<![\w.\-])[\w.\-]{0,80}?(?:token|(?:api|access|private|secret)[_-]?key)["']?[ \t]*:[ \t]+["']?"""
        rf"""(?P<v>{_NO_WORD}{{8,}})""",
    ),
)
_NEEDED: Final = tuple(sorted({word for rule in _RULES for words in rule.needs for word in words}))


@lru_cache(maxsize=1 << 12)
def _fitting(words: frozenset[str]) -> tuple[_Rule, ...]:
    """The rules that can find something in a text in which of :data:`_NEEDED` there are these."""
    return tuple(rule for rule in _RULES if all(not words.isdisjoint(each) for each in rule.needs))


_SIGNS: Final = (
    *("token", "passw", "passphrase", "secret", "key", "credential", "cookie", "auth", "bearer", "basic", "eyj", "://"),
    *(
        "akia",
        "asia",
        "aroa",
        "aida",
        "aiza",
        "ya29",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "glpat",
        "_pat_",
        "hf_",
        "nvapi",
        "xox",
        "sig=",
        "docker",
    ),
    "signature=",
)
"""What every rule's finds have within them, in lower case: lines without any are not looked at further."""
_TRIGGER: Final = re.compile("|".join(map(re.escape, _SIGNS)), re.IGNORECASE)


def _suspicious(text: str) -> bool:
    return any(map(text.lower().__contains__, _SIGNS))


_YAML_VALUE: Final = re.compile(r"""^\s*(?:-\s+)?["']?[\w.\-]+["']?\s*:[ \t]+$""")
_BEGIN: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY")
_END: Final = re.compile(r"-----END [A-Z0-9 ]{0,40}-----")
_PAIR_NAME: Final = re.compile(rf"""^(?P<i>\s*)(?P<d>-\s+)?["']?name["']?\s*:\s*["']?{_NAME}["']?\s*,?\s*$""", re.I)
_PAIR_VALUE: Final = re.compile(r"""^(?P<h>\s*["']?value["']?\s*:\s*)(?P<v>\S.*?)(?P<t>,?\s*)$""", re.I)
_BLOCK: Final = re.compile(
    rf"""^(?P<i>\s*)(?:-\s+)?["']?(?:[\w.\-]{{0,80}}?{_STRONG}|\.dockerconfigjson|[A-Z0-9_]*?{_WORD}[A-Z0-9_]*)["']?\s*:\s*[|>][+\-0-9]*\s*$"""
)
_SENSITIVE_NAME: Final = re.compile(_WORD, re.IGNORECASE)
_STRONG_NAME: Final = re.compile(rf"{_STRONG}$", re.IGNORECASE)
_REGISTRY_KEYS: Final = frozenset({"auth", "identitytoken", "registrytoken", ".dockerconfigjson", ".dockercfg"})
_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})
_SHORTEST: Final = 6
"""Characters of a value that is worth looking for everywhere; shorter ones are words of other things, too."""


class Pseudonyms:
    """Names in place of those that tell whose cluster it is; one thing has one name throughout."""

    def __init__(self, nodes: Iterable[str] = ()) -> None:
        self._nodes = tuple(dict.fromkeys(filter(None, nodes)))
        self._names: dict[tuple[str, str], str] = {}
        self._taken: Counter[str] = Counter()
        longest = sorted(self._nodes, key=len, reverse=True)
        self._pattern = (
            re.compile(rf"(?<![A-Za-z0-9_.\-])(?:{'|'.join(map(re.escape, longest))})(?![A-Za-z0-9_\-])")
            if longest
            else None
        )
        for node in self._nodes:
            self._of("node", node)

    def _of(self, kind: str, real: str) -> str:
        if (kind, real) not in self._names:
            self._taken[kind] += 1
            while (name := f"{kind}-{self._taken[kind]:02d}") in self._nodes:
                self._taken[kind] += 1
            self._names[kind, real] = name
        return self._names[kind, real]

    def apply(self, line: str, counts: Counter[str]) -> str:
        """The line with pseudonyms; what was replaced is counted."""

        def instead(kind: str) -> Callable[[re.Match[str]], str]:
            def name(found: re.Match[str]) -> str:
                real = found["v"] if "v" in found.re.groupindex else found[0]
                if kind == "ip" and not _is_address(real):
                    return found[0]
                counts[f"{kind} (pseudonym)"] += 1
                return found[0].replace(real, self._of(kind, real))

            return name

        if self._pattern is not None:
            line = self._pattern.sub(instead("node"), line)
        for kind, pattern in _IDENTITIES:
            line = pattern.sub(instead(kind), line)
        return line


_IDENTITIES: Final = (
    ("email", re.compile(r"\b[A-Za-z0-9._%+\-]{1,64}@[A-Za-z0-9\-]{1,63}(?:\.[A-Za-z0-9\-]{1,63})*\.[A-Za-z]{2,24}\b")),
    ("mac", re.compile(r"(?<![0-9A-Fa-f:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![0-9A-Fa-f:])")),
    ("ip", re.compile(r"(?<![0-9A-Za-z.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9A-Za-z]|\.[0-9])")),
    ("ip", re.compile(r"(?<![0-9A-Za-z:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![0-9A-Za-z:.])")),
    ("gpu-uuid", re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")),
    (
        "serial",
        re.compile(
            r"\bserial(?:[ _]?number)?[\"']?\s*[:=]\s*[\"']?(?P<v>(?!serial-)[A-Za-z0-9]{6,20})\b", re.IGNORECASE
        ),
    ),
)


def _is_address(text: str) -> bool:
    """Whether it is an address of a machine: not a version, a time or an address that says nothing."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


class Redactor:
    """Takes secrets out of what is given to it, and counts them. One is used for a whole archive.

    Args:
        pseudonyms: replaces names and addresses too; None leaves them.
    """

    def __init__(self, pseudonyms: Pseudonyms | None = None) -> None:
        self.counts: Counter[str] = Counter()
        """How many secrets were taken out, by kind."""
        self._pseudonyms = pseudonyms
        self._known: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def learn(self, value: str) -> None:
        """From now on this value, plain or as base64, is a secret wherever it stands; short values are not."""
        plain = value.strip()
        if len(plain) < _SHORTEST or plain == MASK:
            return
        self._known |= {plain, *_encodings(plain.encode())}
        self._pattern = None

    def learn_from(self, documents: Iterable[Any]) -> None:
        """Learn what is secret in documents: Secrets' data, and values of names that say so, such as a token's.

        Of the latter only those that look like no word of another thing's (:data:`_OPAQUE_VALUE`), as they go from
        everything. Parts that documents share are looked at once.
        """
        seen: dict[int, Any] = {}
        waiting = list(documents)
        while waiting:
            thing = waiting.pop()
            if not isinstance(thing, Mapping | list) or id(thing) in seen:
                continue
            seen[id(thing)] = thing  # kept, so that no other thing gets its id
            if isinstance(thing, list):
                waiting += thing
                continue
            waiting += thing.values()
            for value in (*_secrets_of(thing), *filter(_OPAQUE_VALUE.search, _named_values(thing))):
                self.learn(value)

    def report(self) -> dict[str, int]:
        """The counts by kind, in the kinds' order; no values."""
        return dict(sorted(self.counts.items()))

    def line(self, text: str, suspicious: bool = True) -> str:
        """One line, or a text that is looked at as a whole, without its secrets; ``suspicious`` unless nothing in it
        can be what the rules find."""
        text = self._learned(text)
        if suspicious and _suspicious(text):
            for _ in range(_ROUNDS):  # what one rule takes out may let an earlier one see more
                before, text = text, self._ruled(text)
                if before == text:
                    break
        return text if self._pseudonyms is None else self._pseudonyms.apply(text, self.counts)

    def _ruled(self, text: str) -> str:
        for rule in _fitting(frozenset(filter(text.lower().__contains__, _NEEDED))):
            text = rule.pattern.sub(self._mask(rule.kind), text)
        return text

    def _learned(self, text: str) -> str:
        if not self._known:
            return text
        if self._pattern is None:
            longest = sorted(self._known, key=len, reverse=True)
            self._pattern = re.compile(f"(?P<v>{'|'.join(map(re.escape, longest))})")
        return self._pattern.sub(self._mask("known secret"), text)

    def _mask(self, kind: str) -> Callable[[re.Match[str]], str]:
        def instead(found: re.Match[str]) -> str:
            value = found["v"]
            quote = value[0] if len(value) > 1 and value[0] in "\"'" and value[-1] == value[0] else ""
            inner = value[1:-1] if quote else value
            if not inner or _is_masked(inner):
                return found[0]
            self.counts[kind] += 1
            start, end = found.start("v") - found.start(), found.end("v") - found.start()
            if not quote and _YAML_VALUE.search(found[0][:start]):
                quote = '"'  # a plain *** would be no YAML
            return f"{found[0][:start]}{quote}{MASK}{quote}{found[0][end:]}"

        return instead

    def text(self, text: str) -> str:
        """A text of lines without its secrets, also those that go over lines."""
        return "".join(self.stream((text,)))

    def stream(self, chunks: Iterable[str]) -> Iterator[str]:
        """A text that comes in pieces, in pieces: memory is bounded by a piece and :data:`LONGEST`."""
        state = _Lines(self)
        rest = ""
        for chunk in chunks:
            rest += chunk
            *lines, rest = rest.split("\n")
            for line in lines:
                yield from map(state.line, _cut(line))
                yield "\n"
            if len(rest) > LONGEST:
                *parts, rest = _cut(rest)
                for part in parts:
                    yield state.line(part)
        if rest:
            yield from map(state.line, _cut(rest))

    def document(self, value: Any) -> Any:
        """A document as YAML and JSON hold it, without its secrets; the given one is left as it is.

        A Secret's data are learned: they go from all that is redacted afterwards too.
        """
        self._learn_secrets(value)
        return self._value(value)

    def _learn_secrets(self, value: Any) -> None:
        waiting = [value]
        while waiting:
            thing = waiting.pop()
            if isinstance(thing, Mapping):
                if thing.get("kind") == "Secret":
                    for each in _secret_values(thing):
                        self.learn(each)
                waiting += thing.values()
            elif isinstance(thing, list):
                waiting += thing

    def _value(self, value: Any, key: str = "") -> Any:
        if isinstance(value, str):
            return self._string(value, key)
        if isinstance(value, list):
            return [self._value(each, key if isinstance(each, str) else "") for each in value]
        if not isinstance(value, Mapping):
            if value is not None and not isinstance(value, bool) and _STRONG_NAME.search(key):
                self.counts["value by name"] += 1
                return MASK
            return value
        if value.get("kind") == "Secret":
            return {
                name: self._hidden(each) if name in ("data", "stringData") else self._value(each, str(name))
                for name, each in value.items()
            }
        if isinstance(value.get("name"), str) and "value" in value and _SENSITIVE_NAME.search(value["name"]):
            return {
                name: self._hidden(each) if name == "value" else self._value(each, str(name))
                for name, each in value.items()
            }
        return {self._key(name): self._value(each, str(name)) for name, each in value.items()}

    def _key(self, name: Any) -> Any:
        return self.line(name) if isinstance(name, str) else name

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: self._hidden(each) for name, each in value.items()}
        if value in (None, "", MASK):
            return value
        self.counts["secret"] += 1
        return MASK

    def _string(self, value: str, key: str) -> str:
        named = _STRONG_NAME.search(key) or key.lower() in _REGISTRY_KEYS | _HEADERS
        if (named or (key.isupper() and _SENSITIVE_NAME.search(key))) and value and not _is_masked(value):
            self.counts["value by name"] += 1
            return MASK
        if value.lstrip()[:1] in ("{", "[") and (inner := _json(value)) is not None:
            self._learn_secrets(inner)
            changed = self._value(inner)
            return value if changed == inner else json.dumps(changed, separators=(",", ":"))
        return self.text(value)


class _Lines:
    """What is to be remembered from one line to the next: a key that goes on, a name whose value follows, a block."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._in_key = False
        self._named = False
        self._block: int | None = None

    def line(self, line: str) -> str:
        """A line, or a part of a long one, without its secrets."""
        if self._in_key:
            return self._key_goes_on(line)
        if not self._named and self._block is None and not _suspicious(line):
            return self._redactor.line(line, suspicious=False)
        indent = len(line) - len(line.lstrip())
        if self._block is not None and line.strip():
            if indent > self._block:
                return self._count("value by name", line[:indent] + MASK, line.strip())
            self._block = None
        if (block := _BLOCK.match(line)) is not None:
            self._block = len(block["i"])
            return line
        if self._named and (value := _PAIR_VALUE.match(line)) is not None:
            self._named = False
            if value["v"][0] in "|>":
                self._block = indent
                return line
            return self._count("value by name", f'{value["h"]}"{MASK}"{value["t"]}', value["v"])
        self._named = _PAIR_NAME.match(line) is not None
        begin = _BEGIN.search(line)
        if begin is not None and not _END.search(line, begin.end()):
            self._in_key = True
        return self._redactor.line(line)

    def _key_goes_on(self, line: str) -> str:
        end = _END.search(line)
        if end is None:
            return ""
        self._in_key = False
        return self.line(line[end.end() :])

    def _count(self, kind: str, instead: str, value: str) -> str:
        if not _is_masked(value):
            self._redactor.counts[kind] += 1
        return instead


def _is_masked(value: str) -> bool:
    return value.strip("\"'\\ ,;{}[]()") == MASK


def _cut(line: str) -> list[str]:
    """A long line in parts that can be looked at apart; the last part may be short of its end."""
    parts: list[str] = []
    while len(line) > LONGEST:
        at = _safe(line)
        if at == 0:
            parts.append(LEFT_OUT)
            line = line[LONGEST:]
            gap = re.search(r"\s", line)
            line = line[gap.start() :] if gap else ""
        else:
            parts.append(line[:at])
            line = line[at:]
    return [*parts, line]


def _safe(line: str) -> int:
    """The last place below :data:`LONGEST` where a line can be cut: a space, nothing suspicious shortly before it."""
    suspicious = [-_LOOK_BACK, *(found.start() for found in _TRIGGER.finditer(line, 0, LONGEST))]
    end = LONGEST
    while suspicious and end > LONGEST // 2:
        start = suspicious.pop()
        if (at := line.rfind(" ", start + _LOOK_BACK, end)) > 0:
            return at
        end = start
    return 0


_OPAQUE_VALUE: Final = re.compile(
    r"^(?=\S{8,512}$)(?!https?://[^@]*$)(?!/)(?=.*[A-Za-z])(?=.*(?:[0-9]|[a-z][A-Z]|[A-Z][a-z]))"
)
"""What may be learned of a name's value: no word, path or plain address, which stand for other things, too."""


def _secrets_of(thing: Mapping[str, Any]) -> Iterator[str]:
    return _secret_values(thing) if thing.get("kind") == "Secret" else iter(())


def _named_values(thing: Mapping[str, Any]) -> Iterator[str]:
    """The values in it whose names say that they are secret."""
    name, value = thing.get("name"), thing.get("value")
    if isinstance(name, str) and isinstance(value, str) and _STRONG_NAME.search(name):
        yield value
    for key, each in thing.items():
        if isinstance(each, str) and _STRONG_NAME.search(str(key)):
            yield each


def _secret_values(secret: Mapping[str, Any]) -> Iterator[str]:
    data, plain = secret.get("data"), secret.get("stringData")
    for value in plain.values() if isinstance(plain, Mapping) else ():
        if isinstance(value, str):
            yield value
    for value in data.values() if isinstance(data, Mapping) else ():
        if not isinstance(value, str):
            continue
        yield value
        try:
            yield base64.b64decode(value, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, ValueError):
            continue  # not text: its base64 is what can be met


def _encodings(plain: bytes) -> Iterator[str]:
    """What base64 makes of it wherever it stands in a longer text: the characters that are its own alone."""
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + plain).decode().rstrip("=")
        start = (before * 8 + 5) // 6
        whole = (before + len(plain)) * 8 // 6
        core = encoded[start:whole]
        if len(core) >= _SHORTEST + 2:
            yield core
            yield core.replace("+", "-").replace("/", "_")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def redacted(text: str) -> str:
    """A text without its secrets, where nobody counts them; once more changes nothing."""
    if len(text) <= LONGEST and not _suspicious(text):
        return text
    return Redactor().text(text)


def is_sensitive(name: str) -> bool:
    """Whether a variable or field of this name may hold a secret (contracts/admin-workflow.md 1, "Secrets")."""
    return _SENSITIVE_NAME.search(name) is not None
