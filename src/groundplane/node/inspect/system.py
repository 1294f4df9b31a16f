"""A node's operating system and kernel (A3, A4, A7, A14-A19, A25-A28): release, headers, updates, nouveau, Secure Boot.

Also the kernel's log, of which the lines that matter to GPUs are kept.
"""

import errno
import gzip
import lzma
import os
import re
from collections.abc import Callable, Iterator
from typing import Final

from . import packages
from .packages import Package
from .view import View

OSRELEASE: Final = "/proc/sys/kernel/osrelease"
SECURE_BOOT: Final = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
LOCKDOWN: Final = "/sys/kernel/security/lockdown"
ENFORCE: Final = "/sys/fs/selinux/enforce"
SELINUX_CONFIG: Final = "/etc/selinux/config"
KMSG: Final = "/dev/kmsg"
DEBIAN: Final = frozenset({"ubuntu", "debian"})
RPM_FAMILY: Final = frozenset({"rhel", "rhcos", "centos", "rocky", "almalinux", "fedora", "ol", "amzn", "sles"})
KERNEL_LINES: Final = 400
"""Lines of the kernel's log that are kept, the last ones."""
_KMSG_LIMIT: Final = 16 << 20
_KERNEL_LINE: Final = re.compile(
    r"NVRM|\bXid\b|SXid|nvidia|nouveau|nvswitch|fallen off the bus|pcieport|\bAER:|Key was rejected|Required key"
    r"|module verification|Lockdown|EDAC|Machine check|MSI-X",
    re.IGNORECASE,
)
_INITRAMFS_LIMIT: Final = 256 << 20


def look(view: View, installed: list[Package] | None) -> None:
    """All facts of this module."""
    system, release = _system(view), view.of_kernel(OSRELEASE)
    view.tell("kernel", release)
    if release:
        _kernels(view, release)
        _headers(view, system, release, installed)
    _updates(view, installed)
    _nouveau(view, release or "")
    _secure_boot(view)
    _selinux(view)
    _clock(view)


def _system(view: View) -> str:
    """The operating system's id."""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        if (text := view.text(path)) is None:
            continue
        pairs = (line.partition("=") for line in text.splitlines())
        found = {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}
        view.tell("os", found.get("ID"))
        view.tell("os_version", found.get("VERSION_ID"))
        return found.get("ID", "")
    if view.host is None:
        view.lacks("os", "the node's root is not mounted in this container")
    return ""


def version_key(release: str) -> list[tuple[int, str]]:
    """What kernels' releases are ordered by: numbers as numbers."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.findall(r"\d+|[A-Za-z]+", release)]


def _kernels(view: View, running: str) -> None:
    """Installed kernels; a newer one than the running one, of its own flavour, runs from the next boot on."""
    found = {path.rpartition("vmlinuz-")[2] for path in view.glob("/boot/vmlinuz-*")}
    found |= {path.split("/")[-2] for path in view.glob("/usr/lib/modules/*/vmlinuz")}
    found = {each for each in found if each[:1].isdecimal()}
    boot = view.text("/boot/default-kernel")
    if boot and boot.strip():  # where the next boot's kernel is said outright
        found.add(boot.strip())
    if not found:
        if view.host is not None:
            view.lacks("kernels", "no kernel is in /boot or /usr/lib/modules")
        return
    view.tell("kernels", sorted(found, key=version_key))
    newer = [each for each in found if flavour(each) == flavour(running) and version_key(each) > version_key(running)]
    view.tell("newer_kernel", max(newer, key=version_key, default=""))
    view.tell("reboot_required", view.exists("/run/reboot-required") or None)


def flavour(release: str) -> str:
    """What a kernel is built for, as its release ends: ``generic``, ``aws``, ``el9_4.x86_64`` comes to ``x86_64``."""
    words = [word for word in re.split(r"[-.+]", release) if word and not word[0].isdecimal()]
    return "-".join(word for word in words if not re.fullmatch(r"el\d+(_\d+)*|fc\d+|amzn\d+", word))


def headers_package(system: str, release: str) -> str:
    """The package that has a kernel's headers; empty for a system that is not known."""
    if system in DEBIAN:
        return f"linux-headers-{release}"
    return f"kernel-devel-{release}" if system in RPM_FAMILY else ""


def _headers(view: View, system: str, release: str, installed: list[Package] | None) -> None:
    """Where they are wanted: what a module's build looks for. Else what the package lists offer."""
    if view.host is None:
        view.lacks("headers", "the node's root is not mounted in this container")
        return
    package = headers_package(system, release)
    view.tell("headers_package", package or None)
    folders = (f"/lib/modules/{release}/build/Makefile", f"/usr/src/linux-headers-{release}/Makefile")
    if any(map(view.exists, (*folders, f"/usr/src/kernels/{release}/Makefile"))):
        view.tell("headers", "installed")
        return
    if any(each.name == package or f"{each.name}-{each.version}" == package for each in installed or ()):
        view.tell("headers", "installed")
        return
    offered = None
    if system in DEBIAN:
        offered = packages.apt_offers(view, package)
    elif system in RPM_FAMILY:
        offered = packages.dnf_offers(view, "kernel-devel", release)
    view.tell("headers", {True: "available", False: "absent", None: "not installed"}[offered])
    if offered is None:
        view.lacks("headers in the repositories", "the node has no package list that can be searched")


