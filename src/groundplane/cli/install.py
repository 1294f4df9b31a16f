"""``groundplane install``: the operator, with what has to be right before and what has to be seen after."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import reach

if TYPE_CHECKING:
    from ..admin.helm import Helm
    from ..admin.install import Seen, Wanted
    from ..admin.plans import Journal, Plan
    from ..cluster.client import Client
    from ..diagnose.findings import Finding
    from ..diagnose.survey import Survey
    from .layer_view import Shows

POLL_S = 2.0
POLL_NODE_S = 0.01
"""More between two looks for each node: a look at 1,000 nodes lists some ten thousand pods."""
HOPELESS_S = 60.0
"""How long what does not go by itself, such as an image that is not there, is waited for."""
HOOKS_S = 3.0
"""Between two looks at hooks' pods."""


@click.command("install")
@reach.cluster_options
@click.option("--chart", metavar="REF", default="", help="A folder, a .tgz, oci://..., or a name [NVIDIA's chart].")
@click.option("--repository", metavar="URL", default="", help="The repository that has the chart of that name.")
@click.option("--version", "--release", "version", metavar="VERSION", default="", help="The chart's version; required.")
@click.option("--name", default="gpu-operator", show_default=True, help="The release's name.")
@click.option("-f", "--values", "values_files", metavar="FILE", multiple=True, help="Values; later files win.")
@click.option("--set", "sets", metavar="NAME=VALUE", multiple=True, help="One value, such as driver.enabled=false.")
@click.option(
    "--pod-security",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Label the namespace so that it lets privileged pods in.",
)
@click.option("--helm", "executable", metavar="FILE", default="", help="A helm to use [in this process, else helm].")
@click.option("--timeout", default=1200, show_default=True, type=click.IntRange(min=1), help="Seconds for each wait.")
@click.option("--force", is_flag=True, help="Install in spite of findings that fail.")
@click.option("--recover", is_flag=True, help="Clear a release that a run left pending which was interrupted.")
@click.option(
    "--print",
    "form",
    type=click.Choice(["helm", "argocd", "flux", "terraform"]),
    help="Print it for those who run Helm or GitOps; change nothing.",
)
@click.option("--dry-run", is_flag=True, help="Judge and print the plan; change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@reach.output_option
def command(kubeconfig: str | None, context: str | None, output: str, form: str | None, **given: Any) -> None:
    """Install the GPU operator: preflight, the chart, every node's layers, verify.

    An interrupted run goes on where it was when it is repeated. Exits with 0 if all is well, 4 with warnings, 3 with a
    failure, 1 if it could not be done.
    """
    from ..admin import helm

    wanted = _wanted(given)
    if form is not None:
        _print(wanted, form)
        return
    try:
        maker = helm.choose(kubeconfig, context, executable=given["executable"])
        reach.run(_install(reach.config(kubeconfig, context), maker, wanted, given, output))
    except helm.HelmError as error:
        raise click.ClickException(str(error)) from None


def _wanted(given: dict[str, Any]) -> "Wanted":
    from ..admin import helm, install, trees, values_file
    from ..api import goyaml

    values: dict[str, Any] = {}
    try:
        for path in given["values_files"]:
            text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
            values = trees.layer(values, values_file.read(text, "standard input" if path == "-" else path).tree)
        for each in given["sets"]:
            name, equals, value = each.partition("=")
            if not (name and equals):
                raise click.UsageError("--set needs NAME=VALUE")
            values = trees.put(values, trees.parse(name), goyaml.loads(value))
    except (OSError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    try:
        chart = helm.chart_of(given["chart"], given["version"], given["repository"])
    except helm.HelmError as error:
        raise click.UsageError(str(error)) from None
    return install.Wanted(
        chart,
        values,
        given["name"],
        given["namespace"],
        given["timeout"],
        given["pod_security"],
        given["recover"],
        given["values_files"],
        given["sets"],
    )


def _print(wanted: "Wanted", form: str) -> None:
    from ..admin import exports
    from . import output as printing

    try:
        if form == "helm":
            click.echo("\n".join(exports.commands(wanted)))
        elif form == "terraform":
            click.echo(exports.terraform(wanted), nl=False)
        else:
            printing.documents(exports.DOCUMENTS[form](wanted), "yaml")
    except exports.ExportError as error:
        raise click.ClickException(str(error)) from None


async def _install(where: Any, maker: "Helm", wanted: "Wanted", given: dict[str, Any], output: str) -> None:
    from ..admin import helm, install, plans
    from ..cluster.client import Client
    from ..diagnose import findings as shape

    async with Client(where) as client:
        try:
            seen, findings = await _look(client, maker, wanted)
        except (helm.ChartNotFound, helm.Unreachable) as error:
            missing = install.without_chart(wanted, error)
            reach.report(missing, output, kind="Plan", about={"title": f"Install {wanted.chart}", "steps": []})
        plan = install.plan(wanted, seen.survey, maker.name)
        journal = _journal(wanted, seen.survey, plan)
        resumes = _resumes(journal)
        findings += install.judge(wanted, seen, resumes=resumes)
        changes = install.difference(seen)
        stays = given["dry_run"] or _refuses(findings, given["force"])
        _show(plan, journal, changes, findings, output if stays else "aside" if output != "text" else output)
        if stays:
            _tell_refusal(findings, quiet=given["dry_run"])
            reach.leave(findings)
        if not given["yes"]:
            click.confirm("Go on?", abort=True, err=True)
        work = _Work(client, maker, wanted, seen, journal)
        await plans.carry_out(plan, work.steps, journal, plans.Lines(lambda text: click.echo(text, err=True)))
        about = {"plan": plan.document(), "changes": changes, "preflight": shape.report(findings)}
        reach.report(work.verified, output, kind="Installation", about={"release": work.release, **about})


async def _look(client: "Client", maker: "Helm", wanted: "Wanted") -> "tuple[Seen, list[Finding]]":
    """What is known before anything is changed, and what preflight finds."""
    from ..admin import install, matrix, preflight, preflight_inputs, propose, values_file
    from ..diagnose import survey

    found = await survey.live(client, dict.fromkeys((*install.KINDS, *preflight.KINDS)), namespace=wanted.namespace)
    defaults = await maker.defaults(wanted.chart)
    rendered = await maker.render(wanted.chart, wanted.release, wanted.namespace, wanted.values)
    seen = install.Seen(found, defaults, rendered, await install.look(client, wanted, rendered))
    like = wanted.behaves_like(defaults)
    file = values_file.ValuesFile("values", dict(wanted.values), {})
    asked = preflight_inputs.Wanted(matrix.load(None), str(like or ""), (file,))
    inquiry = preflight_inputs.inquiry_of(asked, found)
    return seen._replace(proposed=propose.propose(inquiry).settings), preflight.preflight(inquiry)


def _journal(wanted: "Wanted", survey: "Survey", plan: "Plan") -> "Journal":
    from ..admin import install, plans

    try:
        return plans.Journal(install.journal_file(wanted, survey.server), plan)
    except plans.JournalError as error:
        raise click.ClickException(str(error)) from None


def _resumes(journal: "Journal") -> bool:
    from ..admin import install

    try:
        return install.began(journal)
    except install.AlreadyRunsError as error:
        raise click.ClickException(str(error)) from None


def _show(plan: "Plan", journal: "Journal", changes: list[str], findings: "list[Finding]", output: str) -> None:
    """Print the plan: as the command's only document where it ends here, else for people, ``aside`` of a document."""
    from ..diagnose import findings as shape
    from . import output as printing

    if output in printing.FORMATS:
        printing.documents([{**plan.document(), "changes": changes, **shape.report(findings)}], output)
        return
    serious = [each for each in findings if each.outcome in (shape.Outcome.FAIL, shape.Outcome.WARN)]
    for line in (*shape.text(serious), "", *plan.text(journal.done), "", *changes):
        click.echo(line, err=output == "aside")


def _refuses(findings: "list[Finding]", force: bool) -> bool:
    from ..diagnose.findings import Outcome

    return not force and any(each.outcome is Outcome.FAIL for each in findings)


def _tell_refusal(findings: "list[Finding]", *, quiet: bool) -> None:
    from ..diagnose.findings import Outcome

    failed = sum(1 for each in findings if each.outcome is Outcome.FAIL)
    if failed and not quiet:
        click.echo(f"{failed} findings fail: nothing was changed. Mend them, or give --force.", err=True)


class _Work:
    """The steps' work on a cluster."""

    def __init__(self, client: "Client", maker: "Helm", wanted: "Wanted", seen: "Seen", journal: "Journal") -> None:
        self._client, self._maker, self._wanted = client, maker, wanted
        self._seen, self._journal = seen, journal
        self.verified: list[Finding] = []
        self.release: dict[str, Any] = {}
        self.steps = {
            "namespace": self._namespace,
            "defaults": self._defaults,
            "helm": self._helm,
            "layers": self._layers,
            "verify": self._verify,
        }

    async def _namespace(self) -> None:
        from ..admin import install

        label = install.needs_label(self._wanted, self._seen.survey)
        await install.make_namespace(self._client, self._wanted, label=label)

    async def _defaults(self) -> str:
        from ..admin import install

        return install.save_defaults(self._wanted, self._seen.defaults)

    async def _helm(self) -> dict[str, Any]:
        from ..admin import helm, install

        work = asyncio.ensure_future(install.install(self._maker, self._wanted, self._seen.survey, self._journal))
        try:
            await self._watch_hooks(work)
            return await work
        except (helm.TimedOut, helm.HookFailed):
            await self._doctor()
            raise

    async def _watch_hooks(self, work: "asyncio.Future[Any]") -> None:
        """While Helm works: a hook whose image cannot be pulled, seen twice, ends it (contracts 9.4)."""
        from ..admin import helm, upgrade_run
        from ..cluster import errors
        from ..diagnose import survey

        before = ""
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=HOOKS_S)
                try:
                    seen = await survey.live(self._client, ("pods", "jobs"), namespace=self._wanted.namespace)
                except errors.ClusterError as error:
                    click.echo(f"  hooks cannot be looked at: {error}", err=True)
                    continue
                stuck = "" if work.done() else upgrade_run.hook_stuck(seen)
                if stuck and stuck == before:
                    raise helm.HookFailed(stuck, "give an image that the nodes can pull, then run the same again")
                before = stuck
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})

    async def _layers(self) -> None:
        from . import layer_view

        with layer_view.of_stderr() as view:
            problem = await self._until_up(view)
        if problem:
            await self._doctor()
            raise click.ClickException(f"{problem}; run the same command to go on")

    async def _until_up(self, view: "Shows") -> str:
        """Wait until no node waits for anything; why it is not waited any longer, empty if all is up."""
        import time

        from ..admin import progress
        from ..diagnose import survey
        from . import layer_view

        ends = time.monotonic() + self._wanted.timeout_s
        hopeless: float | None = None
        while True:
            seen = await survey.live(self._client, progress.KINDS, namespace=self._wanted.namespace)
            rows, operator = progress.of(seen), progress.operator_waits(seen)
            view.show(layer_view.Seen(rows, operator))
            nothing = not rows and not operator and _without_gpus(seen)
            if nothing or progress.ready(seen):
                return ""
            now = time.monotonic()
            stuck = [row for row in rows if row.hopeless]
            hopeless = (hopeless or now) if stuck else None
            if hopeless is not None and now - hopeless >= min(HOPELESS_S, self._wanted.timeout_s):
                return f"{stuck[0].node}: {stuck[0].layer} waits for {stuck[0].waits}, which does not go by itself"
            if now > ends:
                return f"the nodes' layers did not come up in {self._wanted.timeout_s} s"
            nodes = len(seen.of_kind("nodes"))
            await asyncio.sleep(max(POLL_S, nodes * POLL_NODE_S))

    async def _doctor(self) -> None:
        from ..diagnose import collect, doctor, tree

        evidence = await collect.examine(self._client, namespace=self._wanted.namespace)
        for line in tree.lines(doctor.diagnose(evidence), evidence):
            click.echo(line, err=True)

    async def _verify(self) -> None:
        from ..admin import releases, verify
        from ..diagnose import survey

        seen = await survey.live(self._client, verify.KINDS, namespace=self._wanted.namespace)
        last = releases.history(seen).last(self._wanted.where)
        self.release = {"name": self._wanted.where}
        if last is not None:
            self.release |= {"revision": last.revision, "status": last.status, "chart": last.chart_version}
        ours = self._wanted.is_ours(self._seen.defaults)  # its version says nothing of what it is like
        wanted = None if ours else self._wanted.behaves_like(self._seen.defaults)
        self.verified = verify.verify(seen, wanted=wanted)


def _without_gpus(survey: "Survey") -> bool:
    """Whether the operator has looked, and there is no node with a GPU to wait for."""
    policies = survey.of_kind("clusterpolicies")
    conditions = [each for policy in policies for each in (policy.get("status") or {}).get("conditions") or ()]
    return any(each.get("reason") in ("NoGPUNodes", "NFDLabelsMissing") for each in conditions)
