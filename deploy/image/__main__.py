"""`python -m deploy.image`: build the image, or an archive in which it stands for NVIDIA's images."""

import sys
import tempfile
import time
from pathlib import Path

import click

from . import archive, build, debian
from .errors import ImageError

OUTPUT = Path("build/image")


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--name", help="Reference of the image.  [default: groundplane:<version>]")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Archive.  [default: build/image/groundplane-<version>.tar]"
)
@click.option("--fresh", is_flag=True, help="Make every layer anew; downloads are still taken from the cache.")
@click.pass_context
def main(ctx: click.Context, name: str | None, output: Path | None, fresh: bool) -> None:
    """Build the container image as one OCI archive, with neither a daemon nor root."""
    if ctx.invoked_subcommand is not None:
        return
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="groundplane-layers-") as folder:
        made = build.image(name, layers_folder=Path(folder), fresh=fresh)
        version = made.annotations["org.opencontainers.image.version"]
        target = output or build.TREE / OUTPUT / f"groundplane-{version}.tar"
        written, for_nodes = archive.write([made, build.for_nodes(made)], target)
    _report(made, written, target, time.monotonic() - started)
    click.echo(f"also      {for_nodes.reference}: the same layers for operands, run as root ({for_nodes.digest[:19]})")


def _report(made: archive.Image, written: archive.Written, target: Path, seconds: float) -> None:
    click.echo(f"image     {written.reference}")
    click.echo(f"digest    {written.digest}")
    for name, part in zip(("base", "packages", "program"), made.layers, strict=True):
        click.echo(f"  {name:<9} {_mb(part.size):>9} packed {_mb(part.unpacked):>9} unpacked  {part.digest[:19]}")
    click.echo(f"size      {_mb(written.compressed)} packed, {_mb(written.unpacked)} unpacked")
    click.echo(f"archive   {target} ({_mb(target.stat().st_size)}, {seconds:.0f} s)")
    click.echo(f"load      ctr -n k8s.io images import {target}   or   docker load -i {target}")


def _mb(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


@main.command()
@click.argument("references", nargs=-1, required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Archive to write.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Set in every image; may be repeated.")
def aliases(references: tuple[str, ...], output: Path, env: tuple[str, ...]) -> None:
    """Write an archive for tests in which the image stands for NVIDIA's images.

    REFERENCES are image references, each with `=KEY` if its entrypoint is not that of its own name.
    """
    from . import aliases as table

    wanted = {name: key or None for name, _, key in (reference.partition("=") for reference in references)}
    environment = dict(setting.split("=", 1) for setting in env)
    with tempfile.TemporaryDirectory(prefix="groundplane-layers-") as folder:
        made = build.image(layers_folder=Path(folder))
        for written in archive.write(table.aliases(made, wanted, environment=environment), output):
            click.echo(f"{written.digest}  {written.reference}")
    click.echo(f"load      ctr -n k8s.io images import {output}")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
def tree(folder: Path) -> None:
    """Write the folders of the layers, for a builder of another kind (see deploy/image/Containerfile)."""
    build.write_tree(folder)
    click.echo(f"{folder} ({debian.architecture()})")


if __name__ == "__main__":
    try:
        main(prog_name="python -m deploy.image")
    except ImageError as error:
        sys.exit(f"error: {error}")
