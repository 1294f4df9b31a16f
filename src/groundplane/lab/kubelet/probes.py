"""Probes: startup, liveness and readiness, by command, HTTP or TCP.

A probe runs beside its container until that ends and reports each change of its verdict. HTTP and TCP are answered by
the ports that the program listens on, inside the process.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ..clock import LabClock
from ..programs import CommandNotFoundError
from .runtime import ContainerRuntime, Process

Probe = Mapping[str, Any]
DEFAULTS = {
    "initialDelaySeconds": 0,
    "periodSeconds": 10,
    "timeoutSeconds": 1,
    "successThreshold": 1,
    "failureThreshold": 3,
}


def setting(probe: Probe, name: str) -> int:
    """A number of the probe, or its default; zero counts as unset except for the delay."""
    return int(probe.get(name) or DEFAULTS[name])


async def watch(
    probe: Probe,
    process: Process,
    runtime: ContainerRuntime,
    clock: LabClock,
    report: Callable[[bool, str], None],
) -> None:
    """Probe until cancelled: `report(verdict, message)` each time a threshold of successes or failures is reached."""
    verdict: bool | None = None
    streak, last = 0, None
    await clock.sleep(setting(probe, "initialDelaySeconds"))
    while process.running:
        good, message = await once(probe, process, runtime, clock)
        streak = streak + 1 if good is last else 1
        last = good
        needed = setting(probe, "successThreshold" if good else "failureThreshold")
        if streak >= needed and (verdict is not good or not good):
            verdict = good
            report(good, message)
        await clock.sleep(setting(probe, "periodSeconds"))


async def once(probe: Probe, process: Process, runtime: ContainerRuntime, clock: LabClock) -> tuple[bool, str]:
    """Probe once; the verdict and, for a failure, the kubelet's text."""
    try:
        async with clock.timeout(setting(probe, "timeoutSeconds") + _SLACK_S * clock.speed):
            return await _check(probe, process, runtime)
    except TimeoutError:
        return False, f"command timed out after {setting(probe, 'timeoutSeconds')}s"


_SLACK_S = 1.0  # real seconds: a fast lab clock must not turn a busy machine into a failed probe


async def _check(probe: Probe, process: Process, runtime: ContainerRuntime) -> tuple[bool, str]:
    if "exec" in probe:
        output = bytearray()
        argv = tuple(probe["exec"].get("command") or ())
        try:
            code = await runtime.execute(process, argv, out=output.extend, err=output.extend)
        except CommandNotFoundError as error:
            return False, str(error)
        return code == 0, output.decode(errors="replace").strip()
    kind = next((name for name in ("httpGet", "tcpSocket", "grpc") if name in probe), "")
    if not kind:
        return False, "the probe has no handler; give it one of exec, httpGet, tcpSocket, grpc"
    port = port_number(process.container.spec, probe[kind].get("port"))
    address = f"{process.container.pod.get('status', {}).get('podIP', '127.0.0.1')}:{port}"
    if port not in process.container.ports:
        return False, f"dial tcp {address}: connect: connection refused"
    handler = process.container.ports[port]
    if kind != "httpGet" or handler is None:
        return True, ""
    try:
        status = (await handler(probe[kind].get("path") or "/")).status
    except OSError as error:
        return False, f"Get http://{address}: {error.strerror or error}"
    return 200 <= status < 400, f"HTTP probe failed with statuscode: {status}"


def port_number(container: Mapping[str, Any], port: Any) -> int:
    """A probe's port as a number; a name is looked up in the container's ports, 0 if it is not there."""
    if isinstance(port, int) or str(port).isdecimal():
        return int(port)
    return next((int(item["containerPort"]) for item in container.get("ports") or () if item.get("name") == port), 0)
