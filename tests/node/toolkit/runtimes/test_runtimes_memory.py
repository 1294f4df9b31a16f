"""What is there before is taken back exactly, whatever happens in between: kills, full disks, edits, odd files."""

import asyncio
import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from node.fakeprocess import FakeProcess
from node.toolkit.runtimes.runtimekit import CONFIGS, CORPUS, DROP_INS, HANDLERS, STATE, files, settings, toml

from groundplane.node.toolkit import runtimes
from groundplane.node.toolkit.runtimes import files as runtime_files
from groundplane.node.toolkit.settings import Handler, RuntimeConfigError, RuntimeSettings

CONFIG, DROP_IN = CONFIGS["containerd"], DROP_INS["containerd"]
SAMPLES = {
    "containerd": "containerd/kubeadm-ubuntu.toml",
    "containerd v1": "containerd/v1-old-ubuntu.toml",
    "containerd without a file": "",
    "crio": "crio/openshift-main.conf",
    "docker": "docker/other-runtimes.json",
}
ALL = pytest.mark.parametrize("sample", SAMPLES)


def start(tmp_path: Path, sample: str) -> tuple[FakeProcess, RuntimeSettings, RuntimeSettings]:
    """A process with a sample, the settings, and those of a later version of the toolkit."""
    runtime = sample.partition(" ")[0]
    process = FakeProcess(tmp_path)
    if SAMPLES[sample]:
        process.write(CONFIGS[runtime], (CORPUS / SAMPLES[sample]).read_bytes())
    later = tuple(Handler(each.name, each.path.replace("/usr/local", "/opt")) for each in HANDLERS)
    return process, settings(runtime, default="nvidia"), settings(runtime, handlers=later, enable_cdi=True)


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


def killing(monkeypatch: pytest.MonkeyPatch, at: int, error: Callable[[], BaseException]) -> list[int]:
    """Let the write or removal with a number fail before it is done; the list counts them."""
    count = [0]
    real_replace, real_unlink = runtime_files.replace, Path.unlink

    def counted() -> None:
        count[0] += 1
        if count[0] == at:
            raise error()

    def replace(*args: Any) -> None:
        counted()
        real_replace(*args)

    def unlink(self: Path, **kwargs: Any) -> None:
        counted()
        real_unlink(self, **kwargs)

    monkeypatch.setattr(runtime_files, "replace", replace)
    monkeypatch.setattr(Path, "unlink", unlink)
    return count


@ALL
@pytest.mark.parametrize("at", range(1, 6))
async def test_killed_while_configuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: str, at: int) -> None:
    """At each write: the next start configures as if nothing had been, and takes back what was first."""
    process, wanted, later = start(tmp_path, sample)
    before = files(process)
    with monkeypatch.context() as patch:
        killing(patch, at, Killed)
        with contextlib.suppress(Killed):
            await runtimes.configure(process, wanted)
    with monkeypatch.context() as patch:  # and again, at a later version of the toolkit
        killing(patch, at, Killed)
        with contextlib.suppress(Killed):
            await runtimes.configure(process, later)
    await runtimes.configure(process, wanted)
    assert not await runtimes.configure(process, wanted)
    await runtimes.revert(process, wanted)
    assert files(process) == before


@ALL
@pytest.mark.parametrize("at", range(1, 4))
async def test_killed_while_reverting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: str, at: int) -> None:
    process, wanted, later = start(tmp_path, sample)
    before = files(process)
    await runtimes.configure(process, wanted)
    with monkeypatch.context() as patch:
        killing(patch, at, Killed)
        with contextlib.suppress(Killed):
            await runtimes.revert(process, wanted)
    if at % 2:
        await runtimes.configure(process, later)
    await runtimes.revert(process, later)
    assert files(process) == before


