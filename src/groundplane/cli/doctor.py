"""``groundplane doctor``: the lowest broken layer, its cause and its fix, of a cluster, an archive or pasted text."""

import contextlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from . import output as printing
from . import reach

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..cluster.client import Client
    from ..diagnose.collect import Looked
    from ..diagnose.engine import Verdict
    from ..diagnose.evidence import Evidence
    from ..diagnose.findings import Finding
    from ..diagnose.signatures import Signature
    from ..diagnose.tree import Line

COLOURS = {"head": "bold", "bad": "red", "warn": "yellow", "good": "green", "dim": "bright_black", "command": "cyan"}


@click.command("doctor")
@reach.cluster_options
@click.option("--node", "nodes", metavar="NAME", multiple=True, help="Judge this node only, and look closer at it.")
@click.option("--pod", metavar="[NAMESPACE/]NAME", help="Why this pod has no GPU.")
@click.option("-w", "--watch", is_flag=True, help="Follow the cluster; told anew when the verdict changes.")
@click.option(
    "--from",
    "--archive",
    "source",
    metavar="FILE|DIR|-",
    help="Judge an archive, a must-gather directory, a bug report, or any text from a ticket, instead of a cluster.",
)
@click.option("--evidence", "document", metavar="FILE", help="Judge one document of evidence (- for stdin).")
@click.option(
    "--signatures",
    "site",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A site's signatures too.",
)
@click.option("--exec/--no-exec", "look", default=True, show_default=True, help="Look at sick nodes in operand pods.")
@reach.node_pod_options
@click.option("--log-lines", type=click.IntRange(1, 100_000), default=200, show_default=True, help="Of each log.")
@click.option(
    "--timeout", "within_s", type=click.FloatRange(1), default=120.0, show_default=True,
    help="Seconds for all that is read of a cluster; the rest is told as unknown.",
)  # fmt: skip
@click.option("-a", "--all", "everything", is_flag=True, help="Fold nothing: all nodes, evidence, consequences.")
@reach.output_option
@reach.html_option
def command(
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    nodes: tuple[str, ...],
    pod: str | None,
    watch: bool,
    source: str | None,
    document: str | None,
    site: tuple[Path, ...],
    look: bool,
    node_pods: bool,
    node_image: str,
    pull_secrets: tuple[str, ...],
    log_lines: int,
    within_s: float,
    everything: bool,
    output: str,
    html: Path | None,
) -> None:
    """Find what is broken, from the bottom up: the lowest failing layer is the cause, the rest follows from it.

    Changes nothing, but for the pods that --node-pods allows. Exits with 0 if nothing fails, 3 with a failure, 4 with
    warnings or things that could not be looked at.
    """
    _check(source, document, watch, nodes, pod, output, html)
    reach.check_node_pods(node_pods, node_image, pull_secrets)
    if node_pods and (watch or source is not None or document is not None):
        raise click.UsageError(
            "--node-pods looks at a live cluster once: give it without --watch, --from and --evidence"
        )
    known = _signatures(site)
    if watch:
        where = reach.config(kubeconfig, context)
        reach.run(_watch(where, namespace, nodes, known, everything))
        return
    named = _named(pod)
    if source is not None or document is not None:
        evidence = _given(source, document, named)
    else:
        inside = _Inside(look, node_pods, node_image, pull_secrets)
        evidence = _live(kubeconfig, context, namespace, nodes, named, inside, log_lines, within_s)
    _tell(evidence, known, named, everything, output, html)


def _check(
    source: str | None,
    document: str | None,
    watch: bool,
    nodes: Sequence[str],
    pod: str | None,
    output: str,
    html: Path | None,
) -> None:
    if source is not None and document is not None:
        raise click.UsageError("give one of --from (or --archive) and --evidence")
    given = source is not None or document is not None
    if given and (watch or nodes):
        raise click.UsageError("--watch and --node go with a live cluster, not with --from or --evidence")
    if watch and (output != "text" or html or pod):
        raise click.UsageError("--watch prints text only and follows the cluster, not one pod: leave -o, --html, --pod")


