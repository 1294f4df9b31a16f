"""The image's base: a small Debian root made of packages, without installing them and without root.

apt decides what belongs together and checks signatures; dpkg-deb unpacks. What package scripts would do is done here
(accounts, certificate bundle, busybox' names). `unresolved` proves that no library is missing.
"""

import hashlib
import re
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from . import contents, tools
from .errors import ImageError

_URI = re.compile(r"^'(?P<uri>[^']+)' (?P<file>\S+) (?P<bytes>\d+) SHA256:(?P<sha256>[0-9a-f]{64})$")
_UPDATE = "run `apt-get update` (as root) so that apt knows today's packages, then try again"


class Package(NamedTuple):
    """A Debian package file. `sha256` is what apt's signed index says of it."""

    name: str
    version: str
    arch: str
    file: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} {self.arch} sha256:{self.sha256}"


def architecture() -> str:
    """Debian's name of this machine's architecture, which is the image's: `amd64` or `arm64`."""
    tools.need("dpkg")
    return tools.run(["dpkg", "--print-architecture"], what="asking for the architecture").strip()


def select(work: Path) -> list[Package]:
    """The packages of the base, as apt resolves them today for a machine that has none, sorted by name.

    ImageError if apt does not know one.
    """
    tools.need("apt-get", "dpkg-deb")
    empty = work / "dpkg-status"
    empty.write_text("")
    options = {
        "Dir::State::status": str(empty),
        "APT::Install-Recommends": "false",
        "Acquire::ForceHash": "SHA256",
        "Debug::NoLocking": "true",
    }
    flags = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    command = ["apt-get", *flags, "--print-uris", "--yes", "install", *contents.PACKAGES]
    text = tools.run(command, what="resolving the base's packages", remedy=_UPDATE)
    found = [_package(match) for line in text.splitlines() if (match := _URI.match(line))]
    if not found:
        raise ImageError(f"apt names no package file for {', '.join(contents.PACKAGES)}; {_UPDATE}")
    return sorted(package for package in found if package.name not in contents.LEFT_OUT)


def _package(match: re.Match[str]) -> Package:
    name, version, arch = unquote(match["file"]).removesuffix(".deb").split("_")
    return Package(name, version, arch, match["file"], match["sha256"])


def fetch(packages: Sequence[Package], folder: Path) -> list[Path]:
    """Download what the folder lacks and return the package files, whose digests are checked."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [package for package in packages if not _is_good(folder / package.file, package)]
    if missing:
        names = [f"{package.name}={package.version}" for package in missing]
        # apt drops root's rights for downloads where it can and warns where the folder forbids it; both are fine
        tools.run(
            ["apt-get", "-o", "APT::Sandbox::User=root", "download", *names],
            cwd=folder,
            what="downloading Debian packages",
            remedy=_UPDATE,
        )
    for package in missing:
        if not _is_good(folder / package.file, package):
            raise ImageError(f"{folder / package.file} is not what apt's index says ({package}); {_UPDATE}")
    return [folder / package.file for package in packages]


def _is_good(path: Path, package: Package) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == package.sha256


def unpack(files: Iterable[Path], root: Path) -> None:
    """Lay the packages out below a new folder, /bin, /sbin and /lib being links into /usr."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for file in files:  # dpkg-deb --extract would put a folder in the place of such a link
        tools.pipe(
            ["dpkg-deb", "--fsys-tarfile", file],
            ["tar", "--extract", "--keep-directory-symlink", "--no-same-owner", "--directory", root],
            what=f"unpacking {file.name}",
        )


def prune(root: Path) -> None:
    """Remove what nothing reads at run time (`contents`); licences stay."""
    for folder, patterns in ((root, contents.PRUNED), (python_library(root), contents.PRUNED_STDLIB)):
        for pattern in patterns:
            for path in sorted(folder.glob(pattern)):
                remove(path)
    for document in sorted((root / "usr/share/doc").rglob("*"), reverse=True):
        if document.is_symlink() or document.is_file():
            if document.name != "copyright":
                document.unlink()
        elif not any(document.iterdir()):
            document.rmdir()


