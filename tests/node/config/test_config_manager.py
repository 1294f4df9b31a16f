"""config-manager from end to end, with the lab's API server (contract 7)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, Signals

import pytest
from node.fakeprocess import FakeProcess, until

from groundplane.api import names
from groundplane.cluster.client import Client, PatchType, Retry
from groundplane.cluster.config import Config
from groundplane.cluster.errors import ConfigError
from groundplane.cluster.kinds import NODE
from groundplane.lab import http
from groundplane.lab.api import Api
from groundplane.lab.faults import Faults, Rule
from groundplane.node.configmanager import main
from groundplane.node.process import Listed

ME, SOURCE, DESTINATION = "gpu-node-1", "/available-configs", "/config/config.yaml"
ENV = {"NODE_NAME": ME, "CONFIG_FILE_SRCDIR": SOURCE, "CONFIG_FILE_DST": DESTINATION}
PLUGIN = Listed(42, ("nvidia-device-plugin",))


class World:
    """A node and config-manager's container on it. Configurations are `a`, `b` and what a test adds."""

    def __init__(self, folder: Path, server: http.Server, faults: Faults, admin: Client) -> None:
        self.url = server.url
        self.faults = faults
        self.admin = admin
        self.process = FakeProcess(folder, ("config-manager",), ENV, make_client=self.client)
        self.process.listed = [Listed(1, ("/pause",)), Listed(2, ()), PLUGIN]
        self.volume = folder / "root" / SOURCE.strip("/")
        self.publish("1", a="config a", b="config b")
        self.link = folder / "root" / DESTINATION.strip("/")
        self.link.parent.mkdir()

    def client(self) -> Client:
        return Client(Config(server=self.url), user_agent="cm", retry=Retry(attempts=2, first_s=0.01, max_s=0.01))

    def publish(self, version: str, **files: str) -> None:
        """Write the mounted ConfigMap as a kubelet does."""
        folder = self.volume / f"..{version}"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text)
        new = self.volume / "..data_tmp"
        new.symlink_to(folder.name)
        new.replace(self.volume / "..data")
        for entry in list(self.volume.iterdir()):
            if entry.is_symlink() and not entry.name.startswith("..") and entry.name not in files:
                entry.unlink()
        for name in files:
            if not (self.volume / name).is_symlink():
                (self.volume / name).symlink_to(f"..data/{name}")

    async def label(self, value: str | None, name: str = names.DEVICE_PLUGIN_CONFIG) -> None:
        await self.admin.patch(NODE, ME, {"metadata": {"labels": {name: value}}}, type=PatchType.MERGE)

    async def node(self, value: str | None = None) -> None:
        labels = {} if value is None else {names.DEVICE_PLUGIN_CONFIG: value}
        await self.admin.create(NODE, {"metadata": {"name": ME, "labels": labels}})

    async def run(self, **env: str) -> int:
        self.process.env = {**ENV, **env}
        async with asyncio.timeout(30):
            return await main.run(self.process)

    async def once(self, **env: str) -> int:
        return await self.run(ONESHOT="true", SEND_SIGNAL="false", **env)

    @contextlib.asynccontextmanager
    async def running(self, **env: str) -> AsyncIterator[asyncio.Task[int]]:
        task = asyncio.ensure_future(self.run(**env))
        try:
            yield task
            if not task.done():
                self.process.send(SIGTERM)
                assert await task == 0, self.process.stderr
        finally:
            task.cancel()

    def target(self) -> str | None:
        return str(self.link.readlink()) if self.link.is_symlink() else None

    async def leads_to(self, name: str) -> None:
        await until(lambda: self.target() == name, f"{DESTINATION} to lead to {name}: {self.process.stderr}")

    async def signalled(self, times: int, number: int = 1) -> None:
        await until(lambda: len(self.process.killed) >= times, f"{times} signals")
        assert self.process.killed == [(PLUGIN.pid, number)] * times


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    faults = Faults()
    server = await http.serve(Api(), faults=faults)
    async with Client(Config(server=server.url), user_agent="admin") as admin:
        yield World(tmp_path, server, faults, admin)
    await server.close()


