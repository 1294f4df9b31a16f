"""The CDI hooks on bundles as a runtime gives them (contracts/toolkit-cdi.md 3.5), and on images that mean harm."""

import os
import stat
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import unavailable

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes and mounts are made by root only")

ESCAPES = {
    "absolute": ("/link", "{outside}"),
    "relative": ("/link", "../../outside"),
    "many dots": ("/link", "../../../../../../../../../../../{outside}"),
    "nested": ("/a/b/link", "../../../../outside"),
    "chain": ("/link", "/second"),
}
"""Links of an image, by their path and target, through which a careless hook would leave the root."""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the host, outside the container's root file system, that must stay as it is."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_text("of the host")
    (folder / "file").chmod(0o640)
    return folder


def untouched(outside: Path) -> bool:
    """Whether the host's folder is as it was."""
    file = outside / "file"
    return (
        list(outside.iterdir()) == [file] and file.read_text() == "of the host" and file.stat().st_mode & 0o777 == 0o640
    )


def plant(bundle: Any, escape: str, outside: Path) -> str:
    """Put a link of ESCAPES into the image; its path."""
    path, target = ESCAPES[escape]
    bundle.link(path, target.format(outside=outside))
    if escape == "chain":
        bundle.link("/second", str(outside))
    return path


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("no-such-hook",), ("no-such-hook", "--flag", "x"), (), ("--nonsense",)])
def test_an_unknown_hook_warns_and_the_container_starts(hook: Any, arguments: tuple[str, ...]) -> None:
    said = hook(*arguments).stderr
    assert ("Unsupported CDI hook: no-such-hook" if "no-such-hook" in arguments else "No CDI hook specified") in said


@pytest.mark.parametrize(
    "name", ["create-symlinks", "update-ldcache", "enable-cuda-compat", "chmod", "disable-device-node-modification"]
)
def test_an_unknown_flag_of_a_known_hook_is_an_error(hook: Any, name: str) -> None:
    assert "flag provided but not defined: -nonsense" in hook(name, "--nonsense=1", ok=False).stderr


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("nvidia-cdi-hook", ()),
        ("nvidia-cdi-hook.real", ("--debug",)),
        ("nvidia-ctk", ("hook",)),
        ("nvidia-ctk.real", ("--quiet", "hook")),
        ("groundplane-host", ("nvidia-cdi-hook",)),
    ],
)
def test_hooks_run_under_each_name(hook: Any, bundle: Any, name: str, before: tuple[str, ...]) -> None:
    hook(*before, "create-symlinks", "--link", "libcuda.so.1::/usr/lib/libcuda.so", name=name)
    assert bundle.linked("usr/lib/libcuda.so") == "libcuda.so.1"


def test_quiet_and_debug_decide_what_is_said(hook: Any) -> None:
    assert "Unsupported" not in hook("--quiet", "other").stderr
    assert "Unsupported" not in hook("other", env={"NVIDIA_CTK_QUIET": "true"}).stderr
    assert "/b links to a" in hook("create-symlinks", "--link=a::/b", env={"NVIDIA_CTK_DEBUG": "true"}).stderr
    assert not hook("create-symlinks", "--link=a::/c", env={"NVIDIA_CTK_DEBUG": "false"}).stderr


