"""The corpus' containerd configurations, before and after, as the real containerd reads them (`config dump`).

contracts/toolkit-cdi.md 9: what is written is in force, runc and the user's own tables stay.
"""

import json
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import unavailable
from node.fakeprocess import FakeProcess
from node.toolkit.runtimes.runtimekit import CONFIGS, DROP_INS, HANDLERS, corpus, files, settings

from groundplane.node.process import Completed
from groundplane.node.toolkit import runtimes
from groundplane.node.toolkit.settings import RuntimeConfigError
from testing.realcluster import build

pytestmark = pytest.mark.real
CRI = "io.containerd.cri.v1.runtime"


@pytest.fixture(scope="session")
def containerd() -> Path:
    try:
        return build.ensure(["containerd"])["containerd"]
    except build.UnavailableError as error:
        unavailable(str(error))
        raise


def dump(containerd: Path, config: Path) -> subprocess.CompletedProcess[str]:
    command = [str(containerd), "-c", str(config), "config", "dump"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


class Host:
    """A process whose host is its own root, with the real containerd on it."""

    def __init__(self, tmp_path: Path, containerd: Path, config: bytes | None) -> None:
        self.process = FakeProcess(tmp_path)
        self.containerd = containerd
        (self.process.root.base / "host").symlink_to("/")
        if config is not None:
            self.process.write(CONFIGS["containerd"], self._with_imports(config))
        self.config = self.process.path(CONFIGS["containerd"])
        self.process.commands["chroot"] = self._run
        drop_in = str(self.process.root.base) + DROP_INS["containerd"]
        self.settings = settings(
            "containerd", default="nvidia", enable_cdi=True, sources=("command", "file"), drop_in_host_path=drop_in
        )

    def _with_imports(self, config: bytes) -> bytes:
        """The file with its imports below the folder; containerd reads no import after one that does not exist."""
        plain = tomllib.loads(config.decode())
        for name in plain.get("imports", []):
            if "*" not in name:
                self.process.write(name, f"version = {plain['version']}\n")
                config = config.replace(name.encode(), f"{self.process.root.base}{name}".encode())
        return config

    def _run(self, argv: Sequence[str], env: Mapping[str, str], stdin: str) -> Completed:
        assert argv == ("chroot", "/host", "containerd", "config", "dump")
        done = dump(self.containerd, self.config)
        return Completed(done.returncode, done.stdout, done.stderr)

    def plain(self) -> dict[str, Any]:
        done = dump(self.containerd, self.config)
        assert done.returncode == 0, done.stderr
        return tomllib.loads(done.stdout)


@pytest.mark.parametrize("sources", [("command", "file"), ("file",)], ids=["command", "file"])
@pytest.mark.parametrize("path", corpus("containerd"), ids=lambda path: path.name)
async def test_corpus(tmp_path: Path, containerd: Path, path: Path, sources: tuple[str, ...]) -> None:
    host = Host(tmp_path, containerd, path.read_bytes())
    wanted = settings(
        "containerd",
        default="nvidia",
        enable_cdi=True,
        sources=sources,
        drop_in_host_path=host.settings.drop_in_host_path,
    )
    found, before = files(host.process), host.plain()

    assert await runtimes.configure(host.process, wanted)
    assert "not verified" not in host.process.stderr
    after = host.plain()
    configured = files(host.process)
    assert not await runtimes.configure(host.process, wanted)
    assert files(host.process) == configured

    names = {each.name for each in HANDLERS}
    told = after["plugins"][CRI]["containerd"]
    for handler in HANDLERS:
        assert told["runtimes"][handler.name]["options"]["BinaryName"] == handler.path
        assert told["runtimes"][handler.name]["runtime_type"]
    assert told["default_runtime_name"] == "nvidia"
    assert cleaned(after, names) == cleaned(before, names)

    await runtimes.revert(host.process, wanted)
    assert files(host.process) == found
    assert host.plain() == before


def cleaned(document: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """A dump without what was added."""
    document = json.loads(json.dumps(document))
    document.pop("imports", None)
    table = document["plugins"][CRI]
    table["containerd"].pop("default_runtime_name", None)
    table["containerd"]["runtimes"] = {k: v for k, v in table["containerd"]["runtimes"].items() if k not in names}
    table.pop("enable_cdi", None)
    table["containerd"].pop("enable_cdi", None)
    if not document["plugins"].get("io.containerd.grpc.v1.cri", True):
        del document["plugins"]["io.containerd.grpc.v1.cri"]  # an empty table that migration from version 1 leaves
    return document


async def test_without_a_file(tmp_path: Path, containerd: Path) -> None:
    """Section 9: without a main file, the drop-in has the version that containerd tells."""
    host = Host(tmp_path, containerd, None)
    host.process.commands["chroot"] = lambda argv, env, stdin: Completed(
        0, dump(containerd, host.config).stdout if host.config.exists() else default(containerd), ""
    )
    assert await runtimes.configure(host.process, host.settings)
    assert tomllib.loads(host.config.read_text())["version"] == 4
    assert host.plain()["plugins"][CRI]["containerd"]["default_runtime_name"] == "nvidia"
    assert "enable_cdi" not in host.process.root.read_text(DROP_INS["containerd"])
    await runtimes.revert(host.process, host.settings)
    assert files(host.process) == {"host": "/"}


def default(containerd: Path) -> str:
    return subprocess.run([str(containerd), "config", "default"], capture_output=True, text=True, check=True).stdout


async def test_refused(tmp_path: Path, containerd: Path) -> None:
    """Section 9: a file of a version that containerd refuses is left as it was."""
    host = Host(tmp_path, containerd, b"version = 5\n")
    before = files(host.process)
    with pytest.raises(RuntimeConfigError, match=r"containerd refuses the changed configuration: .*version"):
        await runtimes.configure(host.process, host.settings)
    assert files(host.process) == before


async def test_import_that_is_not_there(tmp_path: Path, containerd: Path) -> None:
    """8 #1: what is written must be loaded, or else it is not left there."""
    host = Host(tmp_path, containerd, b"version = 2\n")
    host.process.write(CONFIGS["containerd"], 'version = 2\nimports = ["/run/not/there.toml"]\n')
    before = files(host.process)
    with pytest.raises(RuntimeConfigError, match=r"nothing after /run/not/there\.toml, which does"):
        await runtimes.configure(host.process, host.settings)
    assert files(host.process) == before


@pytest.mark.parametrize("main", [2, 3, 4])
async def test_mixed_versions(tmp_path: Path, containerd: Path, main: int) -> None:
    """Section 9: the drop-in has the main file's own version, whatever containerd tells."""
    host = Host(tmp_path, containerd, f"version = {main}\n".encode())
    await runtimes.configure(host.process, host.settings)
    assert tomllib.loads(host.process.root.read_text(DROP_INS["containerd"]))["version"] == main
    assert host.plain()["plugins"][CRI]["containerd"]["runtimes"]["runc"]["runtime_type"]
