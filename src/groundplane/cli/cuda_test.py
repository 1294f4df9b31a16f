"""``groundplane cuda-test``: a CUDA program on every GPU node, to its end, and nothing left behind."""

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import click

from . import output as printing
from . import reach

if TYPE_CHECKING:
    from ..admin.cudatest_plan import Options, Planned
    from ..diagnose.findings import Finding


@click.command("cuda-test")
@reach.cluster_options
@click.option(
    "--test-namespace", default="default", show_default=True, metavar="NAME", help="Where the test's pods are created."
)
@click.option("--nodes", metavar="NAME", multiple=True, help="Only this node; may be given several times [all].")
@click.option("--all-gpus", is_flag=True, help="Ask for all GPUs of a node, rather than one.")
@click.option("--image", metavar="IMAGE", default="", help="The vectorAdd image [NVIDIA's CUDA sample].")
@click.option("--smi-image", metavar="IMAGE", default="", help="The image for nvidia-smi [NVIDIA's CUDA base].")
@click.option("--no-smi", is_flag=True, help="Do not run nvidia-smi.")
@click.option("--pull-secret", metavar="NAME", multiple=True, help="A Secret with the registry's credentials.")
@click.option("--parallel", type=click.IntRange(1, 500), default=16, show_default=True, help="Nodes at once.")
@click.option("--timeout", type=click.FloatRange(min=1), default=300.0, show_default=True, help="Seconds for one pod.")
@click.option("--keep", is_flag=True, help="Leave the pods, to look at them.")
@click.option("--clean", is_flag=True, help="Only delete the pods of earlier runs, those that were kept too.")
@click.option("--dry-run", is_flag=True, help="Print the plan; create nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("-a", "--all", "everything", is_flag=True, help="Print all nodes and all evidence.")
@reach.output_option
def command(
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    test_namespace: str,
    nodes: tuple[str, ...],
    all_gpus: bool,
    image: str,
    smi_image: str,
    no_smi: bool,
    pull_secret: tuple[str, ...],
    parallel: int,
    timeout: float,
    keep: bool,
    clean: bool,
    dry_run: bool,
    yes: bool,
    everything: bool,
    output: str,
) -> None:
    """Run a CUDA program on every GPU node. Prints its plan first; its pods are deleted at the end, also on Ctrl-C.

    Exits with 0 if all have passed, 4 if some could not be tested, 3 with a failure.
    """
    from ..admin import cudatest, cudatest_plan

    options = cudatest_plan.Options(
        namespace=test_namespace,
        image=image or cudatest_plan.SAMPLE_IMAGE,
        smi_image=smi_image or cudatest_plan.SMI_IMAGE,
        smi=not no_smi,
        nodes=tuple(dict.fromkeys(nodes)),
        all_gpus=all_gpus,
        pull_secrets=pull_secret,
        parallel=parallel,
        timeout_s=timeout,
        keep=keep,
        run=cudatest.run_name(),
    )
    where = reach.config(kubeconfig, context)
    if clean:
        gone = reach.run(_clean(where, options))
        click.echo(f"deleted {len(gone)} pods" + "".join(f"\n  {name}" for name in gone))
        return
    plan = reach.run(_plan(where, namespace, options))
    if dry_run and output != "text":
        printing.documents([plan.plan.document()], output)
        return
    _tell_plan(plan, quiet=output != "text")
    if dry_run:
        reach.report(plan.findings, output, kind="CudaTest", everything=everything)
    if plan.tests and not yes:
        click.confirm("Create these pods?", abort=True, err=True)
    durations: dict[str, float] = {}
    findings = reach.run(_run(where, plan, options, durations)) if plan.tests else list(plan.findings)
    about: dict[str, Any] = {"run": options.run, "namespace": options.namespace, "nodes": len(plan.tests)}
    about["durations"] = dict(sorted(durations.items()))
    reach.report(findings, output, kind="CudaTest", about=about, everything=everything)


def _tell_plan(plan: "Planned", *, quiet: bool) -> None:
    for line in plan.plan.text():
        click.echo(line, err=quiet)
    click.echo(err=quiet)


async def _plan(where: Any, namespace: str, options: "Options") -> "Planned":
    from ..admin import cudatest
    from ..cluster.client import Client
    from ..diagnose import survey

    async with Client(where) as client:
        seen = await survey.live(client, cudatest.KINDS, namespace=namespace)
    try:
        return cudatest.planned(seen, options)
    except ValueError as error:
        raise click.UsageError(f"--nodes: {error}") from None


async def _clean(where: Any, options: "Options") -> list[str]:
    from ..admin import cudatest
    from ..cluster.client import Client

    async with Client(where) as client:
        return await cudatest.clean(client, options, everything=True)


async def _run(where: Any, plan: "Planned", options: "Options", durations: dict[str, float]) -> "list[Finding]":
    """The run; SIGTERM ends it as Ctrl-C does, with its pods deleted."""
    from ..admin import cudatest
    from ..cluster.client import Client

    task, ended = asyncio.current_task(), []
    assert task is not None
    cancel = task.cancel

    def end() -> None:
        ended.append(signal.SIGTERM)
        cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
    try:
        async with Client(where) as client:
            return await cudatest.run(client, plan, options, lambda line: click.echo(line, err=True), durations)
    except asyncio.CancelledError:
        if ended:
            raise click.ClickException("ended by SIGTERM; the test's pods are deleted") from None
        raise