class TestOneshot:
    """7.7: read the node once, then decide; an unset label is an empty one."""

    @pytest.mark.parametrize(
        ("label", "env", "target"),
        [
            ("a", {}, f"{SOURCE}/a"),
            ("b", {"DEFAULT_CONFIG": "a"}, f"{SOURCE}/b"),
            (None, {"DEFAULT_CONFIG": "a"}, f"{SOURCE}/a"),
            ("", {"DEFAULT_CONFIG": "b"}, f"{SOURCE}/b"),
            (None, {"FALLBACK_STRATEGIES": "empty"}, "/dev/null"),
            (None, {"FALLBACK_STRATEGIES": "named,single,empty"}, "/dev/null"),
            ("a", {"SIGNAL": ""}, f"{SOURCE}/a"),
        ],
    )
    async def test_chosen(self, world: World, label: str | None, env: dict[str, str], target: str) -> None:
        await world.node(label)
        assert await world.once(**env) == 0, world.process.stderr
        assert world.target() == target
        assert world.process.killed == []

    async def test_no_node(self, world: World) -> None:
        assert await world.once(DEFAULT_CONFIG="a") == 0, world.process.stderr
        assert world.target() == f"{SOURCE}/a"

    async def test_the_node_is_read_once_and_never_watched(self, world: World) -> None:
        await world.node("a")
        assert await world.once() == 0
        assert [each.verb for each in world.faults.requests if each.user_agent == "cm"] == ["get"]

    async def test_another_label(self, world: World) -> None:
        await world.node("a")
        await world.label("b", "example.com/config")
        assert await world.once(NODE_LABEL="example.com/config") == 0
        assert world.target() == f"{SOURCE}/b"

    async def test_by_flags(self, world: World) -> None:
        await world.node("a")
        world.process.argv = (
            *("config-manager", "--oneshot", f"--node-name={ME}", "--config-file-srcdir", SOURCE),
            *("--config-file-dst", DESTINATION, "--send-signal", "--signal=10", "--process-to-signal=/pause"),
        )
        world.process.env = {}
        assert await main.run(world.process) == 0, world.process.stderr
        assert world.target() == f"{SOURCE}/a"
        assert world.process.killed == [(1, 10)]

    @pytest.mark.parametrize(
        ("label", "env", "text"),
        [
            ("c", {"DEFAULT_CONFIG": "a"}, 'config "c", named by the node\'s label, does not exist; available configs'),
            (None, {"DEFAULT_CONFIG": "c"}, 'config "c", named by the default config, does not exist'),
            (None, {}, "there is no fallback strategy"),
            (None, {"FALLBACK_STRATEGIES": "named,single"}, "no fallback strategy fits (named, single)"),
            (None, {"FALLBACK_STRATEGIES": "other"}, 'unknown fallback strategy "other"'),
            ("a", {"CONFIG_FILE_SRCDIR": "/nowhere"}, "no configuration is available: /nowhere: No such file"),
            ("a", {"CONFIG_FILE_DST": "/nowhere/config.yaml"}, "No such file or directory"),
        ],
    )
    async def test_refused(self, world: World, label: str | None, env: dict[str, str], text: str) -> None:
        await world.node(label)
        assert await world.once(**env) == 1
        assert text in world.process.stderr
        assert world.target() is None

    async def test_folders_and_hidden_links_are_no_configurations(self, world: World) -> None:
        await world.node("folder")
        (world.volume / "folder").mkdir()
        assert await world.once(FALLBACK_STRATEGIES="single") == 1
        assert "available configs in /available-configs: a, b\n" in world.process.stderr
        world.publish("2", a="only")
        await world.label(None)
        assert await world.once(FALLBACK_STRATEGIES="single") == 0
        assert world.target() == f"{SOURCE}/a"

    async def test_an_api_server_that_refuses(self, world: World) -> None:
        world.faults.add(Rule("get", "nodes", times=None, answer=403, user_agent="cm"))
        await world.node("a")
        assert await world.once(DEFAULT_CONFIG="a") == 1
        assert "nodes/gpu-node-1: injected fault 403" in world.process.stderr
        assert world.target() is None

    async def test_no_cluster(self, world: World) -> None:
        def none() -> Client:
            raise ConfigError("not in a cluster")

        world.process.make_client = none
        assert await world.once() == 1
        assert "not in a cluster" in world.process.stderr