def _signatures(site: Sequence[Path]) -> "tuple[Signature, ...]":
    from ..diagnose import signatures

    try:
        return signatures.with_files(site)
    except signatures.SignatureError as error:
        raise click.UsageError(str(error)) from None


def _named(pod: str | None) -> tuple[str, str] | None:
    if pod is None:
        return None
    namespace, _, name = pod.rpartition("/")
    if not name or "/" in namespace:
        raise click.UsageError(f"--pod takes NAMESPACE/NAME, or NAME in the namespace default; this is {pod!r}")
    return namespace or "default", name


# --- Where evidence comes from ----------------------------------------------------------------------------------------


def _given(source: str | None, document: str | None, pod: tuple[str, str] | None) -> "Evidence":
    from ..diagnose import evidence, texts

    try:
        if document is not None:
            text = texts.decoded(_bytes(document)[0])
            return evidence.loads(text, "standard input" if document == "-" else document)
        assert source is not None
        if source != "-" and _is_archive(Path(source)):
            return _archive(Path(source), pod)
        return _text(source)
    except evidence.EvidenceError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"{source or document} cannot be read: {error.strerror or error}") from None


def _text(path: str) -> "Evidence":
    """What a text of any length holds: its end, as failures are there, which is told."""
    import msgspec

    from ..diagnose import texts

    data, whole = _bytes(path)
    found = texts.read(texts.decoded(data))
    if whole:
        return found
    cut = f"only the last {texts.LARGEST >> 20} MiB of {path} were read"
    return msgspec.structs.replace(found, missing=(cut, *found.missing))


def _bytes(path: str) -> tuple[bytes, bool]:
    """The end of a file or of stdin, and whether that is all of it."""
    from ..diagnose.texts import LARGEST

    data, whole = bytearray(), True
    with contextlib.nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as file:
        if file.seekable():
            whole = file.seek(max(0, file.seek(0, 2) - LARGEST)) == 0
        while chunk := file.read(1 << 20):
            data += chunk
            if len(data) > 2 * LARGEST:
                del data[:-LARGEST]
                whole = False
    if len(data) > LARGEST:
        del data[:-LARGEST]
        whole = False
    return bytes(data), whole