@ALL
@pytest.mark.parametrize("at", range(1, 4))
async def test_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: str, at: int) -> None:
    """The error names the file and the remedy, and nothing has changed."""
    process, wanted, _ = start(tmp_path, sample)
    before = files(process)
    with monkeypatch.context() as patch:
        count = killing(patch, at, lambda: OSError(errno.ENOSPC, "No space left on device"))
        failed = False
        try:
            await runtimes.configure(process, wanted)
        except RuntimeConfigError as error:
            failed = True
            assert re.match(
                r"/\S+ cannot be written: No space left on device; it is as it was. The disk is full", str(error)
            )
    assert failed == (count[0] >= at)
    if failed and at < 3:
        assert files(process) == before
    await runtimes.configure(process, wanted)
    await runtimes.revert(process, wanted)
    assert files(process) == before


_CHILD = """
import asyncio, sys
from pathlib import Path
sys.path[:0] = {path!r}
from node.fakeprocess import FakeProcess
from node.toolkit.runtimes.runtimekit import settings
from groundplane.node.toolkit import runtimes
process = FakeProcess(Path({folder!r}))
while True:
    asyncio.run(runtimes.configure(process, settings("containerd", default="nvidia")))
    print("configured", flush=True)
    asyncio.run(runtimes.revert(process, settings("containerd")))
"""


def test_sigkill(tmp_path: Path) -> None:
    """A process that is killed in the middle of it, at moments that nobody chose."""
    process, wanted, _ = start(tmp_path, "containerd")
    before = files(process)
    code = _CHILD.format(path=sys.path, folder=str(tmp_path))
    for skip in (1, 2, 5):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for _ in range(skip):
                assert child.stdout.readline()
            child.send_signal(signal.SIGKILL)
        assert tomllib.loads(process.root.read_text(CONFIG))["version"] == 2
        asyncio.run(runtimes.configure(process, wanted))
        assert "nvidia" in process.root.read_text(DROP_IN)
        asyncio.run(runtimes.revert(process, wanted))
        found = {path: what for path, what in files(process).items() if not Path(path).name.startswith(".")}
        assert found == before


@ALL
async def test_reconfigured_by_a_later_version(tmp_path: Path, sample: str) -> None:
    process, wanted, later = start(tmp_path, sample)
    before = files(process)
    await runtimes.configure(process, wanted)
    assert await runtimes.configure(process, later)
    text = "".join(str(what[0]) for path, what in files(process).items() if path != STATE[1:])
    assert "/opt/nvidia/toolkit" in text
    assert "/usr/local/nvidia/toolkit" not in text
    await runtimes.revert(process, later)
    assert files(process) == before


@pytest.mark.parametrize("text", ["", "{", '{"version": 99}', '{"version": 1, "files": []}'])
async def test_memory_that_is_spoilt(tmp_path: Path, text: str) -> None:
    process, wanted, _ = start(tmp_path, "containerd")
    await runtimes.configure(process, wanted)
    process.write(STATE, text)
    assert not await runtimes.configure(process, wanted)
    assert f"{STATE} is" in process.stderr
    await runtimes.revert(process, wanted)
    assert not process.root.exists(DROP_IN)
    assert "nvidia" not in process.root.read_text(CONFIG).replace("conf.d", "")


# --- edits in between -------------------------------------------------------------------------------------------------


async def test_edited_main_file(tmp_path: Path) -> None:
    """What a person changes while the toolkit runs stays; only the import goes."""
    process, wanted, _ = start(tmp_path, "containerd")
    original = process.root.read_text(CONFIG)
    await runtimes.configure(process, wanted)
    edited = (
        process.root.read_text(CONFIG).replace("pause:3.9", "pause:3.10") + "\n# mine\n[debug]\n  level = 'debug'\n"
    )
    process.write(CONFIG, edited)
    process.root.path(CONFIG).chmod(0o600)

    assert await runtimes.configure(process, wanted)
    assert "pause:3.10" in process.root.read_text(DROP_IN), "the copy follows"
    await runtimes.revert(process, wanted)
    expected = original.replace("pause:3.9", "pause:3.10") + "\n# mine\n[debug]\n  level = 'debug'\n"
    assert process.root.read_text(CONFIG) == expected
    assert process.root.path(CONFIG).stat().st_mode & 0o777 == 0o600
    assert not process.root.exists(DROP_IN)


