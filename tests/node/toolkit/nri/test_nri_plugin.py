"""The plugin on a socket: registration, answers, loss and return (contracts/toolkit-cdi.md 7.1 to 7.3, 8 #9)."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from node.fakeprocess import FakeProcess, until
from node.toolkit.nri.fakenri import Connection, FakeRuntime, running

from groundplane.node.toolkit.nri import generate, injection, mux, service, ttrpc
from groundplane.node.toolkit.nri.plugin import DEFAULT_SOCKET, RECONNECT_S, NriError, NriPlugin
from groundplane.node.toolkit.nri.stubs import nri_pb2 as wire

KEY = "nvidia.cdi.k8s.io/container.ctr"
ALL = "management.nvidia.com/gpu=all"
ASKING = {KEY: ALL}


class Patient(FakeProcess):
    """A process whose time runs fast, and which remembers for how long it was asked to wait."""

    def __init__(self, folder: Path, **more: Any) -> None:
        super().__init__(folder, **{"pace": 100.0, **more})
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await super().sleep(seconds)


@pytest.fixture
def process(tmp_path: Path) -> Patient:
    return Patient(tmp_path)


@pytest.fixture
async def runtime(process: Patient) -> AsyncIterator[FakeRuntime]:
    async with running(process.path(DEFAULT_SOCKET)) as found:
        yield found


def make(process: FakeProcess, **more: Any) -> NriPlugin:
    return NriPlugin(process, **{"index": 10, "namespace": "gpu-operator", **more})


@asynccontextmanager
async def started(process: FakeProcess, **more: Any) -> AsyncIterator[NriPlugin]:
    plugin = make(process, **more)
    await plugin.start()
    try:
        yield plugin
    finally:
        await plugin.stop()


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        (wire.RegisterPluginRequest, {"plugin_name": 1, "plugin_idx": 2, "NRI_version": 3}),
        (
            wire.ConfigureRequest,
            {
                "runtime_name": 2,
                "runtime_version": 3,
                "registration_timeout": 4,
                "request_timeout": 5,
                "NRI_version": 6,
            },
        ),
        (wire.ConfigureResponse, {"events": 2}),
        (wire.SynchronizeRequest, {"more": 3}),
        (wire.SynchronizeResponse, {"more": 2}),
        (wire.CreateContainerRequest, {"pod": 1, "container": 2}),
        (wire.CreateContainerResponse, {"adjust": 1}),
        (wire.PodSandbox, {"name": 2, "namespace": 4, "annotations": 6}),
        (wire.Container, {"name": 3}),
        (wire.ContainerAdjustment, {"CDI_devices": 8}),
        (wire.CDIDevice, {"name": 1}),
    ],
)
def test_7_2_field_numbers(message: Any, numbers: dict[str, int]) -> None:
    assert {field.name: field.number for field in message.DESCRIPTOR.fields} == numbers


def test_7_2_events() -> None:
    assert wire.Event.items()[1:] == [
        ("RUN_POD_SANDBOX", 1),
        ("STOP_POD_SANDBOX", 2),
        ("REMOVE_POD_SANDBOX", 3),
        ("CREATE_CONTAINER", 4),
        ("POST_CREATE_CONTAINER", 5),
        ("START_CONTAINER", 6),
        ("POST_START_CONTAINER", 7),
        ("UPDATE_CONTAINER", 8),
        ("POST_UPDATE_CONTAINER", 9),
        ("STOP_CONTAINER", 10),
        ("REMOVE_CONTAINER", 11),
    ]
    assert service.EVENTS == 8


def test_committed_stubs_are_current(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    generate.generate(tmp_path)
    fresh = {file.name: file.read_text() for file in tmp_path.iterdir()}
    committed = {file.name: file.read_text() for file in generate.STUBS.iterdir() if file.is_file()}
    assert fresh == committed


# --- registration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("index", "sent"), [(0, "00"), (7, "07"), (10, "10"), (99, "99")])
async def test_7_2_it_registers_and_subscribes(process: Patient, runtime: FakeRuntime, index: int, sent: str) -> None:
    async with started(process, index=index):
        connection = await runtime.plugin()
        assert connection.registered == wire.RegisterPluginRequest(plugin_name="nvidia-toolkit", plugin_idx=sent)
        assert connection.events == 8
    assert "NRI plugin configured by fake v1.2.3" in process.stderr


@pytest.mark.parametrize("index", [-1, 100])
def test_an_index_of_other_than_two_digits_is_refused(process: Patient, index: int) -> None:
    with pytest.raises(ValueError, match="between 0 and 99"):
        make(process, index=index)


async def test_it_is_configured_when_start_returns(process: Patient, runtime: FakeRuntime) -> None:
    async with started(process):
        assert "configured" in process.stderr


async def test_7_1_an_inherited_socket_name_and_index(tmp_path: Path, runtime: FakeRuntime) -> None:
    ours, theirs = socket.socketpair()
    environment = {"NRI_PLUGIN_SOCKET": str(theirs.detach()), "NRI_PLUGIN_NAME": "mine", "NRI_PLUGIN_IDX": "42"}
    launched = Patient(tmp_path / "launched", env=environment)
    connection = Connection(runtime, *await asyncio.open_unix_connection(sock=ours))
    serving = asyncio.create_task(connection.run())
    async with started(launched, socket="/nowhere"):
        assert connection.registered == wire.RegisterPluginRequest(plugin_name="mine", plugin_idx="42")
        await until(lambda: connection.events == 8)
        assert await connection.create(ASKING) == [ALL]
    await serving


@pytest.mark.parametrize("number", ["x", "-1", "99999"])
async def test_an_inherited_socket_that_is_none(tmp_path: Path, number: str) -> None:
    with pytest.raises(NriError, match=f"NRI_PLUGIN_SOCKET={number} is not the number of an open socket"):
        await make(Patient(tmp_path, env={"NRI_PLUGIN_SOCKET": number})).start()


async def test_7_3_a_start_without_a_socket_file_fails(process: Patient) -> None:
    with pytest.raises(NriError, match=rf"no NRI socket at {DEFAULT_SOCKET}: is NRI enabled .* NRI_SOCKET"):
        await make(process).start()
    assert process.waits == [], "and is not tried again"


async def test_a_start_at_a_path_that_leads_nowhere_fails(process: Patient) -> None:
    process.path("/run").mkdir(parents=True, exist_ok=True)
    process.path("/run/loop").symlink_to("loop")
    with pytest.raises(NriError, match=r"/run/loop/nri.sock cannot be looked for: .*more than 40 symbolic links"):
        await make(process, socket="/run/loop/nri.sock").start()


async def test_a_start_where_nobody_listens_fails(process: Patient, runtime: FakeRuntime) -> None:
    await runtime.stop()
    assert process.path(DEFAULT_SOCKET).exists()
    with pytest.raises(NriError, match=r"cannot connect to the NRI socket .*Connection refused"):
        await make(process).start()


async def test_a_socket_may_lie_deep(tmp_path: Path, process: Patient) -> None:
    """Deeper than an address has room for: 107 bytes."""
    path = f"/{'x' * 120}/nri.sock"
    process.path(path).parent.mkdir()
    async with running(tmp_path / "nri.sock") as runtime:
        (tmp_path / "nri.sock").rename(process.path(path))
        async with started(process, socket=path):
            assert await (await runtime.plugin()).create(ASKING) == [ALL]


@pytest.mark.parametrize(
    ("path", "text"), [("/run/" + "x" * 120, "path too long"), ("/run/file", "Connection refused"), ("/run", "refused")]
)
async def test_a_start_at_what_can_be_no_socket_fails(process: Patient, path: str, text: str) -> None:
    process.write(path if path != "/run" else "/run/file", "")
    with pytest.raises(NriError, match=f"cannot connect to the NRI socket {path}: .*{text}"):
        await make(process, socket=path).start()


async def test_a_refused_registration_fails_the_start(process: Patient, runtime: FakeRuntime) -> None:
    runtime.refusal = "no plugins today"
    with pytest.raises(NriError, match=r"did not take NRI plugin 10-nvidia-toolkit: no plugins today"):
        await make(process).start()
    await until(lambda: not runtime.live, "the connection's end")


@pytest.mark.parametrize(
    ("mute", "text"),
    [
        (True, "RegisterPlugin was not answered within 0.05 s"),
        (False, "registered the plugin but did not configure it within 0.05 s"),
    ],
)
async def test_a_runtime_that_is_too_slow_fails_the_start(
    process: Patient, runtime: FakeRuntime, mute: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("groundplane.node.toolkit.nri.plugin.REGISTRATION_TIMEOUT_S", 0.05)
    runtime.mute, runtime.configures = mute, False
    with pytest.raises(NriError, match=text):
        await make(process).start()
    await until(lambda: not runtime.live, "the connection's end")


async def test_a_runtime_that_hangs_up_before_it_configures_fails_the_start(
    process: Patient, runtime: FakeRuntime
) -> None:
    runtime.configures = False
    starting = asyncio.create_task(make(process).start())
    await until(lambda: runtime.connections and runtime.connections[0].registered)
    runtime.connections[0].close()
    with pytest.raises(NriError, match="closed the connection before it configured the plugin"):
        await starting


async def test_a_start_that_is_cancelled_leaves_no_connection(process: Patient, runtime: FakeRuntime) -> None:
    runtime.mute = True
    starting = asyncio.create_task(make(process).start())
    await until(lambda: runtime.live)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await until(lambda: not runtime.live)


async def test_it_is_started_once(process: Patient, runtime: FakeRuntime) -> None:
    async with started(process) as plugin:
        with pytest.raises(NriError, match="started already"):
            await plugin.start()
    await plugin.start()
    assert await (await runtime.plugin(1)).create(ASKING) == [ALL]
    await plugin.stop()


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def connection(process: Patient, runtime: FakeRuntime) -> AsyncIterator[Connection]:
    async with started(process):
        yield await runtime.plugin()


@pytest.mark.parametrize("more", [True, False])
async def test_7_2_synchronize_echoes_more(connection: Connection, more: bool) -> None:
    request = wire.SynchronizeRequest(more=more).SerializeToString()
    pods = b"".join(b"\x0a\x03\x0a\x01%d" % digit for digit in range(10))  # field 1: pods with an id
    answer = wire.SynchronizeResponse.FromString(await connection.call("Synchronize", pods + request))
    assert answer == wire.SynchronizeResponse(more=more)


async def test_a_container_gets_its_devices_and_nothing_else(connection: Connection, process: Patient) -> None:
    assert await connection.create({KEY: f"{ALL}, nvidia.com/gpu=0"}) == [ALL, "nvidia.com/gpu=0"]
    assert "container ctr of pod gpu-operator/pod gets CDI devices 'management.nvidia.com/gpu=all'" in process.stderr
    assert await connection.create({KEY: ALL}, container="other") == []


async def test_without_devices_the_answer_is_empty(connection: Connection) -> None:
    request = wire.CreateContainerRequest(pod=wire.PodSandbox(name="pod"), container=wire.Container(name="ctr"))
    assert await connection.call("CreateContainer", request.SerializeToString()) == b""


async def test_what_is_left_out_is_logged(connection: Connection, process: Patient) -> None:
    assert await connection.create({KEY: f"oops,{ALL}"}) == [ALL]
    assert await connection.create(ASKING, namespace="default") == []
    assert "left out, for it is no CDI device VENDOR/CLASS=DEVICE: 'oops'" in process.stderr
    assert "container ctr of pod default/pod gets no CDI devices" in process.stderr


async def test_management_namespaces_are_heeded(process: Patient, runtime: FakeRuntime) -> None:
    async with started(process, management_namespaces=["kube-system"]):
        assert await (await runtime.plugin()).create(ASKING, namespace="kube-system") == [ALL]


@pytest.mark.parametrize("method", service.IGNORED)
async def test_7_1_other_events_are_accepted(connection: Connection, method: str) -> None:
    assert await connection.call(method, b"\x0a\x00") == b""


async def test_7_1_unknown_methods_are_unimplemented(connection: Connection) -> None:
    with pytest.raises(ttrpc.RpcError) as refused:
        await connection.call("SomethingNew")
    assert refused.value.code == 12
    assert await connection.create(ASKING) == [ALL]


async def test_7_2_unknown_fields_are_ignored(connection: Connection) -> None:
    """Field 99 with text, and the fields of a container that are not read here, with bytes that are no UTF-8."""
    extra = b"\x9a\x06\x03new" + b"\x42\x02\xff\xfe"
    pod = wire.PodSandbox(name="pod", namespace="gpu-operator", annotations=ASKING).SerializeToString() + extra
    container = wire.Container(name="ctr").SerializeToString() + extra
    payload = b"\x0a%c" % len(pod) + pod + b"\x12%c" % len(container) + container + extra
    answer = wire.CreateContainerResponse.FromString(await connection.call("CreateContainer", payload))
    assert [device.name for device in answer.adjust.CDI_devices] == [ALL]


@pytest.mark.parametrize("method", ["CreateContainer", "Synchronize"])
async def test_what_cannot_be_read_changes_nothing(connection: Connection, process: Patient, method: str) -> None:
    assert await connection.call(method, b"\xff\xff\xff") == b""
    assert f"NRI request {method} failed and is answered with no change: DecodeError" in process.stderr
    assert await connection.create(ASKING) == [ALL]


async def test_a_mistake_of_the_program_changes_nothing(
    connection: Connection, process: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> injection.Injection:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(injection, "decide", broken)
    assert await connection.create(ASKING) == []
    assert "answered with no change: ZeroDivisionError: a mistake" in process.stderr


async def test_a_configuration_that_cannot_be_read_still_subscribes(connection: Connection) -> None:
    answer = await connection.call("Configure", b"\xff")
    assert wire.ConfigureResponse.FromString(answer).events == 8


async def test_many_at_once(connection: Connection) -> None:
    answers = await asyncio.gather(*(connection.create({KEY: f"a.b/c=d{number}"}) for number in range(500)))
    assert answers == [[f"a.b/c=d{number}"] for number in range(500)]


@pytest.mark.parametrize("size", [1, 3, 11])
async def test_7_1_a_message_may_be_split_over_frames(connection: Connection, size: int) -> None:
    """Frames of few bytes, each sent in two writes."""
    whole: list[bytes] = []
    connection.client._send = whole.append
    asking = asyncio.create_task(connection.create(ASKING))
    await until(lambda: whole)
    message = whole[0]
    for start in range(0, len(message), size):
        (frame,) = mux.frames(mux.PLUGIN_SERVICE, message[start : start + size])
        for piece in (frame[:5], frame[5:]):
            connection.raw(piece)
            await connection.writer.drain()
            await asyncio.sleep(0)
    assert await asking == [ALL]


async def test_an_oversized_message_is_refused_and_the_connection_lives(connection: Connection) -> None:
    length = ttrpc.MAX_DATA + 1
    data = ttrpc.HEADER.pack(length, 1001, ttrpc.Kind.REQUEST, 0) + bytes(length)
    refused: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    connection.client._waiting[1001] = refused
    connection.mux.send(mux.PLUGIN_SERVICE, data)
    with pytest.raises(ttrpc.RpcError) as error:
        await asyncio.wait_for(refused, 20)
    assert error.value.code == ttrpc.Code.RESOURCE_EXHAUSTED
    assert await connection.create(ASKING) == [ALL]


# --- loss and return --------------------------------------------------------------------------------------------------


async def test_8_9_a_lost_connection_comes_back(process: Patient, runtime: FakeRuntime) -> None:
    async with started(process):
        for number in range(3):
            connection = await runtime.plugin(number)
            assert await connection.create(ASKING) == [ALL]
            connection.close()
        assert await (await runtime.plugin(3)).create(ASKING) == [ALL]
        assert process.waits == [RECONNECT_S] * 3
        assert len(runtime.live) == 1
    assert RECONNECT_S == 2.0
    assert "new containers get no devices by annotation until the plugin is connected again" in process.stderr
    assert f"NRI plugin connected to {DEFAULT_SOCKET} again" in process.stderr


async def test_8_9_a_runtime_restarts_and_takes_its_time(process: Patient, runtime: FakeRuntime) -> None:
    async with started(process):
        await runtime.plugin()
        await runtime.stop()
        await until(lambda: len(process.waits) > 3, "attempts")
        process.path(DEFAULT_SOCKET).unlink()
        await until(lambda: "No such file or directory" in process.stderr, "attempts without a socket")
        attempts = len(process.waits)
        await until(lambda: len(process.waits) > attempts + 3, "more attempts")
        await runtime.start()
        assert await (await runtime.plugin(1)).create(ASKING) == [ALL]
    assert set(process.waits) == {RECONNECT_S}
    assert process.stderr.count("Connection refused") == 1, "a failure that goes on is told once"
    assert process.stderr.count("No such file or directory") == 1


@pytest.mark.parametrize("trouble", ["refusal", "mute", "no configuration", "hangs up"])
async def test_it_comes_back_through_any_trouble(process: Patient, runtime: FakeRuntime, trouble: str) -> None:
    runtime.registration_timeout_ms = 50
    async with started(process):
        first = await runtime.plugin()
        runtime.refusal = "busy" if trouble == "refusal" else ""
        runtime.mute = trouble == "mute"
        runtime.configures = trouble != "no configuration"
        runtime.hangs_up = trouble == "hangs up"
        first.close()
        await until(lambda: len(runtime.connections) > 3, "attempts")
        runtime.refusal, runtime.mute, runtime.configures, runtime.hangs_up = "", False, True, False
        runtime.registration_timeout_ms = 5000
        assert await _served(runtime, len(runtime.connections) - 1) == [ALL]
        await until(lambda: len(runtime.live) == 1)


async def _served(runtime: FakeRuntime, after: int) -> list[str]:
    """What the plugin gives once it serves again, by a connection after so many; some may still be given up."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await (await runtime.plugin(after)).create(ASKING)
            except ttrpc.RpcError:
                await asyncio.sleep(0.01)


