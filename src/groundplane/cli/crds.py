"""``groundplane crds``: the custom resource definitions, generated from our types."""

import click


@click.command("crds")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
def command(output: str) -> None:
    """Print the custom resource definitions; pipe them into `kubectl apply --server-side -f -`."""
    from ..api import crd
    from . import output as printing

    printing.documents(crd.definitions(), output)