class TestOptions:
    @pytest.mark.parametrize(
        ("env", "text"),
        [
            ({"NODE_NAME": ""}, "--node-name ($NODE_NAME) must not be empty"),
            ({"CONFIG_FILE_SRCDIR": ""}, "--config-file-srcdir ($CONFIG_FILE_SRCDIR) must not be empty"),
            ({"CONFIG_FILE_DST": ""}, "--config-file-dst ($CONFIG_FILE_DST) must not be empty"),
            ({"NODE_LABEL": ""}, "--node-label ($NODE_LABEL) must not be empty"),
            ({"PROCESS_TO_SIGNAL": ""}, "--process-to-signal ($PROCESS_TO_SIGNAL) must not be empty"),
            ({"SIGNAL": "HUP"}, 'invalid value "HUP" for --signal'),
            ({"SIGNAL": "0"}, "0 is not the number of a signal"),
            ({"SIGNAL": "65"}, "65 is not the number of a signal"),
            ({"ONESHOT": "yes"}, 'invalid value "yes" for --oneshot'),
        ],
    )
    async def test_refused(self, world: World, env: dict[str, str], text: str) -> None:
        assert await world.run(**env) == 1
        assert text in world.process.stderr

    async def test_help(self, world: World) -> None:
        world.process.argv = ("config-manager", "--help")
        assert await main.run(world.process) == 0
        assert "--fallback-strategies" in world.process.stdout


