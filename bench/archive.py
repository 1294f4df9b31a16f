"""``python -m bench archive``: must-gather of 1,000 nodes of which 20 are broken, and the doctor on what it wrote.

The cluster is that of ``python -m bench doctor``. Figures: time and peak memory of both commands as processes, and the
archive's size.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from groundplane.lab.cluster import Lab

from . import doctor
from .table import machine, show

READ_S: Final = 5.0
READ_MIB: Final = 300.0


class Run(NamedTuple):
    """One command as a process."""

    seconds: float
    mebibytes: float
    """Peak resident memory."""
    code: int
    out: str


_CHILD: Final = (
    "import json,resource,subprocess,sys,time\n"
    "begin=time.monotonic()\n"
    "done=subprocess.run(sys.argv[1:],stdout=subprocess.PIPE,text=True)\n"
    "peak=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
    "print(json.dumps([time.monotonic()-begin,peak/1024,done.returncode,done.stdout]))\n"
)
"""Runs a command as its only child, so that the peak is that command's."""


async def run(*arguments: object, environment: dict[str, str] | None = None) -> Run:
    """A groundplane command, timed from outside."""
    command = [sys.executable, "-m", "groundplane.cli.main", *map(str, arguments)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _CHILD, *command), env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    return Run(*json.loads(out))


async def measure() -> bool:
    """Both commands; True if reading was within its limits and found all that is broken."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "it.tar.gz")
        async with Lab(hollow=doctor.NODES, hollow_gpus=8, operator=False) as lab:
            await doctor.fill(lab)
            reach = {"KUBECONFIG": str(lab.kubeconfig(Path(folder) / "kubeconfig"))}
            gathered = await run("must-gather", "--no-exec", "--file", path, environment=reach)
        size = path.stat().st_size / (1 << 20)  # noqa: ASYNC240
        read = await run("doctor", "--from", path, "-o", "json")
    sick = {
        node
        for each in json.loads(read.out)["findings"]
        if each["outcome"] in ("fail", "warn")
        for node in each["nodes"]
    }
    rows = [
        ("must-gather", gathered.seconds, gathered.mebibytes, f"{size:.1f} MiB written"),
        ("doctor --from", read.seconds, read.mebibytes, f"{len(sick)} nodes found broken"),
        ("limit of doctor --from", READ_S, READ_MIB, f"{doctor.BROKEN} nodes"),
    ]
    title = f"archive of {doctor.NODES} nodes, {doctor.BROKEN} broken"
    show(title, ("command", "seconds", "peak MiB", "what"), rows, machine())
    return gathered.code == 0 and read.seconds < READ_S and read.mebibytes < READ_MIB and len(sick) == doctor.BROKEN


def main() -> int:
    """Exit code 1 if a limit is missed."""
    return 0 if asyncio.run(measure()) else 1


if __name__ == "__main__":
    sys.exit(main())