# --- updates ----------------------------------------------------------------------------------------------------------

_APT_ON: Final = re.compile(r'^APT::Periodic::Unattended-Upgrade\s+"?([1-9]\d*)"?')
_KERNEL_PATTERN: Final = re.compile(r"linux-|kernel")


def _updates(view: View, installed: list[Package] | None) -> None:
    """What may install a kernel by itself, and what keeps it from that."""
    if view.host is None:
        return
    names = {each.name for each in installed or ()}
    found = []
    switched = [path for path, line in view.lines("/etc/apt/apt.conf.d/*") if _APT_ON.match(line)]
    if switched and (installed is None or "unattended-upgrades" in names):
        found.append(f"unattended-upgrades ({switched[-1]})")
    found += _dnf_automatic(view)
    view.tell("kernel_updates", found)
    view.tell("kernel_holds", sorted({*_holds(view, installed)}))


def _dnf_automatic(view: View) -> Iterator[str]:
    timers = view.glob("/etc/systemd/system/timers.target.wants/dnf-automatic*.timer")
    applies = any(
        re.fullmatch(r"apply_updates\s*=\s*(yes|true|1|on)", line.lower())
        for _, line in view.lines("/etc/dnf/automatic.conf")
    )
    for timer in timers:
        name = timer.rpartition("/")[2]
        if "install" in name or (applies and name == "dnf-automatic.timer"):
            yield f"dnf-automatic ({name})"
    if view.glob("/etc/systemd/system/*.wants/yum-cron.service"):
        yield "yum-cron"
    if view.glob("/etc/systemd/system/*.wants/zincati.service"):
        yield "zincati"


def _holds(view: View, installed: list[Package] | None) -> Iterator[str]:
    yield from (each.name for each in installed or () if each.held and _KERNEL_PATTERN.match(each.name))
    in_list = False
    for _, line in view.lines("/etc/apt/apt.conf.d/*"):
        in_list = "Package-Blacklist" in line or (in_list and not line.startswith("}"))
        if in_list and (quoted := re.search(r'"\^?(linux-[^"]*)"', line)):
            yield f"unattended-upgrades leaves {quoted.group(1)}"
    for pattern in ("/etc/dnf/dnf.conf", "/etc/yum.conf"):
        for path, line in view.lines(pattern):
            if re.match(r"exclude(pkgs)?\s*=.*\bkernel", line):
                yield f"{path}: {line}"
    for path, line in view.lines("/etc/dnf/plugins/versionlock.list"):
        if "kernel" in line:
            yield f"{path}: {line}"


# --- nouveau ----------------------------------------------------------------------------------------------------------

DENIES: Final = re.compile(
    r"blacklist\s+nouveau\b|options\s+nouveau\s+.*modeset=0|install\s+nouveau\s+/(usr/)?bin/(false|true)"
)
_ON_COMMAND_LINE: Final = re.compile(r"(modprobe\.blacklist|rd\.driver\.blacklist|module_blacklist)=\S*nouveau")
MODPROBE: Final = ("/etc/modprobe.d/*.conf", "/run/modprobe.d/*.conf", "/usr/lib/modprobe.d/*.conf")


def _nouveau(view: View, release: str) -> None:
    """Where nouveau is denied: in modprobe's files, on the kernel's command line, in the initramfs."""
    if line := view.of_kernel("/proc/cmdline"):
        view.tell("nouveau_on_cmdline", _ON_COMMAND_LINE.search(line) is not None or "nouveau.modeset=0" in line)
    if view.host is None:
        return
    files = [path for pattern in MODPROBE for path, text in view.lines(pattern) if DENIES.match(text)]
    files = list(dict.fromkeys(files))
    view.tell("nouveau_denied", files)
    image = next(filter(view.exists, (f"/boot/{name}{release}{end}" for name, end in _IMAGES)), None)
    if image is None:
        return
    denied = _denied_in(view, image)
    if denied is None and files:
        written = max((view.modified(path) or 0.0 for path in files), default=0.0)
        if written > (view.modified(image) or 0.0):
            denied = False  # it was built before there was anything to deny
        else:
            view.lacks("nouveau_denied_in_initramfs", f"{image} is packed in a way that is not read here")
    view.tell("nouveau_denied_in_initramfs", denied)


