"""`mps-control-daemon` as a whole, with simulated GPUs and a model of NVIDIA's executables (contract, section 6)."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from node.fakeprocess import FakeProcess, until

from groundplane.node.devices.simulated import GpuEntry, Machine, Mig, SimulatedSource, describe
from groundplane.node.mps import daemon, main
from groundplane.node.process import Completed

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
MPS_10 = {"sharing": {"mps": {"resources": [{"name": GPU, "replicas": 10}]}}}
HEALTH = "get_default_active_thread_percentage"


class Node:
    """A node with GPUs, NVIDIA's executables on it, and the program."""

    def __init__(self, folder: Path) -> None:
        self.process = FakeProcess(folder, ["/usr/bin/mps-control-daemon"], {"CONFIG_FILE": "/config/config.yaml"})
        self.machine = self.gpus("H100-SXM5-80GB", "H100-SXM5-80GB")
        self.process.commands |= {"nvidia-smi": self.smi, "nvidia-cuda-mps-control": self.control}
        self.modes: dict[str, str] = {}
        self.daemons: dict[str, list[str]] = {}
        """Commands that each running daemon was sent, by pipe directory."""
        self.failing: dict[str, Completed] = {}
        """What a command (its first word, `-d`, or a compute mode) answers instead."""
        self.said: list[str] = []
        self.running: asyncio.Task[int] | None = None

    def gpus(self, *entries: str | GpuEntry) -> Machine:
        file = self.process.kernel.mkdir("/var/lib/groundplane") / "devices.yaml"
        machine = Machine.create(file, describe("n1", entries, "580.65.06"))
        self.process.source = SimulatedSource(file, library=lambda: True, loaded=lambda: True)
        return machine

    @property
    def uuids(self) -> list[str]:
        return [gpu.uuid for gpu in self.machine.read().inventory.gpus]

    def smi(self, argv: Sequence[str], env: Mapping[str, str], stdin: str) -> Completed:
        _, i, uuid, c, mode = argv
        assert (i, c) == ("-i", "-c")
        self.said.append(f"{mode} {self.uuids.index(uuid)}")
        if mode in self.failing:
            return self.failing[mode]
        self.modes[uuid] = mode
        return Completed(0, "", "")

    def control(self, argv: Sequence[str], env: Mapping[str, str], stdin: str) -> Completed:
        pipe = env["CUDA_MPS_PIPE_DIRECTORY"]
        command = "-d" if argv[1:] == ("-d",) or list(argv[1:]) == ["-d"] else stdin.strip()
        self.said.append(command)
        if (failure := self.failing.get(command.split()[0])) is not None:
            return failure
        if command == "-d":
            assert pipe not in self.daemons, "An instance of this daemon is already running"
            log = self.process.path(env["CUDA_MPS_LOG_DIRECTORY"])
            assert self.process.path(pipe).is_dir()
            (log / "control.log").write_text("Starting control daemon\n")
            self.daemons[pipe] = []
            return Completed(0, "", "")
        if pipe not in self.daemons:
            return Completed(1, "Cannot find MPS control daemon process\n", "")
        if command == "quit":
            del self.daemons[pipe]
            return Completed(0, "", "")
        self.daemons[pipe].append(command)
        return Completed(0, "10.0\n" if command == HEALTH else "", "")

    def configure(self, document: Any) -> None:
        self.process.write("/config/config.yaml", yaml.safe_dump(document))

    def start(self) -> None:
        self.running = asyncio.create_task(main.run(self.process))

    async def ended(self) -> int:
        assert self.running is not None
        return await asyncio.wait_for(self.running, 20)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send(number)
        return await self.ended()

    def there(self, path: str) -> bool:
        return self.process.path(path).exists()

    async def ready(self) -> None:
        await until(lambda: self.there("/mps/.ready"), ".ready")

    def logged(self, text: str) -> int:
        return self.process.stderr.count(text)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    if made.running is not None and not made.running.done():
        made.running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await made.running