def test_the_state_may_come_from_a_file_and_the_root_from_the_state(hook: Any, bundle: Any, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    state = tmp_path / "state.json"
    state.write_text(f'{{"bundle": "/nowhere", "root": "{elsewhere}"}}')
    hook("create-symlinks", "--container-spec", str(state), "--link", "a::/b")
    assert (elsewhere / "b").readlink() == Path("a")


@pytest.mark.parametrize("path", ["/", "", "//", "../../../../../../../../../.."])
def test_the_hosts_own_root_is_refused(hook: Any, bundle: Any, path: str) -> None:
    bundle.write(root={"path": path})
    for name in ("create-symlinks", "update-ldcache", "update-application-profile"):
        said = hook(name, ok=False).stderr
        assert "root file system" in said


def test_a_state_that_is_none_is_an_error(toolkit: Path) -> None:
    program = str(toolkit / "nvidia-cdi-hook")
    done = subprocess.run([program, "create-symlinks"], input="{", text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert "cannot read the container's state" in done.stderr


# --- create-symlinks -------------------------------------------------------------------------------------------------


def test_links_are_made_with_their_folders(hook: Any, bundle: Any) -> None:
    hook("create-symlinks", "--link", "libcuda.so.1::/usr/lib/a/libcuda.so", "--link", "../x::/etc/y")
    assert bundle.linked("usr/lib/a/libcuda.so") == "libcuda.so.1"
    assert bundle.linked("etc/y") == "../x"
    assert bundle.names("usr/lib/a") == ["libcuda.so"]


def test_a_right_link_stays_and_another_file_is_replaced(hook: Any, bundle: Any) -> None:
    right = bundle.link("/right", "target")
    before = right.lstat().st_ino
    bundle.link("/wrong", "elsewhere")
    bundle.file("/file", "text")
    hook("create-symlinks", "--link", "target::/right", "--link", "target::/wrong", "--link", "target::/file")
    assert right.lstat().st_ino == before
    assert {bundle.linked(name) for name in ("right", "wrong", "file")} == {"target"}


@pytest.mark.parametrize("link", ["a", "a:b", "a::b::c", "::", "a::", "::/b", "a::/", "a::/x/.."])
def test_a_link_that_is_none_is_an_error(hook: Any, bundle: Any, link: str) -> None:
    hook("create-symlinks", "--link", link, ok=False)
    assert bundle.names() == []


@pytest.mark.parametrize("escape", ESCAPES)
def test_no_link_leads_create_symlinks_outside(hook: Any, bundle: Any, outside: Path, escape: str) -> None:
    path = plant(bundle, escape, outside)
    assert path in hook("create-symlinks", "--link", f"target::{path}/file", ok=False).stderr  # it leads nowhere inside
    assert untouched(outside)


@pytest.mark.parametrize("escape", ESCAPES)
def test_a_link_is_followed_as_the_container_would(hook: Any, bundle: Any, outside: Path, escape: str) -> None:
    path = plant(bundle, escape, outside)
    inside = [bundle.root / "outside", bundle.root / str(outside).lstrip("/")]
    for folder in inside:
        folder.mkdir(parents=True)
    hook("create-symlinks", "--link", f"target::{path}/file")
    assert [str((folder / "file").readlink()) for folder in inside if (folder / "file").is_symlink()] == ["target"]
    assert untouched(outside)


def test_dots_in_the_links_own_path_stay_inside(hook: Any, bundle: Any, outside: Path) -> None:
    hook("create-symlinks", "--link", "target::/../../outside/file", "--link", "target::../../outside/new")
    assert untouched(outside)
    assert bundle.names("outside") == ["file", "new"]


def test_a_file_in_the_way_of_a_folder_is_an_error_that_names_the_link(hook: Any, bundle: Any) -> None:
    bundle.file("/usr", "no folder")
    assert "/usr/lib/x" in hook("create-symlinks", "--link", "a::/usr/lib/x", ok=False).stderr


# --- chmod -----------------------------------------------------------------------------------------------------------


def test_modes_are_set_and_what_is_missing_is_passed_over(hook: Any, bundle: Any) -> None:
    bundle.file("/dev/dri/card0", mode=0o600)
    (bundle.root / "dev/dri").chmod(0o700)
    hook("chmod", "--mode", "755", "--path", "/dev/dri", "--path", "/dev/nvidia-caps", "--path", "/dev/dri/card0")
    assert stat.S_IMODE((bundle.root / "dev/dri").stat().st_mode) == 0o755
    assert stat.S_IMODE((bundle.root / "dev/dri/card0").stat().st_mode) == 0o755


@pytest.mark.parametrize("mode", [(), ("--mode", ""), ("--mode", "9"), ("--mode", "rwx"), ("--mode", "77777")])
def test_chmod_wants_an_octal_mode(hook: Any, mode: tuple[str, ...]) -> None:
    assert "mode" in hook("chmod", *mode, "--path", "/dev", ok=False).stderr


@pytest.mark.parametrize("escape", ESCAPES)
def test_no_link_leads_chmod_outside(hook: Any, bundle: Any, outside: Path, escape: str) -> None:
    path = plant(bundle, escape, outside)
    hook("chmod", "--mode", "777", "--path", f"{path}/file", "--path", path)  # inside there is nothing to change
    assert untouched(outside)


# --- enable-cuda-compat ----------------------------------------------------------------------------------------------


def library(note: bytes | None = None) -> bytes:
    """A small ELF file, with a note about forward compatibility if one is given."""
    names = b"\0.shstrtab\0.note.cuda.fwd_compatibility\0"
    owner = b"NVIDIA Corporation\0"
    data = b"" if note is None else struct.pack("<III", len(owner), len(note), 1) + owner.ljust(20, b"\0") + note
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 0, 64 + len(data) + len(names), 0, 64, 56, 0, 64, 3 if data else 2, 1,
    )  # fmt: skip
    sections = [(0, 0, 0, 0, 0, 0, 0, 0, 0, 0), (1, 3, 0, 0, 64 + len(data), len(names), 0, 0, 1, 0)]
    if data:
        sections.append((11, 7, 0, 0, 64, len(data), 0, 0, 4, 0))
    return header + data + names + b"".join(struct.pack("<IIQQQQIIQQ", *section) for section in sections)


NOTE = b'{"Format":1,"CUDA Version":"13.0","Driver":[535,550,570],"Device":[1]}'
COMPAT = [  # library's version, its note, arguments, whether it is used
    ("580.65.06", None, ["--host-driver-version=570.1.1"], True),
    ("580.65.06", None, ["--host-driver-version=580.1"], False),
    ("580.65.06", None, ["--host-driver-version=590.1"], False),
    ("580.65.06", None, [], False),
    ("580.65.06", None, ["--host-driver-version="], False),
    ("580.65.06", None, ["--host-driver-version=nonsense"], False),
    ("580.65.06", None, ["--host-cuda-version=12.4"], False),
    ("580.65.06", NOTE, ["--host-driver-version=570.1.1"], True),
    ("580.65.06", NOTE, ["--host-driver-version=560.1.1"], False),  # not among the note's
    ("535.10", NOTE, ["--host-driver-version=535.20"], False),  # older than the host's
    ("535.30", NOTE, ["--host-driver-version=535.20"], True),
    ("580.65.06", NOTE, ["--host-cuda-version=12.4"], True),
    ("580.65.06", NOTE, ["--host-cuda-version=13.0"], False),
    ("580.65.06", NOTE, ["--host-cuda-version=13.1"], False),
    ("580.65.06", b"{", ["--host-driver-version=570.1"], True),  # a note that cannot be read is none
]


@pytest.mark.parametrize(("version", "note", "arguments", "used"), COMPAT)
def test_compat_libraries_are_used_where_they_may(
    hook: Any, bundle: Any, version: str, note: bytes | None, arguments: list[str], used: bool
) -> None:
    bundle.file(f"/usr/local/cuda-13/compat/libcuda.so.{version}", library(note))
    bundle.link("/usr/local/cuda", "/usr/local/cuda-13")
    bundle.link("/usr/local/cuda-13/compat/libcuda.so.1", f"libcuda.so.{version}")
    hook("enable-cuda-compat", *arguments)
    made = list(bundle.root.glob("etc/ld.so.conf.d/00-compat-*.conf"))
    assert len(made) == used
    for file in made:
        assert file.read_text() == "/usr/local/cuda-13/compat\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_a_second_start_with_another_driver_decides_anew(hook: Any, bundle: Any) -> None:
    bundle.file("/usr/local/cuda/compat/libcuda.so.580.65.06", library())
    for version, used in (("570.1", 1), ("570.1", 1), ("590.1", 0), ("590.1", 0), ("535.1", 1)):
        hook("enable-cuda-compat", f"--host-driver-version={version}")
        assert len(list(bundle.root.glob("etc/ld.so.conf.d/00-compat-*.conf"))) == used


@pytest.mark.parametrize("files", [[], ["libcuda.so.580.1", "libcuda.so.590.1"], ["libcuda.so.1"], ["other.so.1.2"]])
def test_without_exactly_one_library_nothing_is_done(hook: Any, bundle: Any, files: list[str]) -> None:
    for name in files:
        bundle.file(f"/opt/compat/{name}", library())
    hook("enable-cuda-compat", "--host-driver-version=535.1", "--cuda-compat-container-root=/opt/compat")
    assert not (bundle.root / "etc").exists()


def test_a_folder_that_would_be_more_than_a_line_is_refused(hook: Any) -> None:
    root = "--cuda-compat-container-root=/a\n/b"
    assert "no absolute path" in hook("enable-cuda-compat", "--host-driver-version=1.2", root, ok=False).stderr


@pytest.mark.parametrize("escape", ["absolute", "relative"])
def test_no_link_leads_enable_cuda_compat_outside(hook: Any, bundle: Any, outside: Path, escape: str) -> None:
    bundle.file("/usr/local/cuda/compat/libcuda.so.580.1", library())
    bundle.link("/etc", ESCAPES[escape][1].format(outside=outside))
    (outside / "ld.so.conf.d").mkdir()
    kept = outside / "ld.so.conf.d/00-compat-toolkit.conf"
    kept.write_text("of the host")
    hook("enable-cuda-compat", "--host-driver-version=535.1", ok=False)
    hook("enable-cuda-compat", "--host-driver-version=590.1")
    assert kept.read_text() == "of the host"


# --- update-application-profile --------------------------------------------------------------------------------------


@needs_root
def test_the_profile_has_a_bit_for_each_gpu(hook: Any, bundle: Any) -> None:
    (bundle.root / "dev").mkdir()
    for name, minor in (("nvidia0", 0), ("nvidia5", 5), ("nvidia70", 70), ("nvidiactl", 255), ("nvidia-uvm", 1)):
        os.mknod(bundle.root / "dev" / name, stat.S_IFCHR | 0o600, os.makedev(195, minor))
    bundle.file("/dev/nvidia3", "no device")
    said = hook("update-application-profile").stderr
    made = bundle.root / "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
    assert made.read_text() == (
        '{"profiles":[{"name":"_container_","settings":["EGLVisibleDGPUDevices",0x21]}],'
        '"rules":[{"pattern":[],"profile":"_container_"}]}'
    )
    assert (stat.S_IMODE(made.stat().st_mode), stat.S_IMODE(made.parent.stat().st_mode)) == (0o444, 0o555)
    assert "dropping invalid minor number 70" in said


@pytest.mark.parametrize("with_dev", [False, True])
def test_without_gpus_there_is_no_profile(hook: Any, bundle: Any, with_dev: bool) -> None:
    if with_dev:
        (bundle.root / "dev").mkdir()
    hook("update-application-profile")
    assert not (bundle.root / "etc").exists()


# --- disable-device-node-modification --------------------------------------------------------------------------------

PARAMS = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: {}\nDeviceFileUID: 0\n"


@needs_root
def test_the_container_sees_other_driver_parameters(toolkit: Path, bundle: Any, tmp_path: Path) -> None:
    params = tmp_path / "params"
    params.write_text(PARAMS.format(1))
    seen = bundle.file("/proc/driver/nvidia/params", PARAMS.format(1))
    script = (
        f"{toolkit}/nvidia-cdi-hook disable-device-node-modification --params-file {params} && cat {seen} "
        f"&& ! touch {seen} 2>/dev/null && ls -A {bundle.root}/run && grep -c nvidia-ctk-hook /proc/self/mountinfo"
    )
    command = ["unshare", "--mount", "sh", "-c", script]
    done = subprocess.run(command, input=bundle.state(), text=True, capture_output=True, check=False)
    if "unshare" in done.stderr:
        unavailable(f"mount namespaces cannot be made here: {done.stderr}")
    assert done.stdout == PARAMS.format(0) + "0\n", done.stderr
    assert seen.read_text() == PARAMS.format(1)


@pytest.mark.parametrize("text", [PARAMS.format(0), "nothing\n", None])
def test_parameters_that_are_right_stay(hook: Any, bundle: Any, tmp_path: Path, text: str | None) -> None:
    params = tmp_path / "params"
    if text is not None:
        params.write_text(text)
    hook("disable-device-node-modification", "--params-file", str(params))
    assert bundle.names() == []
