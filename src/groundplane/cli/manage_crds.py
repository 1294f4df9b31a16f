"""``groundplane manage-crds``: the chart's program for custom resource definitions, as a command of its own."""

import sys

import click


@click.command("manage-crds", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Bring the custom resource definitions of a cluster up to date, or delete them."""
    from ..operator import manage_crds

    sys.exit(manage_crds.main(arguments))