async def test_a_runtimes_own_registration_timeout_is_taken_over(process: Patient, runtime: FakeRuntime) -> None:
    runtime.registration_timeout_ms = 50
    async with started(process):
        await runtime.plugin()
        runtime.mute = True
        runtime.connections[0].close()
        await until(lambda: "RegisterPlugin was not answered within 0.05 s" in process.stderr)


async def test_a_runtime_that_says_no_timeout_keeps_the_default(process: Patient, runtime: FakeRuntime) -> None:
    runtime.registration_timeout_ms = 0
    async with started(process):
        (await runtime.plugin()).close()
        assert await (await runtime.plugin(1)).create(ASKING) == [ALL]


@pytest.mark.parametrize(
    "garbage",
    [
        mux.HEADER.pack(1, mux.MAX_PAYLOAD + 1),
        b"\xff" * 64,
        mux.HEADER.pack(1, 10) + b"\xff" * 10,
        mux.HEADER.pack(2, 10) + b"\xff" * 10,
    ],
    ids=["oversized frame", "no frame", "no message on channel 1", "no message on channel 2"],
)
async def test_garbage_costs_the_connection_and_no_more(process: Patient, runtime: FakeRuntime, garbage: bytes) -> None:
    async with started(process):
        first = await runtime.plugin()
        first.raw(garbage)
        await until(lambda: first.closed, "the plugin to hang up")
        assert await (await runtime.plugin(1)).create(ASKING) == [ALL]
    assert "the connection is lost: " in process.stderr