async def test_section_6_start_and_stop(node: Node) -> None:
    node.configure(MPS_10)
    node.start()
    await node.ready()
    pipe = "/mps/nvidia.com/gpu/pipe"
    limits = ["set_default_device_pinned_mem_limit 0 8155M", "set_default_device_pinned_mem_limit 1 8155M"]
    assert node.said == [
        "EXCLUSIVE_PROCESS 0",
        "EXCLUSIVE_PROCESS 1",
        "-d",
        *limits,
        "set_default_active_thread_percentage 10",
    ]
    assert list(node.daemons) == [pipe]
    assert node.there("/mps/nvidia.com/gpu/.started")
    assert node.process.path(pipe).stat().st_mode & 0o777 == 0o755
    await until(lambda: node.process.stdout == "Starting control daemon\n", "the log to be printed")
    log = node.process.path("/mps/nvidia.com/gpu/log/control.log")
    log.write_text(log.read_text() + "User did not send valid credentials\n")
    node.said.clear()
    assert await node.stop() == 0
    assert node.said == ["quit", "DEFAULT 1", "DEFAULT 0"]
    assert node.process.stdout == "Starting control daemon\nUser did not send valid credentials\n"
    assert set(node.modes.values()) == {"DEFAULT"}
    left = sorted(str(path.relative_to(node.process.path("/mps"))) for path in node.process.path("/mps").rglob("*"))
    assert left == ["nvidia.com", "nvidia.com/gpu", "nvidia.com/gpu/pipe"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
@pytest.mark.parametrize(
    "document",
    [
        {},
        {"sharing": {"timeSlicing": {"resources": [{"name": GPU, "replicas": 4}]}}},
        {"sharing": {"mps": {"resources": [{"name": "nvidia.com/other", "replicas": 4}]}}},
    ],
)
async def test_section_6_without_a_shared_resource_it_waits_ready(
    node: Node, document: dict[str, Any], number: signal.Signals
) -> None:
    node.configure(document)
    node.start()
    await node.ready()
    assert (node.said, node.logged("No resource is shared by MPS")) == ([], 1)
    assert await node.stop(number) == 0
    assert not node.there("/mps/.ready")


async def test_without_a_config_file_it_waits_ready_and_needs_no_driver(node: Node) -> None:
    node.process.env = {}
    node.process.source = None
    node.start()
    await node.ready()
    assert await node.stop() == 0


async def test_section_6_the_advertised_name_is_the_folders(node: Node) -> None:
    mps = {"renameByDefault": True, "resources": [{"name": GPU, "replicas": 2}]}
    node.configure({"sharing": {"mps": mps}})
    node.start()
    await node.ready()
    assert list(node.daemons) == ["/mps/nvidia.com/gpu.shared/pipe"]
    assert node.there("/mps/nvidia.com/gpu.shared/.started")


async def test_section_6_hangup_stops_and_starts_with_the_new_configuration(node: Node) -> None:
    node.configure(MPS_10)
    node.start()
    await node.ready()
    node.configure({"sharing": {"mps": {"renameByDefault": True, "resources": [{"name": GPU, "replicas": 4}]}}})
    node.process.send(signal.SIGHUP)
    await until(lambda: node.there(f"/mps/{SHARED}/.started"), "the new daemon")
    assert list(node.daemons) == ["/mps/nvidia.com/gpu.shared/pipe"]
    assert "set_default_active_thread_percentage 25" in node.said
    assert not node.there(f"/mps/{GPU}/.started")
    await node.ready()


# --- failure ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "before", "said"),
    [
        ("EXCLUSIVE_PROCESS", ["DEFAULT 0"], "compute mode EXCLUSIVE_PROCESS of GPU GPU-"),
        (
            "-d",
            ["quit", "DEFAULT 1", "DEFAULT 0"],
            "nvidia-cuda-mps-control -d for /mps/nvidia.com/gpu/pipe: exit code 1: no",
        ),
        (
            "set_default_device_pinned_mem_limit",
            ["quit", "DEFAULT 1", "DEFAULT 0"],
            "pinned_mem_limit 0 8155M' to the MPS",
        ),
        ("set_default_active_thread_percentage", ["quit", "DEFAULT 1", "DEFAULT 0"], "exit code 1: no such luck"),
    ],
)
async def test_section_6_a_daemon_that_fails_is_started_again_in_30_seconds(
    node: Node, command: str, before: list[str], said: str
) -> None:
    node.configure(MPS_10)
    node.failing[command] = Completed(1, "", "no such luck\n")
    node.start()
    await until(lambda: node.logged("Restarting all in 30 s"), "the failure")
    assert said in node.process.stderr
    assert node.said[-len(before) :] == before
    assert (node.daemons, node.there("/mps/.ready"), node.there(f"/mps/{GPU}/.started")) == ({}, False, False)
    node.failing.clear()
    node.process.pace = 300.0
    node.process.send(signal.SIGHUP)
    await node.ready()
    assert list(node.daemons) == ["/mps/nvidia.com/gpu/pipe"]


async def test_section_6_the_restart_comes_by_itself(node: Node) -> None:
    node.process.pace = 300.0
    node.configure(MPS_10)
    node.failing["-d"] = Completed(1, "", "")
    node.start()
    await until(lambda: node.logged("Restarting all in 30 s") > 1, "the second failure")
    node.failing.clear()
    await node.ready()
    assert await node.stop() == 0


