"""update-ldcache with this machine's ldconfig on root file systems of several kinds (contracts/toolkit-cdi.md 3.5)."""

import os
import platform
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import unavailable

LDCONFIG = next((path for path in ("/sbin/ldconfig.real", "/sbin/ldconfig") if Path(path).is_file()), "")
MUSL_PATH = f"/etc/ld-musl-{platform.machine()}.path"
MULTIARCH = f"{platform.machine()}-linux-gnu"
INCLUDE = "include /etc/ld.so.conf.d/*.conf\n"
DEBIAN = [f"/lib/{MULTIARCH}", f"/usr/lib/{MULTIARCH}", "/lib", "/usr/lib"]
OTHERS = ["/lib", "/usr/lib", "/lib64", "/usr/lib64"]


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    """This machine can make the namespaces that the hook needs, and has an ldconfig."""
    if not LDCONFIG:
        unavailable("no ldconfig in /sbin (Debian: apt-get install libc-bin)")
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--ipc", "--uts", "--net", "--fork", "true"], capture_output=True, check=False
    )
    if done.returncode:
        unavailable(f"namespaces cannot be made here: {done.stderr.decode().strip()}")


@pytest.fixture
def folder(bundle: Any) -> str:
    """A folder of the image with a library under its full name; its soname is another."""
    library = Path(f"/lib/{MULTIARCH}/libz.so.1").resolve()
    if not library.exists():
        unavailable("no libz.so.1 to stand for a library (Debian: apt-get install zlib1g)")
    made = bundle.file("/opt/nvidia/libz.so.1.2.3")
    shutil.copy(library, made)
    return "/opt/nvidia"


def drop_in(bundle: Any, prefix: str) -> list[str]:
    """The folders in the one drop-in with this prefix; none without one."""
    found = list(bundle.root.glob(f"etc/ld.so.conf.d/{prefix}*.conf"))
    assert len(found) <= 1
    for file in found:
        assert stat.S_IMODE(file.stat().st_mode) == 0o644
    return [line for file in found for line in file.read_text().splitlines()]


def cache(bundle: Any) -> str:
    """What the container's cache has."""
    command = [LDCONFIG, "-p", "-C", str(bundle.root / "etc/ld.so.cache")]
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


def test_a_library_of_a_mounted_folder_is_found(hook: Any, bundle: Any, folder: str) -> None:
    bundle.file("/etc/debian_version", "12")
    hook("update-ldcache", "--folder", folder, "--folder", "/usr/lib", "--folder", folder)
    assert "libz.so.1 (libc6" in cache(bundle)
    assert f"=> {folder}/libz.so.1\n" in cache(bundle)
    assert bundle.linked(f"{folder}/libz.so.1") == "libz.so.1.2.3"
    assert (bundle.root / "etc/ld.so.conf").read_text() == INCLUDE
    assert drop_in(bundle, "00-nvcr-") == [folder]
    assert drop_in(bundle, "zz-nvcr-") == DEBIAN


def test_nothing_but_the_loaders_files_is_left(hook: Any, bundle: Any, folder: str) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    hook("update-ldcache", "--folder", folder)
    assert bundle.names() == ["etc", "opt"]
    assert bundle.names("/etc") == ["ld.so.cache", "ld.so.conf", "ld.so.conf.d"]
    assert Path("/proc/self/mountinfo").read_text() == mounts


def test_a_second_run_adds_only_what_is_new(hook: Any, bundle: Any, folder: str) -> None:
    hook("update-ldcache", "--folder", folder)
    before = {path: path.read_text() for path in bundle.root.glob("etc/ld.so.conf*/*")}
    assert len(before) == 2
    hook("update-ldcache", "--folder", folder)
    assert {path: path.read_text() for path in bundle.root.glob("etc/ld.so.conf*/*")} == before
    bundle.file("/opt/other/empty")
    hook("update-ldcache", "--folder", folder, "--folder", "/opt/other")
    assert drop_in(bundle, "00-nvcr-") == [folder, "/opt/other"]
    assert f"=> {folder}/libz.so.1" in cache(bundle)


