"""``groundplane rollback``: the way back to an older revision, what it takes back and what it leaves."""

import click


@click.group("rollback")
def command() -> None:
    """Go back to an older revision of the operator's release."""
