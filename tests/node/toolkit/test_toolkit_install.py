"""Installing the host's programs: contracts/toolkit-cdi.md 4.5, and bad luck at every step of it."""

import errno
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess

from groundplane.api.release import Release
from groundplane.node.toolkit import install
from groundplane.node.toolkit.install import InstallError, Wanted

FOLDER = "/usr/local/nvidia/toolkit"
SPEC = f"{FOLDER}/{install.SPECS}/runtime.nvidia.com-gpu.json"
PROGRAMS = {
    *("nvidia-cdi-hook", "nvidia-ctk", "nvidia-ctk.real", "nvidia-container-runtime", "nvidia-container-runtime.real"),
    *("nvidia-container-runtime.cdi", "nvidia-container-runtime.cdi.real", "nvidia-container-runtime.legacy"),
    *("nvidia-container-runtime.legacy.real", "nvidia-container-runtime-hook", "nvidia-container-runtime-hook.real"),
}


def wanted(text: str = "new\n", release: Release = Release.V26_7) -> Wanted:
    return Wanted(
        folder=FOLDER,
        program="/image/groundplane-host",
        files={".config/nvidia-container-runtime/config.toml": text},
        release=release,
        durable=False,
    )


@pytest.fixture
def process(tmp_path: Path) -> FakeProcess:
    made = FakeProcess(tmp_path)
    made.write("/image/groundplane-host", b"\x7fELF one")
    return made


def installed(process: FakeProcess) -> dict[str, bytes | str]:
    root = process.path(FOLDER)
    paths = (path for path in sorted(root.rglob("*")) if path.is_symlink() or path.is_file())
    return {
        str(path.relative_to(root)): str(path.readlink()) if path.is_symlink() else path.read_bytes() for path in paths
    }


@pytest.mark.parametrize(
    ("release", "names"),
    [(Release.V26_7, PROGRAMS), (Release.V26_3, PROGRAMS | {"nvidia-cdi-hook.real"})],
)
def test_4_5_files(release: Release, names: set[str], process: FakeProcess) -> None:
    before = os.umask(0o077)
    try:
        install.install(process, wanted(release=release))
    finally:
        os.umask(before)
    root = process.path(FOLDER)
    found = installed(process)
    assert set(found) == names | {"nvidia-container-toolkit", ".config/nvidia-container-runtime/config.toml"}
    assert found["nvidia-container-toolkit"] == "nvidia-container-runtime-hook"
    assert len({(root / name).stat().st_ino for name in names}) == 1
    assert all(found[name] == b"\x7fELF one" for name in names)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    assert {modes[path] for path in modes if path.is_dir()} == {0o755}
    assert {modes[root / name] for name in names} == {0o755}
    assert modes[root / ".config/nvidia-container-runtime/config.toml"] == 0o644


def test_an_upgrade_leaves_nothing_old_but_what_containers_run(process: FakeProcess) -> None:
    install.install(process, wanted("old\n"))
    process.write(f"{FOLDER}/libnvidia-container.so.1", "stale")
    running = (process.path(FOLDER) / "nvidia-cdi-hook").open("rb")
    process.write("/image/groundplane-host", b"\x7fELF two")
    install.install(process, wanted())
    found = installed(process)
    assert found["nvidia-cdi-hook"] == b"\x7fELF two"
    assert "libnvidia-container.so.1" not in found
    assert found[".config/nvidia-container-runtime/config.toml"] == b"new\n"
    with running:
        assert running.read() == b"\x7fELF one"
    assert [path.name for path in process.path(FOLDER).parent.iterdir()] == ["toolkit"]


def test_the_shims_specs_are_taken_over(process: FakeProcess) -> None:
    install.install(process, wanted())
    process.write(SPEC, "{}")
    process.root.symlink(f"{FOLDER}/{install.SPECS}/link.json", "/etc/shadow")
    process.write(f"{FOLDER}/{install.SPECS}/.half.json", "{")
    install.install(process, wanted())
    assert [path.name for path in process.path(SPEC).parent.iterdir()] == ["runtime.nvidia.com-gpu.json"]


def test_something_else_at_the_folders_place_is_replaced(process: FakeProcess) -> None:
    process.write(FOLDER, "a file")
    install.install(process, wanted())
    assert "nvidia-ctk" in installed(process)


