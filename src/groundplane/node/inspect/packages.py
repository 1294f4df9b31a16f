"""What is installed on a node and what its package lists offer, read from the databases without running a tool.

dpkg's status file and apt's lists, RPM's database where it is SQLite, dnf's cached lists where they are XML.
"""

import contextlib
import gzip
import mmap
import re
import sqlite3
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from .view import View

DPKG: Final = "/var/lib/dpkg/status"
RPM: Final = ("/var/lib/rpm/rpmdb.sqlite", "/usr/lib/sysimage/rpm/rpmdb.sqlite", "/usr/share/rpm/rpmdb.sqlite")
APT_LISTS: Final = "/var/lib/apt/lists/*_Packages"
DNF_LISTS: Final = "/var/cache/dnf/*/repodata/*primary.xml*"
_DPKG_LIMIT: Final = 64 << 20
_LIST_LIMIT: Final = 512 << 20
"""Bytes of a package list, unpacked, that are searched."""
KEPT: Final = re.compile(
    r"linux-(image|headers|modules)|kernel|nvidia|libnvidia|cuda|containerd|cri-o|docker|unattended-upgrades"
    r"|dnf-automatic|yum-cron|kubelet|xorg-x11-drv-nouveau"
)
"""Beginnings of the names of packages that matter here."""


class Package(msgspec.Struct, frozen=True):
    """An installed package."""

    name: str
    version: str
    held: bool = False


def installed(view: View) -> list[Package] | None:
    """The installed packages that matter; None if there is no database that can be read (which is told)."""
    if (status := view.text(DPKG, limit=_DPKG_LIMIT)) is not None:
        return list(_of_dpkg(status))
    for path in RPM:
        if view.host is not None and view.files(path):
            try:
                return list(_of_rpm(view.host.path(path)))
            except (sqlite3.Error, OSError, struct.error) as error:
                view.lacks("packages", f"{path}: {error}")
                return None
    view.lacks("packages", "neither a dpkg nor a SQLite RPM database is there")
    return None


def _of_dpkg(text: str) -> Iterator[Package]:
    for paragraph in text.split("\n\n"):
        if not paragraph.startswith("Package: ") and "\nPackage: " not in paragraph:
            continue
        name = _field(paragraph, "Package")
        if not KEPT.match(name):
            continue
        words = _field(paragraph, "Status").split()
        if words[-1:] == ["installed"]:
            yield Package(name, _field(paragraph, "Version"), words[0] == "hold")


def _field(paragraph: str, name: str) -> str:
    match = re.search(rf"^{name}: (.*)$", paragraph, re.MULTILINE)
    return match.group(1).strip() if match else ""


def _of_rpm(file: Path) -> Iterator[Package]:
    address = f"file:{str(file).replace('?', '%3f').replace('#', '%23')}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
        for (blob,) in database.execute("SELECT blob FROM Packages"):
            package = _of_header(bytes(blob))
            if package is not None and KEPT.match(package.name):
                yield package


_TAGS: Final = {1000: "name", 1001: "version", 1002: "release", 1022: "arch"}
"""RPM's numbers of the header's texts."""


def _of_header(blob: bytes) -> Package | None:
    """A package of RPM's header: two counts, an index of 16 bytes an entry, then the data."""
    count, _size = struct.unpack_from(">II", blob)
    start = 8 + 16 * min(count, len(blob) // 16)
    found: dict[str, str] = {}
    for at in range(8, start, 16):
        tag, _kind, offset, _many = struct.unpack_from(">IIII", blob, at)
        if tag in _TAGS and _TAGS[tag] not in found:
            found[_TAGS[tag]] = blob[start + offset :].partition(b"\0")[0].decode("utf-8", "replace")
    if "name" not in found:
        return None
    version = "-".join(found[part] for part in ("version", "release") if part in found)
    return Package(found["name"], ".".join(filter(None, (version, found.get("arch", "")))))


def apt_offers(view: View, name: str) -> bool | None:
    """Whether apt's cached lists have a package; None if there are no lists that can be searched."""
    lists, needle = view.files(APT_LISTS), f"Package: {name}\n".encode()
    for path in lists:
        if view.host is None:
            continue
        try:
            with view.host.path(path).open("rb") as file, _mapped(file.fileno()) as data:
                if data.find(b"\n" + needle) >= 0 or data[: len(needle)] == needle:
                    return True
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            if isinstance(error, OSError):
                view.lacks(path, error.strerror or str(error))
    return False if lists else None


def _mapped(handle: int) -> mmap.mmap:
    return mmap.mmap(handle, 0, access=mmap.ACCESS_READ)


def dnf_offers(view: View, name: str, release: str) -> bool | None:
    """Whether dnf's cached lists have a package for a kernel; None if there are none that can be searched."""
    lists = [path for path in view.files(DNF_LISTS) if path.endswith((".xml", ".xml.gz"))]
    version, _, rest = release.partition("-")
    pattern = re.compile(
        rf'<name>{re.escape(name)}</name>(?:(?!</package>).){{0,400}}?ver="{re.escape(version)}"'
        rf' rel="{re.escape(rest.rpartition(".")[0])}"'.encode(),
        re.DOTALL,
    )
    for path in lists:
        try:
            if any(pattern.search(piece) for piece in _pieces(view, path)):
                return True
        except (OSError, EOFError) as error:
            view.lacks(path, str(error))
    return False if lists else None


def _pieces(view: View, path: str) -> Iterator[bytes]:
    """A list in overlapping pieces, so that no entry is cut in all of them."""
    if view.host is None:
        return
    real = view.host.path(path)
    left, before = _LIST_LIMIT, b""
    with gzip.open(real) if path.endswith(".gz") else real.open("rb") as file:
        while left > 0 and (piece := file.read(1 << 20)):
            left -= len(piece)
            yield before + piece
            before = piece[-2048:]


def versions(found: list[Package] | None, names: Mapping[str, str]) -> dict[str, str]:
    """Version by fact, of the installed packages that stand for one (``names``: fact by package)."""
    return {names[each.name]: each.version for each in found or () if each.name in names}
