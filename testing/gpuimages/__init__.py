"""Small images of workloads, made here: a C program that is linked with the driver's libraries, and a loader with libc.

A flavour is a libc (glibc as this machine has it, musl from Debian's package) and whether the image has the loader's
list of libraries: glibc's `/etc/ld.so.cache`, musl's `/etc/ld-musl-*.path`. No image has the driver's libraries;
`driver_libraries` makes those that the program needs.
"""

import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.image import archive

from ..realcluster import build

SOURCES = Path(__file__).parent
PROGRAM = "/usr/bin/gpucheck"
"""The program; see gpucheck.c for what it says."""
IDLE = "/usr/bin/idle"
"""A static program that ends at once, or waits if its argument is `stay`."""
LIBRARIES = {"libcuda.so.1": "libcuda.so", "libnvidia-ml.so.1": "libnvidia-ml.so"}
"""SONAME of each library that the program is linked with, and the name it has before its version."""
_EPOCH = 1_700_000_000


@dataclass(frozen=True)
class Flavour:
    """A kind of image: its libc, and whether its loader has a list of libraries."""

    libc: str
    listed: bool

    @property
    def name(self) -> str:
        """The flavour, as a name for pods and images."""
        return f"{self.libc}-{'listed' if self.listed else 'plain'}"

    @property
    def reference(self) -> str:
        """The image's name."""
        return f"groundplane.test/gpucheck:{self.name}"


FLAVOURS = tuple(Flavour(libc, listed) for libc in ("glibc", "musl") for listed in (False, True))


def write(flavours: tuple[Flavour, ...], target: Path) -> Path:
    """An OCI archive of the images. build.UnavailableError if a compiler, or musl, cannot be had."""
    with tempfile.TemporaryDirectory(prefix="gpuimages-") as scratch:
        made = []
        for flavour in flavours:
            root = Path(scratch, flavour.name)
            fill(root, flavour)
            packed = archive.layer(root, Path(scratch, f"{flavour.name}.tar.gz"), _EPOCH)
            config = {"Entrypoint": [PROGRAM], "Env": ["PATH=/usr/bin:/bin"]}
            created = "2023-11-14T22:13:20Z"
            made.append(archive.Image((flavour.reference,), (packed,), "amd64", created, config))
        archive.write(made, target)
    return target


def fill(root: Path, flavour: Flavour) -> None:
    """Make the image's files in a folder."""
    for folder in ("usr/bin", "usr/lib", "etc", "tmp", "dev", "proc", "sys"):
        (root / folder).mkdir(parents=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    _compile(["-static", "-O1"], "idle.c", root / IDLE.lstrip("/"))
    with tempfile.TemporaryDirectory(prefix="gpuimages-") as stubs:
        for soname in LIBRARIES:
            driver_library(Path(stubs, soname), soname)
        linked = [str(Path(stubs, soname)) for soname in LIBRARIES]
        (_glibc if flavour.libc == "glibc" else _musl)(root, linked, flavour.listed)


def driver_library(path: Path, soname: str) -> None:
    """Make a library of the driver that a program with any libc can be linked with, and started."""
    _compile(["-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{soname}"], "driver.c", path)


def _glibc(root: Path, linked: list[str], listed: bool) -> None:
    """The loader and libc where this machine has them, as files, and the program."""
    program = root / PROGRAM.lstrip("/")
    _compile(["-O1"], "gpucheck.c", program, linked)
    loader = _loader(program)
    said = subprocess.run(["ldd", str(root / PROGRAM.lstrip("/"))], check=True, capture_output=True, text=True).stdout
    found = re.search(r"libc\.so\.6 => (\S+)", said)
    if found is None:
        raise build.UnavailableError(f"ldd does not say where libc is: {said}")
    for path in (loader, found[1]):
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path.lstrip("/"))
    if listed:
        (root / "etc/ld.so.conf").write_text("")
        ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin")
        if ldconfig is None:
            raise build.UnavailableError("no ldconfig in /sbin (Debian: apt-get install libc-bin)")
        subprocess.run([ldconfig, "-r", str(root)], check=True, capture_output=True)


def _loader(program: Path) -> str:
    said = subprocess.run(["readelf", "-l", str(program)], check=True, capture_output=True, text=True).stdout
    found = re.search(r"interpreter: (\S+)\]", said)
    if found is None:
        raise build.UnavailableError(f"{program} has no loader: {said}")
    return found[1]


def _musl(root: Path, linked: list[str], listed: bool) -> None:
    """musl where Alpine has it, and the program."""
    package = _musl_package()
    machine = platform.machine()
    libc = package / f"lib/{machine}-linux-musl/libc.so"
    objects = package / f"usr/lib/{machine}-linux-musl"
    options = [
        "-O1",
        "-nostdinc",
        "-isystem",
        str(package / f"usr/include/{machine}-linux-musl"),
        "-nostdlib",
        "-no-pie",
    ]
    started = [str(objects / "crt1.o"), str(objects / "crti.o")]
    ended = [
        f"-L{libc.parent}",
        "-l:libc.so",
        str(objects / "crtn.o"),
        f"-Wl,--dynamic-linker=/lib/ld-musl-{machine}.so.1",
    ]
    _compile(options, "gpucheck.c", root / PROGRAM.lstrip("/"), [*started, *linked, *ended])
    (root / "lib").mkdir()
    (root / "etc/alpine-release").write_text("3.22.0\n")  # by which hooks know whose loader it is
    shutil.copy(libc, root / f"lib/ld-musl-{machine}.so.1")
    (root / "lib/libc.so").symlink_to(f"ld-musl-{machine}.so.1")
    if listed:
        (root / f"etc/ld-musl-{machine}.path").write_text("/lib\n/usr/local/lib\n/usr/lib\n")


def _musl_package() -> Path:
    """Debian's musl and its headers, unpacked into the cache: the machine itself stays as it is."""
    folder = build.cache_folder() / "musl"
    if folder.is_dir():
        return folder
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise build.UnavailableError("musl is fetched from Debian: apt-get and dpkg-deb are missing")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".musl-") as scratch:
        fetch = ["apt-get", "download", "musl", "musl-dev"]
        done = subprocess.run(fetch, cwd=scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            subprocess.run(["apt-get", "update"], capture_output=True, check=False)
            done = subprocess.run(fetch, cwd=scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            raise build.UnavailableError(f"musl cannot be fetched from Debian: {done.stderr.strip()}")
        for package in Path(scratch).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), f"{scratch}/root"], check=True)
        Path(scratch, "root").rename(folder)
    return folder


def _compile(options: list[str], source: str, target: Path, linked: Sequence[str] = ()) -> None:
    if shutil.which("gcc") is None:
        raise build.UnavailableError("gcc is not on PATH (Debian: apt-get install gcc libc6-dev)")
    command = ["gcc", *options, "-o", str(target), str(SOURCES / source), *linked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise build.UnavailableError(f"{' '.join(command)} failed:\n{done.stderr}")