def test_another_family_has_other_system_folders(hook: Any, bundle: Any, folder: str) -> None:
    hook("update-ldcache", "--folder", folder)
    assert drop_in(bundle, "zz-nvcr-")[:4] == OTHERS


def test_without_folders_the_cache_is_made_all_the_same(hook: Any, bundle: Any) -> None:
    hook("update-ldcache")
    assert drop_in(bundle, "00-nvcr-") == []
    assert "0 libs found" in cache(bundle)


@pytest.mark.parametrize(
    ("config", "becomes", "added"),
    [
        (INCLUDE, INCLUDE, True),
        ("include ld.so.conf.d/*.conf\n", "include ld.so.conf.d/*.conf\n", True),
        ("# none\n/opt/mine", "# none\n/opt/mine\n" + INCLUDE, True),
        ("/opt/nvidia/ # known\n" + INCLUDE, None, False),
        ("include /etc/more.conf\n", "include /etc/more.conf\n" + INCLUDE, False),
        ("", INCLUDE, True),
    ],
)
def test_the_images_configuration_stays_and_includes_the_drop_ins(
    hook: Any, bundle: Any, folder: str, config: str, becomes: str | None, added: bool
) -> None:
    made = bundle.file("/etc/ld.so.conf", config)
    bundle.file("/etc/more.conf", f"{folder}\n")
    hook("update-ldcache", "--folder", folder)
    assert made.read_text() == (config if becomes is None else becomes)
    assert drop_in(bundle, "00-nvcr-") == ([folder] if added else [])
    assert f"=> {folder}/libz.so.1" in cache(bundle)


# --- musl ------------------------------------------------------------------------------------------------------------


def test_musls_file_begins_with_what_it_stands_in_place_of(hook: Any, bundle: Any, folder: str) -> None:
    bundle.file("/etc/alpine-release", "3.22")
    hook("update-ldcache", "--folder", folder)
    lines = (bundle.root / MUSL_PATH.lstrip("/")).read_text().splitlines()
    assert lines[0] == folder
    assert {"/lib", "/usr/local/lib", "/usr/lib"} < set(lines)
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize("present", ["/lib:/usr/local/lib", "/lib\n/usr/local/lib\n"])
def test_musls_file_keeps_what_it_has_and_a_second_run_adds_nothing(
    hook: Any, bundle: Any, folder: str, present: str
) -> None:
    bundle.file("/etc/alpine-release", "3.22")
    made = bundle.file(MUSL_PATH, present)
    hook("update-ldcache", "--folder", folder)
    once = made.read_text()
    assert once.startswith(present.rstrip("\n") + "\n" + folder + "\n")
    hook("update-ldcache", "--folder", folder)
    assert made.read_text() == once


# --- errors and harm -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["relative", "", "/a\n/b"])
def test_a_folder_that_is_none_is_refused(hook: Any, bundle: Any, folder: str) -> None:
    assert "no absolute path" in hook("update-ldcache", f"--folder={folder}", ok=False).stderr
    assert bundle.names() == []


def test_a_missing_ldconfig_is_named(hook: Any) -> None:
    assert "/no/ldconfig" in hook("update-ldcache", "--ldconfig-path", "/no/ldconfig", ok=False).stderr
    assert "ldconfig-path must be specified" in hook("update-ldcache", "--ldconfig-path", "", ok=False).stderr


def test_the_program_itself_is_preferred_to_a_script(hook: Any, bundle: Any, folder: str, tmp_path: Path) -> None:
    script = tmp_path / "ldconfig"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    shutil.copy(LDCONFIG, tmp_path / "ldconfig.real")
    hook("update-ldcache", "--ldconfig-path", str(script), "--folder", folder)
    assert f"=> {folder}/libz.so.1" in cache(bundle)


def test_a_failure_of_ldconfig_fails_the_hook(hook: Any, bundle: Any, folder: str) -> None:
    (bundle.root / "etc/ld.so.cache~").mkdir(parents=True)  # ldconfig writes it first
    assert "exit status 1" in hook("update-ldcache", "--folder", folder, ok=False).stderr


