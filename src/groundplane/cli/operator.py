"""``groundplane operator``: run the operator with NVIDIA's flags; they are parsed in the operator's own room."""

import sys

import click


@click.command("operator", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run the operator."""
    from ..operator import main as operator_main

    sys.exit(operator_main.main(arguments))