def test_no_program_in_the_image(process: FakeProcess) -> None:
    install.install(process, wanted("old\n"))
    before = installed(process)
    process.root.remove("/image/groundplane-host")
    with pytest.raises(InstallError, match=r"/image/groundplane-host is not in this image; .*--toolkit-source-root"):
        install.install(process, wanted())
    assert installed(process) == before


def test_a_root_that_is_no_folder(process: FakeProcess) -> None:
    process.write("/usr/local", "")
    with pytest.raises(InstallError, match=f"cannot install into {FOLDER}"):
        install.install(process, wanted())


def test_copies_where_there_are_no_hard_links(process: FakeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    install.install(process, wanted())
    found = installed(process)
    assert all(found[name] == b"\x7fELF one" for name in PROGRAMS)
    assert os.access(process.path(FOLDER) / "nvidia-ctk", os.X_OK)


def test_renames_where_folders_cannot_be_exchanged(process: FakeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "exchange", lambda one, other: False)
    install.install(process, wanted("old\n"))
    install.install(process, wanted())
    assert installed(process)[".config/nvidia-container-runtime/config.toml"] == b"new\n"
    assert [path.name for path in process.path(FOLDER).parent.iterdir()] == ["toolkit"]


def test_exchange(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    (one / "in").write_text("")
    other.write_text("text")
    if not install.exchange(one, other):
        pytest.skip("this file system cannot exchange")
    assert one.read_text() == "text"
    assert (other / "in").exists()
    with pytest.raises(FileNotFoundError):
        install.exchange(one, tmp_path / "none")


# --- bad luck at every step -------------------------------------------------------------------------------------------

WITH_TROUBLE = """
    import os, signal, sys
    from pathlib import Path

    sys.path.insert(0, sys.argv[1])
    from node.fakeprocess import FakeProcess
    from groundplane.api.release import Release
    from groundplane.node.toolkit import install

    folder, trouble, exchange = Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "exchange"
    if not exchange:
        install.exchange = lambda one, other: False
    process = FakeProcess(folder / "node")
    EVENTS = ("open", "os.mkdir", "os.link", "os.symlink", "os.rename", "os.remove", "os.rmdir", "os.chmod",
              "ctypes.call_function", "shutil.rmtree")

    def wanted(text):
        return install.Wanted(folder="/r/toolkit", program="/image/host", release=Release.V26_7, durable=False,
                              files={".config/nvidia-container-runtime/config.toml": text})

    def tree():
        root = process.path("/r/toolkit")
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def make(text):
        process.write("/image/host", text)
        install.install(process, wanted(text))
        return tree()

    def interrupted(number, text):
        seen = 0
        process.write("/image/host", text)
        def hook(event, arguments):
            nonlocal seen
            if event not in EVENTS:
                return
            if event == "open" and not str(arguments[0]).startswith(str(folder)):
                return
            seen += 1
            if seen != number:
                return
            if trouble == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(28, "No space left on device")
        sys.addaudithook(hook)
        try:
            install.install(process, wanted(text))
        except install.InstallError as error:
            assert "No space left on device; free some space" in str(error), error
            os._exit(3)
        os._exit(0 if seen >= number else 4)

    new = make("new")
    number, outcomes = 0, []
    while True:
        number += 1
        old = make("old")
        child = os.fork()
        if child == 0:
            interrupted(number, "new")
        _, status = os.waitpid(child, 0)
        there = process.path("/r/toolkit").exists()
        if there:
            assert tree() in (old, new), (number, sorted(tree()))
        else:
            assert not exchange and trouble == "kill", f"gone at step {number}"
        install.recover(process.path("/r/toolkit"))
        assert tree() in (old, new), (number, "after recovery")
        outcomes.append("new" if tree() == new else "old")
        if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status) == 3:
            assert sorted(path.name for path in process.path("/r").iterdir()) == ["toolkit"]
        assert make("new") == new
        assert sorted(path.name for path in process.path("/r").iterdir()) == ["toolkit"]
        if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status) == 4:
            break
    assert {"old", "new"} <= set(outcomes), outcomes
    print(number)
"""


@pytest.mark.parametrize("how", ["exchange", "rename"])
@pytest.mark.parametrize("trouble", ["kill", "full"])
def test_trouble_at_every_step_leaves_a_whole_folder(trouble: str, how: str, tmp_path: Path) -> None:
    """Before each call that changes the disk the program is killed, or the disk is full."""
    tests = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITH_TROUBLE), tests, str(tmp_path), trouble, how],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30
