"""A kubelet that asks a device plugin everything it can be asked, and writes the answers down as plain values."""

import asyncio
import contextlib
import json
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec

from groundplane.node.kubeletapi.stubs import deviceplugin_pb2 as wire
from groundplane.node.kubeletapi.stubs import deviceplugin_pb2_grpc as rpc

from .nodeworld import Command, Running, Scenario, World

START_S = 20.0
QUIET_S = 0.2
QUIET_MIXED_S = 0.8
CALL_S = 20.0
END_S = 15.0
_WAITING = re.compile(
    "waiting indefinitely|blocking indefinitely|trying again in|retrying in|no devices", re.IGNORECASE
)
_HEAD = re.compile(r"^[IWEF]\d{4} [\d:.]+ +\d+ (\S+:\d+\] )?", re.MULTILINE)
_UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")

Plain = dict[str, Any]


class Figures(msgspec.Struct):
    """One run: milliseconds from its start until it had registered (or labelled), of each call, and resident MiB."""

    done_ms: float = 0.0
    allocate_ms: list[float] = []
    memory_mib: float = 0.0


class _Kubelet(rpc.RegistrationServicer):
    def __init__(self) -> None:
        self.requests: list[tuple[float, Any]] = []

    async def Register(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self.requests.append((time.perf_counter(), request))
        return wire.Empty()


@contextlib.asynccontextmanager
async def _serving(folder: Path) -> AsyncIterator[_Kubelet]:
    kubelet = _Kubelet()
    server = grpc.aio.server()
    rpc.add_RegistrationServicer_to_server(kubelet, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{folder}/kubelet.sock")
    await server.start()
    try:
        yield kubelet
    finally:
        await server.stop(None)


async def observe(
    command: Command, folder: Path, library: Path, scenario: Scenario, *, rounds: int = 0
) -> tuple[Plain, Figures]:
    """Run a plugin on a machine: what it did, and its figures; Allocate is timed ``rounds`` times."""
    world = World(folder, library, scenario)
    figures = Figures()
    async with _serving(world.plugins) as kubelet, world.running(command) as running:
        await _settled(kubelet, running, QUIET_MIXED_S if "mixed" in repr(scenario) else QUIET_S)
        found: Plain = {"exit": running.code, "config": config_of(running.log), "resources": {}}
        if running.code is not None:
            found["error"] = last_error(running.log)
        if kubelet.requests:
            figures.done_ms = (kubelet.requests[0][0] - running.began) * 1000
        for _, request in kubelet.requests:
            async with grpc.aio.insecure_channel(f"unix:{world.plugins / request.endpoint}") as channel:
                stub: Any = rpc.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
                found["resources"][request.resource_name] = await _ask(stub, request)
                figures.allocate_ms += await _timed(stub, rounds)
        found["cdi"] = _cdi(world.folder / "run/cdi")
        if running.code is None:
            figures.memory_mib = running.memory_mib()
            running.process.terminate()
            found["ended"] = await running.end(END_S)
            found["sockets"] = sorted(path.name for path in world.plugins.iterdir() if path.name != "kubelet.sock")
        return found, figures


async def _settled(kubelet: _Kubelet, running: Running, quiet_s: float) -> None:
    """Wait until the program has ended, waits, or has registered all that it will."""
    deadline = time.perf_counter() + START_S
    while time.perf_counter() < deadline:
        if running.code is not None:
            return
        if kubelet.requests and time.perf_counter() - kubelet.requests[-1][0] > quiet_s:
            return
        if _WAITING.search(running.log) and not kubelet.requests:
            await asyncio.sleep(quiet_s)
            if not kubelet.requests:
                return
        await asyncio.sleep(0.02)


def last_error(log: str) -> str:
    """What a program that has ended said last."""
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def config_of(log: str) -> Any:
    """The configuration in force that a program logs; None if it did not get so far."""
    _, found, after = _HEAD.sub("", log).partition("Running with config:\n{\n")
    return json.JSONDecoder().raw_decode("{" + after)[0] if found else None


def _cdi(folder: Path) -> Plain:
    found: Plain = {}
    for path in sorted(folder.glob("*")) if folder.is_dir() else ():
        spec = json.loads(path.read_text())
        found[path.name] = {"kind": spec["kind"], "devices": {each["name"]: _edits(each) for each in spec["devices"]}}
        found[path.name]["common"] = _edits(spec)
    return found


def _edits(holder: Plain) -> Plain:
    edits = holder.get("containerEdits", {})
    nodes = {node["path"]: node.get("hostPath", node["path"]) for node in edits.get("deviceNodes", ())}
    others = {name: edits.get(name, []) for name in ("mounts", "hooks", "additionalGids")}
    return {"nodes": nodes, "env": edits.get("env", []), **others}


# --- questions --------------------------------------------------------------------------------------------------------


async def _ask(stub: Any, request: Any) -> Plain:
    options = await stub.GetDevicePluginOptions(wire.Empty(), timeout=CALL_S)
    devices = {each.ID: each for each in await _devices(stub)}
    ids = sorted(devices)
    found: Plain = {
        "registration": [request.version, request.endpoint, *_options(request.options)],
        "options": _options(options),
        "devices": {
            name: [each.health, [node.ID for node in each.topology.nodes] if each.HasField("topology") else None]
            for name, each in devices.items()
        },
        "allocate": {name: await _allocate(stub, wanted) for name, wanted in _wishes(ids).items()},
        "prefer": {name: await _prefer(stub, *wanted) for name, wanted in _preferences(ids).items()},
    }
    started = await stub.PreStartContainer(wire.PreStartContainerRequest(devices_ids=ids[:1]), timeout=CALL_S)
    found["prestart"] = len(started.SerializeToString())
    return found


def _options(options: Any) -> list[bool]:
    return [options.pre_start_required, options.get_preferred_allocation_available]


def _wishes(ids: Sequence[str]) -> dict[str, list[list[str]]]:
    """Requests by what they are: a list of devices a container."""
    unknown = "GPU-00000000-0000-0000-0000-000000000000"
    return {
        "first": [[ids[0]]],
        "last two reversed": [[*reversed(ids[-2:])]],
        "all": [list(ids)],
        "none": [[]],
        "no container": [],
        "two containers": [[ids[0]], [ids[-1]]],
        "twice the same": [[ids[0], ids[0]]],
        "unknown": [[unknown]],
        "known and unknown": [[ids[0], unknown]],
        "one bad of two": [[ids[0]], [unknown]],
        "without replica": [[ids[0].partition("::")[0]]],
        "with replica": [[f"{ids[0].partition('::')[0]}::0"]],
        "replica too many": [[f"{ids[0].partition('::')[0]}::999"]],
    }


async def _allocate(stub: Any, wanted: list[list[str]]) -> Any:
    request = wire.AllocateRequest(
        container_requests=[wire.ContainerAllocateRequest(devices_ids=each) for each in wanted]
    )
    try:
        answer = await stub.Allocate(request, timeout=CALL_S)
    except grpc.aio.AioRpcError as error:
        return [error.code().name, error.details()]
    return [
        {
            "envs": dict(each.envs),
            "mounts": [[mount.container_path, mount.host_path, mount.read_only] for mount in each.mounts],
            "devices": [[node.container_path, node.host_path, node.permissions] for node in each.devices],
            "annotations": {_UUID4.sub("UUID4", key): value for key, value in each.annotations.items()},
            "cdi": [device.name for device in each.cdi_devices],
        }
        for each in answer.container_responses
    ]


def _preferences(ids: Sequence[str]) -> dict[str, tuple[list[str], list[str], int]]:
    chance = random.Random(7)
    found: dict[str, tuple[list[str], list[str], int]] = {}
    for size in (-1, 0, 1, 2, 3, 4, len(ids), len(ids) + 1):
        found[f"{size} of all"] = (list(ids), [], size)
        found[f"{size} of all with last"] = (list(ids), [ids[-1]], size)
    for number in range(12):
        some = chance.sample(list(ids), chance.randint(1, len(ids)))
        size = chance.randint(1, len(some))
        must = chance.sample(some, chance.randint(0, min(size, 2)))
        found[f"chance {number}: {size} of {len(some)} with {len(must)}"] = (some, must, size)
    found["must more than size"] = (list(ids), list(ids[:3]), 1)
    found["must not available"] = (list(ids[1:]), [ids[0]], 2)
    found["unknown available"] = ([*ids, "GPU-unknown"], [], 1)
    found["unknown must"] = (list(ids), ["GPU-unknown"], 1)
    return found


async def _prefer(stub: Any, available: list[str], must: list[str], size: int) -> Any:
    wanted = wire.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
    )
    request = wire.PreferredAllocationRequest(container_requests=[wanted])
    try:
        answer = await stub.GetPreferredAllocation(request, timeout=CALL_S)
    except grpc.aio.AioRpcError as error:
        return [error.code().name, error.details()]
    chosen = list(answer.container_responses[0].deviceIDs)
    if not any("::" in name or name.startswith("MIG-") for name in chosen):
        return sorted(chosen)
    spread = Counter(name.partition("::")[0] for name in chosen if name not in must)
    left = Counter(name.partition("::")[0] for name in available)
    left.subtract(name.partition("::")[0] for name in chosen if name in available)
    return {
        "must": sorted(set(must) & set(chosen)),
        "number": len(chosen),
        "left": sorted(left.values()),
        "spread": sorted(spread.values()),
        "known": set(chosen) <= {*available, *must},
        "distinct": len(set(chosen)) == len(chosen),
    }


async def _timed(stub: Any, rounds: int) -> list[float]:
    """Milliseconds of so many requests for one device."""
    devices = await _devices(stub)
    container = wire.ContainerAllocateRequest(devices_ids=[min(each.ID for each in devices)])
    request = wire.AllocateRequest(container_requests=[container])
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        await stub.Allocate(request, timeout=CALL_S)
        times.append((time.perf_counter() - began) * 1000)
    return times


async def _devices(stub: Any) -> list[Any]:
    """The first list that the plugin tells."""
    stream = stub.ListAndWatch(wire.Empty())
    first = await asyncio.wait_for(stream.read(), CALL_S)
    stream.cancel()
    return list(first.devices)


def share(times: Sequence[float], part: float) -> float | None:
    """The time that a part of the calls does not exceed; None without calls."""
    return sorted(times)[min(len(times) - 1, int(len(times) * part))] if times else None