async def test_section_6_a_daemon_that_dies_is_started_again(node: Node) -> None:
    node.process.pace = 300.0
    node.configure(MPS_10)
    node.start()
    await node.ready()
    node.daemons.clear()
    await until(lambda: node.logged("it no longer answers"), "its death to be noticed")
    await until(lambda: node.daemons, "the new daemon")
    assert node.logged(f"({daemon.HEALTH_FAILURES}/{daemon.HEALTH_FAILURES})") == 1


async def test_a_daemon_that_is_slow_once_is_left_alone(node: Node) -> None:
    node.process.pace = 300.0
    node.configure(MPS_10)
    node.start()
    await node.ready()
    node.failing[HEALTH] = Completed(1, "busy", "")
    await until(lambda: node.logged("(1/3)"), "a question without an answer")
    node.failing.clear()
    await until(lambda: node.said[-2:] == [HEALTH] * 2, "two questions with an answer")
    assert "quit" not in node.said


@pytest.mark.parametrize("missing", ["nvidia-smi", "nvidia-cuda-mps-control"])
async def test_executables_that_are_missing_are_named(node: Node, missing: str) -> None:
    del node.process.commands[missing]
    node.configure(MPS_10)
    node.start()
    await until(lambda: node.logged(f"{missing} is not in this container"), "the failure")
    assert await node.stop() == 0


@pytest.mark.parametrize(
    ("model", "replicas", "fits"), [("V100-SXM2-32GB", 16, True), ("V100-SXM2-32GB", 17, False), ("T4", 49, False)]
)
async def test_section_6_too_many_replicas(node: Node, model: str, replicas: int, fits: bool) -> None:
    node.machine = node.gpus(model)
    node.configure({"sharing": {"mps": {"resources": [{"name": GPU, "replicas": replicas}]}}})
    node.start()
    if fits:
        await node.ready()
        return
    await until(lambda: node.logged("MPS clients: lower the replicas"), "the failure")
    assert node.said == []
    assert not node.there("/mps/.ready")


async def test_a_signal_during_the_start_ends_it(node: Node) -> None:
    """The daemon has gone to the background but its first limit hangs."""
    node.configure(MPS_10)
    execute = node.process.execute

    async def hanging(argv: Sequence[str], *, env: Any = None, stdin: str = "") -> Completed:
        if stdin.startswith("set_"):
            await asyncio.Event().wait()
        return await execute(argv, env=env, stdin=stdin)

    node.process.execute = hanging  # type: ignore[method-assign]
    node.start()
    await until(lambda: node.daemons, "the daemon")
    assert await node.stop() == 0
    assert (node.daemons, set(node.modes.values())) == ({}, {"DEFAULT"})


async def test_a_stop_that_fails_does_every_step_all_the_same(node: Node) -> None:
    node.configure(MPS_10)
    node.start()
    await node.ready()
    node.failing |= {"quit": Completed(1, "", "stuck"), "DEFAULT": Completed(4, "", "Insufficient Permissions")}
    assert await node.stop() == 0
    assert (node.logged("exit code 1: stuck"), node.logged("exit code 4: Insufficient Permissions")) == (1, 2)
    assert not node.there(f"/mps/{GPU}/.started")


async def test_what_a_killed_run_left_is_ended_first(node: Node) -> None:
    node.process.write("/mps/.ready", "")
    for resource in (GPU, "nvidia.com/gpu.shared"):
        node.process.write(f"/mps/{resource}/.started", "")
        node.process.write(f"/mps/{resource}/log/control.log", "old\n")
        node.daemons[f"/mps/{resource}/pipe"] = []
    node.configure(MPS_10)
    node.start()
    await until(lambda: node.logged("is left over from a run that was killed") == 2, "what is left over to be seen")
    await node.ready()
    assert list(node.daemons) == ["/mps/nvidia.com/gpu/pipe"]
    assert not node.there("/mps/nvidia.com/gpu.shared/.started")
    await until(lambda: node.process.stdout, "the log")
    assert node.process.stdout == "Starting control daemon\n"


# --- MIG --------------------------------------------------------------------------------------------------------------

CUT = GpuEntry("H100-SXM5-80GB", mig=Mig(True, ("3g.40gb", "3g.40gb")))


def minors(node: Node) -> None:
    lines = [
        f"gpu{g}/gi{i}/{ci}access {g * 100 + i * 10 + n}"
        for g in range(2)
        for i in range(15)
        for n, ci in enumerate(("", "ci0/"))
    ]
    node.process.write_kernel("/proc/driver/nvidia-caps/mig-minors", "\n".join(lines))


