"""``groundplane uninstall``: take the operator away, and say what stays."""

from typing import TYPE_CHECKING, Any

import click

from . import reach

if TYPE_CHECKING:
    from ..admin.helm import Helm
    from ..admin.uninstall import Removal


@click.command("uninstall")
@reach.cluster_options
@click.option("--name", default="gpu-operator", show_default=True, help="The release's name.")
@click.option("--crds", is_flag=True, help="Delete the definitions too, and with them every custom resource.")
@click.option("--custom-resources", is_flag=True, help="With --crds: those too that no chart has made.")
@click.option("--namespace-too", is_flag=True, help="Delete the namespace too.")
@click.option("--node-labels", is_flag=True, help="Remove labels and annotations from nodes that nobody keeps up then.")
@click.option("--helm", "executable", metavar="FILE", default="", help="A helm to use [in this process, else helm].")
@click.option("--timeout", default=300, show_default=True, type=click.IntRange(min=1), help="Seconds for Helm.")
@click.option("--dry-run", is_flag=True, help="Print the plan; change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@reach.output_option
def command(kubeconfig: str | None, context: str | None, output: str, **given: Any) -> None:
    """Uninstall the GPU operator. Pods that use GPUs are listed first; what stays is listed too."""
    from ..admin import helm, plans, uninstall

    removal = uninstall.Removal(
        given["name"],
        given["namespace"],
        given["timeout"],
        given["crds"],
        given["namespace_too"],
        given["node_labels"],
        given["custom_resources"],
    )
    try:
        maker = helm.choose(kubeconfig, context, executable=given["executable"])
        reach.run(_uninstall(reach.config(kubeconfig, context), maker, removal, given, output))
    except (helm.HelmError, uninstall.UninstallError, plans.JournalError) as error:
        raise click.ClickException(str(error)) from None


async def _uninstall(where: Any, maker: "Helm", removal: "Removal", given: dict[str, Any], output: str) -> None:
    import hashlib

    from ..admin import plans, uninstall
    from ..cluster.client import Client
    from ..diagnose import survey
    from . import output as printing

    async with Client(where) as client:
        seen = await survey.live(client, uninstall.KINDS, namespace=removal.namespace)
        uninstall.check(removal, seen)
        plan = uninstall.plan(removal, seen)
        cluster = hashlib.sha256(seen.server.encode()).hexdigest()[:8]
        place = plans.home("uninstall", f"{cluster}-{removal.namespace}-{removal.release}.json")
        journal = plans.Journal(place, plan)
        if output == "text":
            click.echo("\n".join(plan.text(journal.done)))
        else:
            printing.documents([plan.document()], output)
        if given["dry_run"]:
            return
        if not given["yes"]:
            click.confirm("Go on?", abort=True, err=True)

        async def helm() -> None:
            await maker.uninstall(removal.release, removal.namespace, timeout_s=removal.timeout_s, missing_ok=True)

        async def labels() -> list[str]:
            now = await survey.live(client, ("nodes",), namespace=removal.namespace)
            return await uninstall.remove_labels(client, now.of_kind("nodes"))

        work = {
            "helm": helm,
            "crds": lambda: uninstall.delete_definitions(client),
            "labels": labels,
            "namespace": lambda: uninstall.delete_namespace(client, removal.namespace),
        }
        await plans.carry_out(plan, work, journal)
        click.echo(f"{removal.namespace}/{removal.release} is uninstalled", err=True)
