"""The ``groundplane`` executable: a table of commands, each imported only when it is called.

``--help`` and ``--version`` must answer in well under 150 ms, so this module imports click and nothing of
ours; a command's one-line help stands in the table below.
"""

import importlib
import sys
from typing import NamedTuple

import click

from .. import __version__


class Entry(NamedTuple):
    """Where a command lives and what ``--help`` says about it."""

    module: str
    help: str


COMMANDS = {
    "preflight": Entry("preflight", "Judge a cluster, or a node, before the operator is installed or upgraded."),
    "install": Entry("install", "Install the operator: preflight, Helm, every node's layers, verify."),
    "upgrade": Entry("upgrade", "See what an upgrade of the operator means for this cluster, then make it."),
    "rollback": Entry("rollback", "See what going back to an older revision means, then go back."),
    "uninstall": Entry("uninstall", "Take the operator away, and see what stays."),
    "render": Entry("render", "Print the objects and node labels a ClusterPolicy leads to, with no cluster."),
    "plan": Entry("plan", "Print what the operator would change in a live cluster."),
    "baseline": Entry("baseline", "Record what the GPU stack is while all is well, and show what was recorded."),
    "drift": Entry("drift", "Tell what of the GPU stack is no longer as a baseline says."),
    "driver": Entry("driver", "See what driver upgrades would do next, and why nodes wait."),
    "verify": Entry("verify", "Verify an installed GPU stack, node by node, and say why pods are where they are."),
    "doctor": Entry("doctor", "Find the lowest broken layer of the GPU stack, its cause and its fix."),
    "must-gather": Entry("must_gather", "Gather what explains the GPU stack into one file, without its secrets."),
    "cuda-test": Entry("cuda_test", "Run a CUDA program on every GPU node; nothing is left behind."),
    "crds": Entry("crds", "Print the custom resource definitions."),
    "manage-crds": Entry(
        "manage_crds", "Bring the custom resource definitions of a cluster up to date, or delete them."
    ),
    "operator": Entry("operator", "Run the operator."),
    "lab": Entry("lab", "Try everything in an embedded cluster: no GPU, no root, no network."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; ``None`` for an unknown name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f".{entry.module}", __package__)
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command list from the table, importing nothing."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="groundplane")
def main() -> None:
    """Bring up, keep and explain the NVIDIA GPU stack of a Kubernetes cluster."""


if __name__ == "__main__":
    sys.exit(main())
