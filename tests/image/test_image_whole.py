"""The image, built twice from nothing but downloads: the same bytes, small, complete, clean, and it runs."""

import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import unavailable

from deploy.image import archive, build, contents, launcher
from groundplane.lab import images
from groundplane.node.toolkit.settings import HOST_PROGRAM

pytestmark = pytest.mark.real


SOURCES = ("src", "native", "pyproject.toml", "README.md", "LICENSE", "requirements.lock")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the tree, which nobody edits between two builds, and the time of its images."""
    folder = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        path = build.TREE / name
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, folder / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        yield folder


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> archive.Image:
    """The image, with no layer taken from the cache."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            unavailable(f"the image's base is made of Debian packages, and {tool} is not on PATH")
    return build.image("groundplane:test", tree=source, layers_folder=tmp_path_factory.mktemp("first"), fresh=True)


@pytest.fixture(scope="module")
def root(built: archive.Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's file system."""
    folder = tmp_path_factory.mktemp("root")
    for part in built.layers:
        with tarfile.open(part.path) as tar:
            tar.extractall(folder, filter="fully_trusted")
    folder.chmod(0o755)  # a test's folder is its owner's alone, which an image's root is not
    return folder


def entries(built: archive.Image) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    for part in built.layers:
        with tarfile.open(part.path) as tar:
            for info in tar:
                yield tar, info


def run(root: Path, *command: str, user: int = contents.USER) -> subprocess.CompletedProcess[str]:
    """Run a command in the image's file system as its user, who cannot write there."""
    if os.geteuid() != 0:
        unavailable("running a program in another root needs root")
    chroot = ["chroot", f"--userspec={user}:{user}", str(root)]
    environment = {**contents.ENVIRONMENT, "HOME": "/home/nonroot"}
    return subprocess.run([*chroot, *command], env=environment, capture_output=True, text=True, check=False)


def test_two_builds_are_the_same_image(source: Path, built: archive.Image, tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        again = build.image("groundplane:test", tree=source, layers_folder=tmp_path, fresh=True)
    finally:
        os.umask(old)
    assert [part.diff_id for part in again.layers] == [part.diff_id for part in built.layers]
    (first,), (second,) = (archive.write([each], tmp_path / f"{n}.tar") for n, each in enumerate((built, again)))
    assert first.digest == second.digest
    assert (tmp_path / "0.tar").read_bytes() == (tmp_path / "1.tar").read_bytes()


def test_it_is_small(built: archive.Image) -> None:
    assert sum(part.unpacked for part in built.layers) < 200_000_000


def test_nothing_in_it_names_its_builder(built: archive.Image) -> None:
    secrets = (str(build.TREE).encode(), b"/pytest-of-", b"groundplane-image-", str(Path.home() / ".cache").encode())
    for tar, info in entries(built):
        assert (info.uid, info.gid, info.uname) == (0, 0, ""), info.name
        assert not info.mode & (stat.S_ISUID | stat.S_ISGID), info.name
        if info.isfile():
            file = tar.extractfile(info)
            assert file is not None
            data = file.read()
            assert not [each for each in secrets if each in data], info.name


def test_what_is_not_needed_is_not_there(built: archive.Image) -> None:
    names = {info.name for _, info in entries(built)}
    unwanted = ("/pip/", "/ensurepip/", "/share/man/", "/share/locale/", ".pyi", "/__pycache__/__pycache__")
    assert not [name for name in names if any(part in name for part in unwanted)]
    assert not [name for name in names if name.startswith(("usr/lib/python3/", "var/lib/apt", "var/lib/dpkg/info"))]


def test_all_python_is_compiled_beforehand(built: archive.Image) -> None:
    names = {info.name for _, info in entries(built)}
    tag = "cpython-" + built.annotations["groundplane.python"].replace(".", "")
    sources = [
        Path(name) for name in names if name.endswith(".py") and "python3" in name and not name.startswith("etc/")
    ]
    lacking = [path for path in sources if str(path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc") not in names]
    assert len(sources) > 500
    assert not lacking


def test_its_base_is_recorded(built: archive.Image, root: Path) -> None:
    recorded = (root / "usr/share/groundplane/packages").read_text().splitlines()
    labelled = built.annotations["groundplane.base.packages"].split()
    assert [line.split()[0] for line in recorded] == [entry.split("=")[0] for entry in labelled]
    assert {"bash", "busybox", "libc6", "libssl3"} <= {line.split()[0] for line in recorded}


def test_executables_are_on_the_path(root: Path) -> None:
    folders = contents.ENVIRONMENT["PATH"].split(":")
    found = {path.name for folder in folders for path in (root / folder.lstrip("/")).glob("*")}
    wanted = {
        *contents.EXECUTABLES,
        *contents.stand_ins(),
        "sh",
        "bash",
        "cat",
        "ls",
        "sleep",
        "chroot",
        "modprobe",
        "rmmod",
        "umount",
    }
    assert wanted <= found
    assert "nvidia-smi" not in found
    assert (root / launcher.DRIVER_PATH / "nvidia-smi").is_symlink()
    assert set(images.IMAGES["k8s-device-plugin"].executables) <= found


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (("groundplane", "--version"), 0, "groundplane, version"),
        (("gpu-operator", "--help"), 0, "usage: gpu-operator"),
        (("manage-crds", "--help"), 0, "manage-crds"),
        (("nvidia-validator",), 1, "Error: "),
        (("nv-hostengine",), 2, "describes the simulated machine"),
        (("cat", "/etc/dcgm-exporter/dcp-metrics-included.csv"), 0, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
        (("sh", "-c", "id -u; touch /x"), 1, "65532"),
        (("sh", "-c", "echo | awk '{print \"a\" NR}' | grep a1"), 0, "a1"),
        (("python3", "-c", "import grpc.aio, aiohttp, msgspec, lightkube, google.protobuf, yaml, rich"), 0, ""),
        (("python3", "-c", "import ssl; print(len(ssl.create_default_context().get_ca_certs()) > 100)"), 0, "True"),
        (("python3", "-c", "import pip"), 1, "No module named 'pip'"),
        (("nvidia-smi",), 127, "No such file"),
    ],
)
def test_programs_run_as_the_images_user(root: Path, command: tuple[str, ...], code: int, words: str) -> None:
    done = run(root, *command)
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr


def test_a_shell_lets_the_containers_program_take_its_place(root: Path) -> None:
    script = "import os, subprocess as s; p = s.Popen(['sh', '-c', 'python3 -c \"import os; print(os.getpid())\"'], "
    script += "stdout=s.PIPE, text=True); print(p.communicate()[0].strip() == str(p.pid))"
    assert run(root, "python3", "-c", script).stdout == "True\n"


def test_for_operands_it_is_the_same_and_runs_as_root(built: archive.Image, tmp_path: Path) -> None:
    operands = build.for_nodes(built)
    assert operands.references == ("groundplane-node:test",)
    assert operands.layers == built.layers
    assert (operands.config["User"], built.config["User"]) == ("0:0", "65532:65532")
    assert operands.config["Entrypoint"] == ["/usr/bin/nvidia-device-plugin"]
    first, second = archive.write([built, operands], tmp_path / "both.tar")
    assert (first.reference, second.reference) == ("groundplane:test", "groundplane-node:test")
    assert first.digest != second.digest
    assert first.compressed == second.compressed


def test_the_hosts_program_is_in_it_and_runs_without_anything_else(root: Path, tmp_path: Path) -> None:
    program = root / HOST_PROGRAM.lstrip("/")
    assert stat.S_IMODE(program.lstat().st_mode) == 0o755
    assert not program.is_symlink()
    installed = tmp_path / "nvidia-cdi-hook"
    shutil.copy(program, installed)
    done = subprocess.run([installed, "a-hook-of-tomorrow"], env={}, capture_output=True, text=True, check=True)
    assert "Unsupported CDI hook: a-hook-of-tomorrow" in done.stderr