async def test_section_6_mig_devices_get_no_daemon(node: Node) -> None:
    node.machine = node.gpus(CUT, CUT)
    minors(node)
    node.process.env = {**node.process.env, "MIG_STRATEGY": "single"}
    node.configure(MPS_10)
    node.start()
    await node.ready()
    assert (node.said, node.logged("MPS does not share MIG devices: nvidia.com/gpu gets no daemon")) == ([], 1)


async def test_section_6_whole_gpus_beside_mig_devices_get_theirs(node: Node) -> None:
    node.machine = node.gpus(CUT, "H100-SXM5-80GB")
    minors(node)
    node.process.argv = ["mps-control-daemon", "--mig-strategy=mixed"]
    entries = [{"name": GPU, "replicas": 4}, {"name": "nvidia.com/mig-3g.40gb", "replicas": 2}]
    node.configure({"sharing": {"mps": {"resources": entries}}})
    node.start()
    await node.ready()
    assert list(node.daemons) == ["/mps/nvidia.com/gpu/pipe"]
    assert node.said[:2] == ["EXCLUSIVE_PROCESS 1", "-d"]
    assert "set_default_device_pinned_mem_limit 1 20389M" in node.said
    assert node.logged("nvidia.com/mig-3g.40gb gets no daemon") == 1


# --- what ends it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"version": "v2"}, "unknown version: v2"),
        ({"sharing": {"mps": {"resources": [{"name": GPU, "replicas": 1}]}}}, "replicas"),
        ({"flags": {"migStrategy": "some"}}, "unknown MIG strategy: some"),
        (None, "/config/config.yaml cannot be read"),
    ],
)
async def test_a_configuration_that_is_wrong_ends_it(node: Node, document: Any, said: str) -> None:
    if document is not None:
        node.configure(document)
    assert await main.run(node.process) == 1
    assert said in node.process.stderr
    assert not node.there("/mps/.ready")


async def test_a_configuration_that_becomes_wrong_ends_it_and_its_daemons(node: Node) -> None:
    node.configure(MPS_10)
    node.start()
    await node.ready()
    node.configure({"version": "v2"})
    assert await node.stop(signal.SIGHUP) == 1
    assert (node.daemons, node.there("/mps/.ready")) == ({}, False)


async def test_a_driver_that_is_missing_ends_it(node: Node) -> None:
    file = node.machine.file
    node.process.source = SimulatedSource(file, library=lambda: False, loaded=lambda: True)
    node.configure(MPS_10)
    assert await main.run(node.process) == 1
    assert "libnvidia-ml.so.1" in node.process.stderr


async def test_a_root_that_cannot_be_written_ends_it(node: Node) -> None:
    node.process.write("/mps", "a file")
    node.configure({})
    assert await main.run(node.process) == 1
    assert "the MPS root cannot be written" in node.process.stderr


# --- SELinux ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "labelled"),
    [
        ("/sys/fs/selinux/enforce", "1", True),
        ("/proc/filesystems", "nodev\tsysfs\nnodev\tselinuxfs\n", True),
        ("/proc/filesystems", "nodev\tsysfs\n\text4\n", False),
        ("/proc/uptime", "1 1", False),
    ],
)
async def test_section_6_selinux_label_of_the_pipe_directory(
    node: Node, monkeypatch: pytest.MonkeyPatch, path: str, text: str, labelled: bool
) -> None:
    labels: dict[Path, tuple[str, bytes]] = {}
    monkeypatch.setattr(os, "setxattr", lambda at, name, value, follow_symlinks: labels.update({at: (name, value)}))
    node.process.write_kernel(path, text)
    node.process.write(f"/mps/{GPU}/pipe/control.lock", "")
    node.configure(MPS_10)
    node.start()
    await node.ready()
    pipe = node.process.path(f"/mps/{GPU}/pipe")
    expected = ("security.selinux", b"system_u:object_r:container_file_t:s0\0")
    assert labels == (dict.fromkeys((pipe, pipe / "control.lock"), expected) if labelled else {})


async def test_a_label_that_is_refused_is_a_failure(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(at: Path, name: str, value: bytes, follow_symlinks: bool) -> None:
        raise PermissionError(1, "Operation not permitted", str(at))

    monkeypatch.setattr(os, "setxattr", refuse)
    node.process.write_kernel("/sys/fs/selinux/enforce", "1")
    node.configure(MPS_10)
    node.start()
    await until(lambda: node.logged("gpu/pipe: Operation not permitted"), "the failure")
    assert "-d" not in node.said