_IMAGES: Final = (("initrd.img-", ""), ("initramfs-", ".img"), ("initrd-", ""))
_UNPACKERS: Final[tuple[tuple[bytes, Callable[[bytes], bytes]], ...]] = (
    (b"\x1f\x8b", gzip.decompress),
    (b"\xfd7zXZ\x00", lzma.decompress),
)
_CPIO: Final = b"070701"
_TRAILER: Final = b"TRAILER!!!"


def _denied_in(view: View, image: str) -> bool | None:
    """Whether an initramfs denies nouveau; None if it cannot be read."""
    data = view.data(view.host, image, limit=_INITRAMFS_LIMIT) if view.host is not None else None
    if data is None:
        return None
    files = b""
    rest = data
    while rest.startswith(_CPIO):  # the processor's microcode comes first, not packed, and a second archive after it
        end = rest.find(_TRAILER)
        if end < 0:
            break
        files += rest[: end + len(_TRAILER)]
        rest = rest[end + len(_TRAILER) :].lstrip(b"\0")
    for magic, unpack in _UNPACKERS:
        if rest.startswith(magic):
            try:
                return DENIES.search((files + unpack(rest)).decode("latin-1")) is not None
            except (OSError, EOFError, lzma.LZMAError, MemoryError) as error:
                view.lacks("nouveau_denied_in_initramfs", f"{image}: {error}")
                return None
    if not rest or rest.startswith(_CPIO):
        return DENIES.search(files.decode("latin-1")) is not None
    return True if DENIES.search(files.decode("latin-1")) else None


# --- gates ------------------------------------------------------------------------------------------------------------


def _secure_boot(view: View) -> None:
    """The firmware's variable: four bytes of attributes, then 1 if only what is signed is started."""
    if not view.kernel.exists("/sys/firmware/efi"):
        view.tell("secure_boot", False)
        view.tell("firmware", "BIOS")
        return
    data = view.data(view.kernel, SECURE_BOOT, limit=16)
    view.tell("firmware", "UEFI")
    if data is None or len(data) < 5:
        view.lacks("secure_boot", f"{SECURE_BOOT} cannot be read; is efivarfs mounted?")
    else:
        view.tell("secure_boot", data[4] == 1)
    if (lockdown := view.of_kernel(LOCKDOWN)) and (mode := re.search(r"\[(\w+)\]", lockdown)):
        view.tell("lockdown", mode.group(1))


def _selinux(view: View) -> None:
    enforce = view.of_kernel(ENFORCE)
    if enforce is not None:
        view.tell("selinux", "enforcing" if enforce == "1" else "permissive")
    elif view.host is not None:
        configured = [line.partition("=")[2].strip() for _, line in view.lines(SELINUX_CONFIG) if "SELINUX=" in line]
        view.tell("selinux", "disabled")
        view.tell("selinux_configured", configured[-1] if configured else None)


def _clock(view: View) -> None:
    if view.host is None:
        return
    synchronised = view.exists("/run/systemd/timesync/synchronized")
    chrony = bool(view.glob("/run/chrony/chronyd.pid") or view.glob("/run/chronyd.pid"))
    if synchronised or chrony:
        view.tell("clock_service", "systemd-timesyncd" if synchronised else "chrony")


# --- the kernel's log -------------------------------------------------------------------------------------------------


def kept_lines(text: str) -> list[str]:
    """Of what ``dmesg`` prints, the lines that matter."""
    return [line for line in text.splitlines() if _KERNEL_LINE.search(line)][-KERNEL_LINES:]


def kernel_log(path_of_log: str) -> list[str]:
    """The kept lines of the kernel's log, oldest first, each with the seconds since boot. Raises OSError."""
    kept: list[str] = []
    for record in _records(path_of_log):
        head, semicolon, text = record.partition(";")
        line = text.splitlines()[0] if semicolon and text else record.strip()
        if _KERNEL_LINE.search(line):
            moment = head.split(",")[2] if semicolon and head.count(",") >= 2 else ""
            kept.append(f"[{int(moment) / 1e6:.6f}] {line}" if moment.isdecimal() else line)
    return kept[-KERNEL_LINES:]


def _records(path: str) -> Iterator[str]:
    """A record a read, as the kernel gives them; of a file the lines. Those that the kernel has dropped are skipped."""
    handle, taken, rest = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), 0, b""
    try:
        regular = os.path.isfile(path)  # noqa: PTH113 - an open handle's neighbour
        while taken < _KMSG_LIMIT:
            try:
                piece = os.read(handle, 1 << 16)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue
                raise
            if not piece:
                break
            taken += len(piece)
            if regular:
                *lines, rest = (rest + piece).split(b"\n")
                yield from (line.decode("utf-8", "replace") for line in lines)
            else:
                yield piece.decode("utf-8", "replace")
        if rest:
            yield rest.decode("utf-8", "replace")
    finally:
        os.close(handle)