def test_an_images_own_ldconfig_never_runs(hook: Any, bundle: Any, folder: str) -> None:
    for name in ("/sbin/ldconfig", "/sbin/ldconfig.real", "/bin/sh"):
        bundle.file(name, "#!/bin/sh\ntouch /ran\n", 0o755)
    bundle.file("/etc/ld.so.preload", "/opt/nvidia/libz.so.1.2.3")
    environment = {"LD_PRELOAD": "/evil.so", "LD_LIBRARY_PATH": "/evil", "GLIBC_TUNABLES": "x=y", "PATH": "/evil"}
    hook("update-ldcache", "--folder", folder, env=environment)
    assert "ran" not in bundle.names()


@pytest.mark.parametrize("path", ["/etc", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.cache", "/opt", "/run"])
def test_links_to_the_host_lead_nowhere(hook: Any, bundle: Any, tmp_path: Path, path: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    if path != "/etc":
        (bundle.root / "etc").mkdir()
    bundle.link(path, str(outside))
    hook("update-ldcache", "--folder", "/opt/nvidia", ok=None)
    assert list(outside.iterdir()) == []


def test_views_of_processes_lead_nowhere(hook: Any, bundle: Any, tmp_path: Path) -> None:
    """With the host's processes in sight, /proc/1/root is a way to the host's file system for whoever is root."""
    outside = tmp_path / "outside"
    outside.mkdir()
    library = Path(f"/lib/{MULTIARCH}/libz.so.1").resolve()
    shutil.copy(library, outside / "libz.so.1.2.3")
    (bundle.root / "proc").mkdir()
    (bundle.root / "host/proc").mkdir(parents=True)
    (bundle.root / "etc").mkdir()
    script = (
        f"mount --bind /proc {bundle.root}/proc && mount --bind /proc {bundle.root}/host/proc && "
        f"echo /proc/$$/root{outside} > {bundle.root}/etc/ld.so.conf && "
        f"echo /host/proc/$$/root{outside} >> {bundle.root}/etc/ld.so.conf && "
        f"{hook.toolkit}/nvidia-cdi-hook update-ldcache"
    )
    command = ["unshare", "--mount", "sh", "-c", script]
    done = subprocess.run(command, input=bundle.state(), text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in outside.iterdir()] == ["libz.so.1.2.3"]  # no link of ldconfig's
    assert str(outside) not in cache(bundle)


def test_it_works_in_a_user_namespace(hook: Any, bundle: Any, folder: str) -> None:
    """A pod with hostUsers: false has its hooks run there."""
    command = ["unshare", "--user", "--map-root-user", "--mount", f"{hook.toolkit}/nvidia-cdi-hook"]
    done = subprocess.run(
        [*command, "update-ldcache", "--folder", folder],
        input=bundle.state(), text=True, capture_output=True, check=False,
    )  # fmt: skip
    if done.stderr.startswith("unshare:"):
        unavailable(f"user namespaces cannot be made here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert f"=> {folder}/libz.so.1" in cache(bundle)


@pytest.mark.parametrize("path", ["/etc/ld.so.conf", "/etc/ld.so.conf.d/x.conf", MUSL_PATH])
def test_what_never_ends_does_not_hold_a_container_up(hook: Any, bundle: Any, path: str) -> None:
    bundle.file("/etc/alpine-release")
    if path.endswith("x.conf"):
        bundle.file("/etc/ld.so.conf", INCLUDE)
    (bundle.root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(bundle.root / path.lstrip("/"))
    assert f"{path}: it is no regular file" in hook("update-ldcache", "--folder", "/x", ok=False).stderr


def test_the_inner_program_is_nobody_elses(toolkit: Path) -> None:
    command = [str(toolkit / "groundplane-host"), "groundplane-update-ldcache", "/sbin/ldconfig", "/"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "update-ldcache only" in done.stderr
