"""Child processes of the operator's benchmark, with their memory and CPU time: the operator, and the bare client.

The bare client (``python -m bench.process URL IN_FLIGHT``) lists the nodes and patches each once, so many requests in
flight, through the same client library, and does nothing else.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from groundplane.api import names
from groundplane.cluster import client, config, kinds
from groundplane.cluster.views import MetaView

REFERENCE_IN_FLIGHT = 16
"""Of the bare client that the limit was stated for."""
LABELS = (
    *(names.GPU_PRESENT, names.DEPLOY_DRIVER, names.DEPLOY_TOOLKIT, names.DEPLOY_DEVICE_PLUGIN, names.DEPLOY_GFD),
    *(names.DEPLOY_DCGM, names.DEPLOY_DCGM_EXPORTER, names.DEPLOY_NODE_STATUS_EXPORTER),
    *(names.DEPLOY_OPERATOR_VALIDATOR, names.DEPLOY_CLIENT),
)
"""What a node of the benchmark's policy gets."""


class Usage(msgspec.Struct, frozen=True):
    """What a process used in all its life."""

    peak_mib: float
    cpu_s: float


STOP_S = 20.0
"""How long a process may take to end when it is asked to; then it is killed."""


class Child:
    """A process whose use of memory and CPU is measured. Its output is kept for the case that it fails."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
        self._process = subprocess.Popen(
            argv, env={**os.environ, **(environment or {})}, stdout=self._log, stderr=self._log
        )

    def check(self) -> None:
        """Raise with the end of the output when the process has ended by itself."""
        status = self._process.poll()
        if status is not None:
            raise RuntimeError(f"{self._process.args!r} ended ({status}): {self.output()[-2000:]}")

    def output(self) -> str:
        """What the process printed."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def memory_mib(self, field: str) -> float:
        """``VmRSS`` or ``VmHWM`` (its peak) in MiB, 0 on a system without /proc.

        What ``wait4`` reports in the end is no use: it counts what the parent held when it started the process.
        """
        try:
            lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        except FileNotFoundError:
            return 0.0
        found = dict(line.split(":", 1) for line in lines if ":" in line)
        return int(found[field].split()[0]) / 1024 if field in found else 0.0

    def cpu_s(self) -> float:
        """CPU seconds so far, 0 on a system without /proc."""
        return cpu_of(self._process.pid)

    async def stop(self) -> Usage:
        """End it by SIGTERM and wait for it; the loop goes on serving what it still has to say."""
        if self._process.poll() is not None:  # ended by itself, which check() tells
            self._log.close()
            return Usage(0.0, 0.0)
        peak = self.memory_mib("VmHWM")
        self._process.send_signal(signal.SIGTERM)
        waiting = asyncio.create_task(asyncio.to_thread(os.wait4, self._process.pid, 0))
        try:
            _pid, status, usage = await asyncio.wait_for(asyncio.shield(waiting), STOP_S)
        except TimeoutError:
            self.kill()
            _pid, status, usage = await waiting
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._log.close()
        return Usage(peak, usage.ru_utime + usage.ru_stime)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far, 0 on a system without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def operator(kubeconfig: Path, namespace: str) -> Child:
    """Start the shipped operator."""
    flags = ("--leader-elect", "--metrics-bind-address", "127.0.0.1:0", "--health-probe-bind-address", "127.0.0.1:0")
    settings = {"KUBECONFIG": str(kubeconfig), "OPERATOR_NAMESPACE": namespace}
    return Child([sys.executable, "-m", "groundplane", "operator", *flags], settings)


def bare_client(url: str, in_flight: int) -> Child:
    """Start the bare client."""
    return Child([sys.executable, "-m", "bench.process", url, str(in_flight)])


async def patch_all(url: str, in_flight: int) -> None:
    """The bare client: list, then one merge patch a node."""
    body: dict[str, Any] = {
        "metadata": {"labels": dict.fromkeys(LABELS, "true"), "annotations": {names.DRIVER_UPGRADE_ENABLED: "true"}}
    }
    async with client.Client(config.Config(server=url), user_agent="bare", max_in_flight=in_flight) as api:
        waiting = [item.metadata.name for item in (await api.list(kinds.NODE, view=MetaView)).items]

        async def worker() -> None:
            while waiting:
                await api.patch(kinds.NODE, waiting.pop(), body, view=MetaView)

        await asyncio.gather(*(worker() for _ in range(in_flight)))
    await asyncio.Event().wait()  # until the harness, which sees the writes, has measured and ends us


if __name__ == "__main__":
    asyncio.run(patch_all(sys.argv[1], int(sys.argv[2])))