async def test_edited_imports(tmp_path: Path) -> None:
    process, wanted, _ = start(tmp_path, "containerd")
    await runtimes.configure(process, wanted)
    text = process.root.read_text(CONFIG).replace("imports = [", "imports = ['/mine.toml', ")
    process.write(CONFIG, text)
    await runtimes.revert(process, wanted)
    assert toml(process, CONFIG)["imports"] == ["/mine.toml"]


@pytest.mark.parametrize("again", [False, True])
async def test_edited_drop_in(tmp_path: Path, *, again: bool) -> None:
    """A person's drop-in stays, with its import, but without handlers whose programs may go."""
    process, wanted, _ = start(tmp_path, "containerd")
    await runtimes.configure(process, wanted)
    process.write(DROP_IN, process.root.read_text(DROP_IN).replace("pause:3.9", "pause:mine"))
    if again:
        await runtimes.configure(process, wanted)
        assert "pause:mine" in process.root.read_text(DROP_IN)
    await runtimes.revert(process, wanted)
    table = toml(process, DROP_IN)["plugins"]["io.containerd.grpc.v1.cri"]
    assert table["sandbox_image"] == "registry.k8s.io/pause:mine"
    assert list(table["containerd"]["runtimes"]) == ["runc"]
    assert table["containerd"].get("default_runtime_name") != "nvidia"
    assert toml(process, CONFIG)["imports"] == ["/etc/containerd/conf.d/*.toml"]


async def test_edited_where_there_was_no_file(tmp_path: Path) -> None:
    process, wanted, _ = start(tmp_path, "containerd without a file")
    await runtimes.configure(process, wanted)
    process.write(CONFIG, process.root.read_text(CONFIG) + "[debug]\nlevel = 'debug'\n")
    await runtimes.revert(process, wanted)
    assert toml(process, CONFIG) == {"version": 2, "debug": {"level": "debug"}}


async def test_edited_default_of_version_1(tmp_path: Path) -> None:
    """5.3 BETTER, 8 #3: a default that was replaced comes back, unless a person has set another one."""
    process, wanted, _ = start(tmp_path, "containerd v1")
    await runtimes.configure(process, wanted)
    text = process.root.read_text(CONFIG)
    process.write(CONFIG, text + "# x\n")
    await runtimes.revert(process, wanted)
    assert toml(process, CONFIG)["plugins"]["cri"]["containerd"]["default_runtime_name"] == "crun"
    await runtimes.configure(process, wanted)
    process.write(
        CONFIG,
        process.root.read_text(CONFIG).replace('default_runtime_name = "nvidia"', 'default_runtime_name = "runc"'),
    )
    await runtimes.revert(process, wanted)
    assert toml(process, CONFIG)["plugins"]["cri"]["containerd"]["default_runtime_name"] == "runc"


async def test_regenerated_by_a_distribution(tmp_path: Path) -> None:
    """K3s writes its file anew: the new one is the original from then on."""
    process, wanted, _ = start(tmp_path, "containerd")
    await runtimes.configure(process, wanted)
    fresh = (CORPUS / "containerd" / "k3s-v2.toml").read_text()
    process.write(CONFIG, fresh)
    assert await runtimes.configure(process, wanted)
    await runtimes.revert(process, wanted)
    assert process.root.read_text(CONFIG) == fresh


async def test_removed_meanwhile(tmp_path: Path) -> None:
    process, wanted, _ = start(tmp_path, "containerd")
    await runtimes.configure(process, wanted)
    process.root.remove("/etc/containerd")
    await runtimes.revert(process, wanted)
    assert files(process) == {}


