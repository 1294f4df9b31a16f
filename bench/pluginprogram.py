"""The device plugin as a process whose files lie below a folder: `python -m bench.pluginprogram FOLDER`.

Apart from that it is the real program: what it imports and how much memory it takes.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from groundplane.node import ownprocess, programs
from groundplane.node.hostroot import HostRoot

NAME = "nvidia-device-plugin"


class InFolder(ownprocess.OwnProcess):
    """The real process, but for its files."""

    def __init__(self, folder: Path, argv: Sequence[str], env: Mapping[str, str]) -> None:
        super().__init__(argv, env)
        self._root = HostRoot(folder)


def main() -> int:
    program = programs.find(NAME)
    assert program is not None

    async def run() -> int:
        return await program(InFolder(Path(sys.argv[1]), [NAME], os.environ))

    return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main())