def remove(path: Path) -> None:
    """Remove a file, link or folder if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def python_library(root: Path) -> Path:
    """The folder of the root's only Python library, `usr/lib/pythonX.Y`."""
    found = [path for path in sorted((root / "usr/lib").glob("python3.*")) if (path / "os.py").is_file()]
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise ImageError(f"the base should have one Python 3, it has {names}; see deploy/image/contents.py, PACKAGES")
    return found[0]


def settle(root: Path, packages: Sequence[Package]) -> None:
    """Do what the packages' scripts would: accounts, certificate bundle, links of busybox, folders; record packages."""
    _accounts(root)
    pems = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_text("".join(pem.read_text().strip() + "\n" for pem in pems))
    openssl = root / "usr/lib/ssl"
    openssl.mkdir(parents=True, exist_ok=True)
    for name, target in (("certs", "/etc/ssl/certs"), ("cert.pem", "/etc/ssl/certs/ca-certificates.crt")):
        if not (openssl / name).is_symlink():
            (openssl / name).symlink_to(target)
    shell = root / "usr/bin/sh"
    if not shell.is_symlink():
        shell.symlink_to("bash")
    for folder in ("proc", "sys", "dev", "run", "tmp", "var/tmp", "mnt"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("tmp", "var/tmp"):
        (root / folder).chmod(0o1777)
    record = root / "usr/share/groundplane/packages"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text("".join(f"{package}\n" for package in packages))


def _accounts(root: Path) -> None:
    users = [f"{name}:x:{number}:{number}:{name}:{home}:/usr/sbin/nologin" for name, number, home in contents.ACCOUNTS]
    groups = [f"{name}:x:{number}:" for name, number, _ in contents.ACCOUNTS]
    (root / "etc/passwd").write_text("\n".join(users).replace("/usr/sbin/nologin", "/bin/sh", 1) + "\n")
    (root / "etc/group").write_text("\n".join(groups) + "\n")
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    (root / "home/nonroot").mkdir(parents=True, exist_ok=True)
    (root / "root").mkdir(exist_ok=True)


def link_busybox(root: Path, applets: Iterable[str]) -> None:
    """Give busybox the names of its applets, except those that another package or a more special file has."""
    for applet in sorted(set(applets)):
        path = root / "usr/bin" / applet
        if not path.is_symlink() and not path.exists() and not (root / "usr/sbin" / applet).exists():
            path.symlink_to("busybox")


# --- proof that no library is missing --------------------------------------------------------------------------------


def unresolved(root: Path, *more: Path) -> list[str]:
    """What the ELF files below the folders need and no folder has: `file: library`, sorted."""
    roots = (root, *more)
    elves = [(top, path, *_dynamic(path)) for top in roots for path in _elf_files(top)]
    offered = {path.name for _, path, _, _ in elves}
    for top in roots:
        offered |= {path.name for path in top.rglob("*.so*") if path.is_symlink()}
    offered |= {soname for _, _, soname, _ in elves if soname}
    lacking = (
        f"/{path.relative_to(top)}: {library}"
        for top, path, _, needed in elves
        for library in needed
        if library not in offered
    )
    return sorted(lacking)


def _elf_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


_DT_NEEDED, _DT_STRTAB, _DT_SONAME = 1, 5, 14
_PT_LOAD, _PT_DYNAMIC = 1, 2


def _dynamic(path: Path) -> tuple[str, list[str]]:
    """The SONAME and the needed libraries of a 64-bit little-endian ELF file."""
    data = path.read_bytes()
    offset, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQ", data, offset + size * index) for index in range(count)]
    loads = [(virtual, start, length) for kind, _, start, virtual, _, length in headers if kind == _PT_LOAD]
    dynamic = next(((start, length) for kind, _, start, _, _, length in headers if kind == _PT_DYNAMIC), None)
    if dynamic is None:
        return "", []
    entries = list(struct.iter_unpack("<QQ", data[dynamic[0] : dynamic[0] + dynamic[1]]))
    strings = next(value for tag, value in entries if tag == _DT_STRTAB)
    base = next(start + strings - virtual for virtual, start, length in loads if virtual <= strings < virtual + length)

    def text(at: int) -> str:
        return data[base + at : data.index(b"\0", base + at)].decode()

    soname = next((text(value) for tag, value in entries if tag == _DT_SONAME), "")
    return soname, [text(value) for tag, value in entries if tag == _DT_NEEDED]