# --- odd files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["containerd", "crio", "docker"])
@pytest.mark.parametrize("target", ["real.conf", "/srv/real.conf", "../../srv/real.conf"])
async def test_link(tmp_path: Path, runtime: str, target: str) -> None:
    """A link stays one; what it leads to is written."""
    process = FakeProcess(tmp_path)
    path = DROP_INS["crio"] if runtime == "crio" else CONFIGS[runtime]
    real = target if target.startswith("/") else os.path.normpath(f"{path.rpartition('/')[0]}/{target}")
    if real == "/etc/srv/real.conf":
        real = "/etc/srv/real.conf"
    process.root.symlink(path, target)
    process.write(str(real), "{}\n" if runtime == "docker" else "")
    before = files(process)
    assert await runtimes.configure(process, settings(runtime))
    assert process.root.path(path, follow=False).is_symlink()
    assert "nvidia" in process.root.read_text(str(real)) or runtime == "containerd"
    assert process.root.read_text(str(real)).strip() not in ("", "{}")
    await runtimes.revert(process, settings(runtime))
    assert files(process) == before


def dangling(process: FakeProcess) -> None:
    process.root.symlink(CONFIG, "/nix/store/config.toml")


def folder(process: FakeProcess) -> None:
    process.root.mkdir(CONFIG)


def fifo(process: FakeProcess) -> None:
    process.root.mkdir("/etc/containerd")
    os.mkfifo(process.root.base / CONFIG[1:])


def loop(process: FakeProcess) -> None:
    process.root.symlink(CONFIG, "config.toml")


def data(content: bytes) -> Callable[[FakeProcess], None]:
    def write(process: FakeProcess) -> None:
        process.write(CONFIG, content)

    return write


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (dangling, "is a symbolic link to /nix/store/config.toml, which does not exist here"),
        (loop, "symbolic links"),
        (folder, "is a folder: give the path of the runtime's configuration file"),
        (fifo, "is not a regular file"),
        (data(b"\xef\xbb\xbfversion = 2\n"), "begins with a byte order mark"),
        (data(b"version = 2\n# \xff\xfe\n"), "is not UTF-8 text (byte 14)"),
        (data("version = 2\n".encode("utf-16")), "is not UTF-8 text"),
        (data(b"version = 2\n[a]\n[a]\n"), "is not valid TOML: Cannot declare ('a',) twice"),
        (data(b"version = 2\nversion = 3\n"), "is not valid TOML: Cannot overwrite a value"),
        (data(b"version = 2\n[plugins\n"), "is not valid TOML: "),
        (data(b"\x00\x00"), "is not valid TOML: "),
        (data(b"{}"), "is not valid TOML: "),
        (data(b'version = 2\nplugins = "none"\n'), "plugins is not a table"),
    ],
)
async def test_files_that_are_refused(tmp_path: Path, make: Callable[[FakeProcess], None], error: str) -> None:
    process = FakeProcess(tmp_path)
    make(process)
    with pytest.raises(RuntimeConfigError) as caught:
        await runtimes.configure(process, settings("containerd"))
    assert error in str(caught.value)
    assert CONFIG in str(caught.value)
    assert not process.root.exists(DROP_IN)
    assert not process.root.exists(STATE)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EIO])