async def test_frames_of_channels_nobody_opened_are_nothing(process: Patient, runtime: FakeRuntime) -> None:
    async with started(process):
        connection = await runtime.plugin()
        for channel in (0, 3, 2**32 - 1):
            connection.raw(mux.HEADER.pack(channel, 10) + b"\xff" * 10)
        assert await connection.create(ASKING) == [ALL]


async def test_half_a_message_and_an_end(process: Patient, runtime: FakeRuntime) -> None:
    async with started(process):
        first = await runtime.plugin()
        first.raw(mux.HEADER.pack(1, 20) + b"\0" * 7)
        await first.writer.drain()
        first.writer.close()
        assert await (await runtime.plugin(1)).create(ASKING) == [ALL]


async def test_a_mistake_of_the_program_costs_a_connection_and_no_more(
    process: Patient, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(process):
        first = await runtime.plugin()
        with monkeypatch.context() as patched:
            patched.setattr(ttrpc.Server, "_call", lambda *_: 1 // 0)
            with pytest.raises(ttrpc.RpcError, match="the plugin is gone"):
                await first.create(ASKING)
        assert await (await runtime.plugin(1)).create(ASKING) == [ALL]
    assert "given up for an internal error: ZeroDivisionError" in process.stderr


# --- stop -------------------------------------------------------------------------------------------------------------


async def test_7_3_stop_hangs_up_and_triggers_no_reconnect(process: Patient, runtime: FakeRuntime) -> None:
    async with started(process) as plugin:
        await runtime.plugin()
        await plugin.stop()
        await until(lambda: not runtime.live, "the connection's end")
        await plugin.stop()
    await asyncio.sleep(3 * RECONNECT_S / process.pace)
    assert len(runtime.connections) == 1
    assert process.waits == []
    assert "down" not in process.stderr
    assert "closed the connection" not in process.stderr


async def test_7_3_stop_ends_the_attempts(process: Patient, runtime: FakeRuntime) -> None:
    async with started(process) as plugin:
        await runtime.plugin()
        await runtime.stop()
        await until(lambda: len(process.waits) > 1, "attempts")
        await plugin.stop()
        attempts = len(process.waits)
        await runtime.start()
        await asyncio.sleep(3 * RECONNECT_S / process.pace)
    assert len(process.waits) == attempts
    assert not runtime.live


async def test_stop_in_the_middle_of_a_registration(process: Patient, runtime: FakeRuntime) -> None:
    async with started(process) as plugin:
        first = await runtime.plugin()
        runtime.mute = True
        first.close()
        await until(lambda: len(runtime.live) == 1 and len(runtime.connections) == 2, "the next attempt")
        await plugin.stop()
        await until(lambda: not runtime.live, "the connection's end")


async def test_stop_without_start(process: Patient) -> None:
    await make(process).stop()
    assert process.stderr == ""


async def test_nothing_runs_after_stop(process: Patient, runtime: FakeRuntime) -> None:
    async with started(process):
        await runtime.plugin()
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert {"NRI plugin", "NRI connection"} <= names
    left = [task for task in asyncio.all_tasks() if task.get_name().startswith("NRI")]
    assert left == []


async def test_two_plugins_do_not_mind_each_other(tmp_path: Path, process: Patient, runtime: FakeRuntime) -> None:
    other = Patient(tmp_path / "other")
    other.root = process.root
    async with started(process, index=10), started(other, index=20):
        await until(lambda: len(runtime.live) == 2)
        for connection, _ in itertools.product(runtime.live, range(2)):
            assert await connection.create(ASKING) == [ALL]