class TestSidecar:
    async def test_each_change_of_the_label(self, world: World) -> None:
        await world.node("a")
        async with world.running(DEFAULT_CONFIG="a", FALLBACK_STRATEGIES="empty"):
            await world.leads_to(f"{SOURCE}/a")
            await world.signalled(1)
            await world.label("b")
            await world.leads_to(f"{SOURCE}/b")
            await world.signalled(2)
            await world.label(None)
            await world.leads_to(f"{SOURCE}/a")
            await world.signalled(3)

    async def test_only_this_label_counts(self, world: World) -> None:
        await world.node("a")
        async with world.running():
            await world.signalled(1)
            await world.label("x", "example.com/other")
            await world.label("b")
            await world.leads_to(f"{SOURCE}/b")
            await world.signalled(2)

    async def test_the_node_goes_and_comes(self, world: World) -> None:
        await world.node("a")
        async with world.running(FALLBACK_STRATEGIES="empty"):
            await world.leads_to(f"{SOURCE}/a")
            await world.admin.delete(NODE, ME)
            await world.leads_to("/dev/null")
            await world.node("b")
            await world.leads_to(f"{SOURCE}/b")

    async def test_no_node_yet(self, world: World) -> None:
        async with world.running(FALLBACK_STRATEGIES="empty"):
            await world.leads_to("/dev/null")
            await world.node("b")
            await world.leads_to(f"{SOURCE}/b")

    async def test_already_configured_is_no_signal(self, world: World) -> None:
        """7.5: the init container has done it."""
        await world.node("a")
        assert await world.once() == 0
        async with world.running():
            await until(lambda: "already configured" in world.process.stderr)
            await world.label("b")
            await world.signalled(1)

    async def test_from_one_label_to_another_of_the_same_effect(self, world: World) -> None:
        await world.node("a")
        async with world.running(DEFAULT_CONFIG="a"):
            await world.signalled(1)
            await world.label(None)
            await until(lambda: "already configured" in world.process.stderr)
            await world.label("b")
            await world.signalled(2)

    async def test_a_label_that_names_no_configuration(self, world: World) -> None:
        """7.2, 12.9: exit code 1, with the names that there are; what was chosen stays."""
        await world.node("a")
        async with world.running() as task:
            await world.leads_to(f"{SOURCE}/a")
            await world.label("c")
            assert await task == 1
        assert 'config "c", named by the node\'s label, does not exist; available configs in' in world.process.stderr
        assert ": a, b\n" in world.process.stderr
        assert world.target() == f"{SOURCE}/a"

    @pytest.mark.parametrize("before", ["dangling", "file", "loop", "relative", "leftover"])
    async def test_whatever_the_destination_was(self, world: World, before: str) -> None:
        """7, consequences; 12.7."""
        await world.node("a")
        if before == "dangling":
            world.link.symlink_to(f"{SOURCE}/gone")
        elif before == "file":
            world.link.write_text("a file")
        elif before == "loop":
            world.link.symlink_to(world.link.name)
        elif before == "relative":
            world.link.symlink_to("../available-configs/b")
        else:
            (world.link.parent / ".config.yaml.new").symlink_to("nowhere")
        assert await world.once() == 0, world.process.stderr
        assert world.target() == f"{SOURCE}/a"
        assert [each.name for each in world.link.parent.iterdir()] == [world.link.name]

    async def test_a_relative_link_to_the_right_file(self, world: World) -> None:
        await world.node("a")
        world.link.symlink_to("../available-configs/a")
        assert await world.once() == 0
        assert "already configured" in world.process.stderr

    @pytest.mark.parametrize("number", [SIGTERM, SIGINT, SIGQUIT])
    async def test_ends_when_asked_to(self, world: World, number: Signals) -> None:
        await world.node("a")
        async with world.running() as task:
            await world.leads_to(f"{SOURCE}/a")
            world.process.send(SIGHUP)
            world.process.send(number)
            assert await task == 0

    async def test_ends_while_the_api_server_is_away(self, world: World) -> None:
        world.faults.add(Rule("*", "nodes", times=None, answer=503, user_agent="cm"))
        async with world.running() as task:
            await until(lambda: "cannot be watched" in world.process.stderr)
            assert world.target() is None
            world.process.send(SIGTERM)
            assert await task == 0

    async def test_nothing_is_chosen_before_the_node_was_read(self, world: World) -> None:
        await world.node("b")
        world.faults.add(Rule("list", "nodes", times=2, answer=403, user_agent="cm"))
        async with world.running(DEFAULT_CONFIG="a"):
            await world.leads_to(f"{SOURCE}/b")
        assert "a" not in [
            line.rpartition("/")[2] for line in world.process.stderr.splitlines() if "now leads to" in line
        ]