_PACKED = (b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
"""How files begin that are packed: gzip, zip, bzip2, xz, zstandard."""
_TAR_AT = 257


def _is_archive(path: Path) -> bool:
    if path.is_dir():
        return True
    with path.open("rb") as file:
        head = file.read(_TAR_AT + 5)
    return head.startswith(_PACKED) or head[_TAR_AT:] == b"ustar"


def _archive(path: Path, pod: tuple[str, str] | None) -> "Evidence":
    from ..diagnose import archive

    try:
        return archive.open(path, pod)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _live(
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    nodes: Sequence[str],
    pod: tuple[str, str] | None,
    inside: "_Inside",
    log_lines: int,
    within_s: float,
) -> "Evidence":
    from ..cluster.client import Client
    from ..diagnose import collect

    where = reach.config(kubeconfig, context)

    async def examine() -> "Evidence":
        async with Client(where) as client:
            with _progress() as tell:
                return await collect.examine(
                    client,
                    namespace=namespace,
                    nodes=nodes,
                    pod=pod,
                    exec=inside.by_exec or inside.by_pods,
                    look=inside.looker(client, namespace, tell),
                    log_lines=log_lines,
                    within_s=within_s,
                    tell=tell,
                )

    return reach.run(examine())


class _Inside(NamedTuple):
    """How nodes may be looked at from inside."""

    by_exec: bool
    by_pods: bool
    image: str
    pull_secrets: tuple[str, ...]

    def looker(
        self, client: "Client", namespace: str, tell: "Callable[[str], None]"
    ) -> "Callable[[Sequence[str]], Awaitable[Looked]]":
        from ..admin import nodelook

        ways = [way for way, may in ((nodelook.Way.EXEC, self.by_exec), (nodelook.Way.PODS, self.by_pods)) if may]

        async def look(nodes: Sequence[str]) -> "Looked":
            return await nodelook.look(
                client,
                nodes,
                namespace=namespace,
                ways=ways,
                image=self.image,
                pull_secrets=self.pull_secrets,
                timeout_s=60.0 if self.by_pods else 15.0,
                tell=tell,
            )

        return look


@contextlib.contextmanager
def _progress() -> "Any":
    """What is being done, on a terminal only, and gone in the end."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    try:
        yield lambda text: click.echo(f"\r\x1b[K{text} ...", nl=False, err=True)
    finally:
        click.echo("\r\x1b[K", nl=False, err=True)


# --- Telling ----------------------------------------------------------------------------------------------------------


def _tell(
    evidence: "Evidence",
    known: "Iterable[Signature]",
    named: tuple[str, str] | None,
    everything: bool,
    output: str,
    html: Path | None,
) -> None:
    from ..diagnose import doctor, podwhy, tree

    verdict = doctor.diagnose(evidence, known)
    steps: list[Finding] = []
    if named is not None:
        try:
            pod = podwhy.find(evidence, *named)
        except podwhy.PodNotSeenError as error:
            raise click.ClickException(str(error)) from None
        steps = podwhy.walk(evidence, pod)
        verdict = doctor.of_pod(verdict, evidence, pod)
    rows = [*steps, *verdict.findings]
    if output == "text":
        for line in [*tree.steps(steps, named), *tree.styled(verdict, evidence, everything=everything)]:
            _echo(line)
    else:
        printing.documents([_document(verdict, evidence, steps)], output)
    if html is not None:
        _write(html, rows, verdict, evidence)
    reach.leave(rows)


def _echo(line: "Line") -> None:
    colour = COLOURS.get(line.style)
    click.echo(click.style(line.text, bold=True) if colour == "bold" else click.style(line.text, fg=colour))


def _document(verdict: "Verdict", evidence: "Evidence", steps: "Sequence[Finding]") -> dict[str, Any]:
    from ..diagnose import doctor, findings

    found = doctor.report(verdict, evidence)
    if steps:
        found["pod"] = findings.report(steps)["findings"]
        found["exitCode"] = int(findings.exit_code([*steps, *verdict.findings]))
    head = {"apiVersion": "groundplane.dev/v1alpha1", "kind": "Diagnosis"}
    facts = {name: value for name, value in evidence.context.items() if name in ("release", "platform", "at")}
    return {**head, "cluster": facts, **found}


def _write(path: Path, rows: "Iterable[Finding]", verdict: "Verdict", evidence: "Evidence") -> None:
    from ..diagnose import html, tree

    known = {name: str(value) for name, value in evidence.context.items() if name in ("release", "platform", "at")}
    text = "\n".join(tree.lines(verdict, evidence, everything=True))
    sections = [html.Section(title="The verdict as the terminal shows it", text=text, folded=True)]
    try:
        html.write(path, html.page("Diagnosis of the GPU stack", facts=known, findings=rows, sections=sections))
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror or error}") from None


# --- Watching ---------------------------------------------------------------------------------------------------------


async def _watch(
    where: Any, namespace: str, nodes: Sequence[str], known: "Iterable[Signature]", everything: bool
) -> None:
    """Tell the verdict whenever it says something new, until interrupted."""
    from ..cluster.client import Client
    from ..diagnose import doctor, tree, watching

    known = tuple(known)
    before: list[str] = []
    async with Client(where) as client, watching.Watching(client, namespace=namespace, nodes=nodes) as cluster:
        with _screen() as show:
            async for evidence in cluster.evidence():
                told = tree.styled(doctor.diagnose(evidence, known), evidence, everything=everything)
                said = [line.text for line in told if not line.text.startswith("as of ")]
                if said != before:
                    show(told)
                    before = said


@contextlib.contextmanager
def _screen() -> "Any":
    """Shows a verdict: redrawn in place on a terminal, one below the other elsewhere."""
    if not sys.stdout.isatty():

        def plain(told: "Sequence[Line]") -> None:
            for line in (*told, None):
                click.echo("" if line is None else line.text)
            sys.stdout.flush()

        yield plain
        return
    from rich.console import Console
    from rich.text import Text

    from .live import Live

    def draw(told: "Sequence[Line]", _width: int) -> Text:
        return Text("\n").join(Text(line.text, style=COLOURS.get(line.style, "")) for line in told)

    with Live(Console(), draw) as live:
        yield live.show