async def test_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A read-only folder and its like: the file, the reason and the remedy, and all as it was."""
    process, wanted, _ = start(tmp_path, "containerd")
    before = files(process)
    real = runtime_files.write_atomic

    def write_atomic(path: Path, *args: Any, **kwargs: Any) -> None:
        if path.name == "config.toml":
            raise OSError(number, os.strerror(number), str(path))
        real(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(runtime_files, "write_atomic", write_atomic)
        with pytest.raises(RuntimeConfigError) as caught:
            await runtimes.configure(process, wanted)
    assert str(caught.value).startswith(f"{CONFIG} cannot be written: {os.strerror(number)}; it is as it was. ")
    assert files(process) == before


async def test_owner_and_attributes_stay(tmp_path: Path) -> None:
    process, wanted, _ = start(tmp_path, "containerd")
    real = process.root.path(CONFIG)
    if os.geteuid() == 0:
        os.chown(real, 4242, 4343)
    owner = (real.stat().st_uid, real.stat().st_gid)
    real.chmod(0o604)
    try:
        os.setxattr(real, "user.groundplane", b"kept")
    except OSError:
        attributes = []
    else:
        attributes = ["user.groundplane"]
    for function in (runtimes.configure, runtimes.revert):
        await function(process, wanted)
        assert (real.stat().st_uid, real.stat().st_gid, real.stat().st_mode & 0o777) == (*owner, 0o604)
        assert [name for name in os.listxattr(real) if name.startswith("user.")] == attributes


async def test_folder_that_was_there_stays(tmp_path: Path) -> None:
    process, wanted, _ = start(tmp_path, "containerd")
    process.root.mkdir("/etc/containerd/conf.d")
    await runtimes.configure(process, wanted)
    await runtimes.revert(process, wanted)
    assert process.root.is_dir("/etc/containerd/conf.d")
    process.root.remove("/etc/containerd/conf.d")
    await runtimes.configure(process, wanted)
    await runtimes.revert(process, wanted)
    assert not process.root.exists("/etc/containerd/conf.d")


TABLE = '[plugins."io.containerd.grpc.v1.cri"'


@pytest.mark.parametrize(
    ("runtime", "text", "error"),
    [
        ("containerd", "version = 2\nplugins.x = 1\nplugins.'io.containerd.grpc.v1.cri' = 1\n", "is not a table"),
        ("containerd", f"version = 2\n{TABLE}]\ncontainerd = 'x'\n", "containerd is not a table"),
        ("containerd", f"version = 2\n{TABLE}.containerd]\nruntimes = 'x'\n", "runtimes is not a table"),
        ("containerd", f"version = 2\n{TABLE}.containerd.runtimes]\nrunc = 'x'\n", ""),
        ("containerd", f"version = 2\n{TABLE}.containerd.runtimes.runc]\noptions = 'x'\n", "options is not a table"),
        ("containerd", f"version = 2\n{TABLE}.containerd]\ndefault_runtime_name = ['x']\n", ""),
        ("containerd", f"version = 2\n{TABLE}.containerd.runtimes.runc]\ncontainer_annotations = 'x'\n", "not a list"),
        ("containerd", "plugins.cri.containerd.runtimes = 'x'\n", "runtimes is not a table"),
        ("containerd", "[[plugins.cri]]\na = 1\n", "is not a table"),
        ("crio", "[[crio]]\na = 1\n", "no table can be made at crio"),
        ("crio", "crio.runtime.runtimes = 1\n", "runtimes"),
        ("crio", "crio.runtime.default_runtime = 1\n", ""),
        ("docker", '{"default-runtime": 1, "runtimes": {"runc": 2}}', ""),
    ],
)
async def test_values_of_other_types(tmp_path: Path, runtime: str, text: str, error: str) -> None:
    """Either an error that names the place, or a configuration; and all can be taken back."""
    process = FakeProcess(tmp_path)
    path = DROP_INS["crio"] if runtime == "crio" else CONFIGS[runtime]
    process.write(path, text)
    before = files(process)
    wanted = settings(runtime, annotation_prefixes=("cdi.k8s.io/",))
    if error:
        with pytest.raises(RuntimeConfigError, match=error) as caught:
            await runtimes.configure(process, wanted)
        assert path in str(caught.value)
    else:
        assert await runtimes.configure(process, wanted)
        await runtimes.low_level(process, wanted)
        await runtimes.revert(process, wanted)
    assert files(process) == before