class TestSignals:
    async def test_another_signal_and_process(self, world: World) -> None:
        await world.node("a")
        world.process.listed.append(Listed(77, ("/opt/bin/gpu-feature-discovery", "-o", "")))
        async with world.running(SIGNAL="12", PROCESS_TO_SIGNAL="gpu-feature-discovery"):
            await until(lambda: world.process.killed == [(77, 12)])

    async def test_no_such_process(self, world: World) -> None:
        """7.6: exit code 1. The link stands; so once started again there is nothing to signal."""
        await world.node("a")
        world.process.listed = [Listed(1, ("/pause",)), Listed(2, ())]
        assert await world.run() == 1
        assert "no process nvidia-device-plugin to signal was found" in world.process.stderr
        assert world.target() == f"{SOURCE}/a"
        async with world.running():
            await until(lambda: "already configured" in world.process.stderr)

    @pytest.mark.parametrize("error", [ProcessLookupError(3, "No such process"), PermissionError(1, "Not permitted")])
    async def test_a_process_that_cannot_be_signalled(
        self, world: World, error: OSError, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def kill(pid: int, number: int) -> None:
            raise error

        monkeypatch.setattr(world.process, "kill", kill)
        await world.node("a")
        assert await world.run() == 1
        assert f"process nvidia-device-plugin (42) cannot be signalled: {error.strerror}" in world.process.stderr

    async def test_no_signal_where_none_is_wanted(self, world: World) -> None:
        await world.node("a")
        async with world.running(SEND_SIGNAL="false"):
            await world.leads_to(f"{SOURCE}/a")
            await world.label("b")
            await world.leads_to(f"{SOURCE}/b")
        assert world.process.killed == []


class TestEdits:
    """7, last consequences; 12.8: the content of the chosen file changes."""

    async def test_an_edited_configmap_is_signalled(self, world: World) -> None:
        await world.node("a")
        async with world.running():
            await world.signalled(1)
            world.publish("2", a="config a", b="edited")
            world.publish("3", a="edited", b="edited")
            await world.signalled(2)
            world.publish("4", a="edited again", b="edited")
            await world.signalled(3)
        assert world.target() == f"{SOURCE}/a"

    async def test_a_plain_file_written_in_place(self, world: World) -> None:
        await world.node("plain")
        (world.volume / "plain").write_text("1")
        async with world.running():
            await world.signalled(1)
            (world.volume / "plain").write_text("2")
            await world.signalled(2)

    async def test_a_chosen_file_that_goes_changes_nothing_until_it_is_another(self, world: World) -> None:
        await world.node("a")
        async with world.running():
            await world.signalled(1)
            world.publish("2", b="config b")
            world.publish("3", a="config a", b="config b")
            world.publish("4", a="new", b="config b")
            await world.signalled(2)

    async def test_a_program_that_is_not_there_is_no_reason_to_end(self, world: World) -> None:
        await world.node("a")
        async with world.running():
            await world.signalled(1)
            world.process.listed = []
            world.publish("2", a="edited")
            await until(lambda: "no process nvidia-device-plugin" in world.process.stderr)
            world.process.listed = [PLUGIN]
            world.publish("3", a="edited again")
            await world.signalled(2)

    async def test_not_where_it_is_not_wanted(self, world: World) -> None:
        await world.node("a")
        async with world.running(WATCH_CONTENT="false"):
            await world.signalled(1)
            world.publish("2", a="edited", b="config b")
            await world.label("b")
            await world.signalled(2)

    async def test_an_empty_config_has_no_content(self, world: World) -> None:
        await world.node()
        async with world.running(FALLBACK_STRATEGIES="empty"):
            await world.signalled(1)
            world.publish("2", a="edited", b="edited")
            await world.label("a")
            await world.signalled(2)


def test_there_is_one_row_for_each_option() -> None:
    """The table of section 7, and the one option of our own."""
    from groundplane.node.configmanager.settings import COMMAND

    table = {option.flags: (option.env, option.default) for option in COMMAND.options}
    assert table == {
        ("oneshot",): (("ONESHOT",), False),
        ("kubeconfig",): (("KUBECONFIG",), ""),
        ("node-name",): (("NODE_NAME",), ""),
        ("node-label",): (("NODE_LABEL",), "nvidia.com/device-plugin.config"),
        ("config-file-srcdir",): (("CONFIG_FILE_SRCDIR",), ""),
        ("config-file-dst",): (("CONFIG_FILE_DST",), ""),
        ("default-config",): (("DEFAULT_CONFIG",), ""),
        ("fallback-strategies",): (("FALLBACK_STRATEGIES",), ()),
        ("send-signal",): (("SEND_SIGNAL",), True),
        ("signal",): (("SIGNAL",), 1),
        ("process-to-signal",): (("PROCESS_TO_SIGNAL",), "nvidia-device-plugin"),
        ("watch-content",): (("WATCH_CONTENT",), True),
    }
