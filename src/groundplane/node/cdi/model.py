"""The CDI document: its types as they are written, the rules it must keep, and the oldest version that it needs.

Facts are those of contracts/toolkit-cdi.md 1.1 to 1.3. Fields that are not given are not written. Where devices, nodes
and libraries are found is left to whoever makes a document.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Versions that a reader accepts, oldest first."""

HOOK_NAMES: Final = frozenset(
    {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}
)
NODE_TYPES: Final = frozenset({"", "b", "c", "u", "p"})

_LABEL: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")


class SpecError(ValueError):
    """A document that no reader would take; the text says what is wrong with which part."""


class DeviceNode(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A device node in the container; the host's is the same unless ``host_path`` is given. 0 is no major or minor."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class Mount(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A bind mount."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class Hook(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A program that the runtime runs; ``args`` is its whole command line, its name included."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class IntelRdt(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Cache and memory bandwidth of the container."""

    clos_id: str = msgspec.field(default="", name="closID")
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False


class NetDevice(msgspec.Struct, frozen=True, rename="camel"):
    """A network interface of the host that moves into the container."""

    host_interface_name: str
    name: str


class ContainerEdits(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What is done to a container."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return self != _NOTHING


_NOTHING: Final = ContainerEdits()


class Device(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A device that containers may ask for."""

    name: str
    container_edits: ContainerEdits
    annotations: dict[str, str] = {}


class Spec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Devices of one kind, ``<vendor>/<class>``. The version is told from the content when it is written."""

    cdi_version: str = ""
    kind: str
    annotations: dict[str, str] = {}
    devices: tuple[Device, ...]
    container_edits: ContainerEdits = _NOTHING

    @property
    def vendor(self) -> str:
        """The vendor part of the kind."""
        return self.kind.partition("/")[0]

    @property
    def device_class(self) -> str:
        """The class part of the kind."""
        return self.kind.partition("/")[2]

    def edits(self) -> Iterator[tuple[str, ContainerEdits]]:
        """Each block of edits with what it belongs to."""
        yield "all devices", self.container_edits
        for device in self.devices:
            yield f"device {device.name}", device.container_edits


def encode(spec: Spec) -> bytes:
    """The document as indented JSON, of the oldest version that has all it needs. Raises :class:`SpecError`."""
    check(spec)
    written = msgspec.structs.replace(spec, cdi_version=minimum_version(spec))
    return msgspec.json.format(msgspec.json.encode(written), indent=2) + b"\n"


def minimum_version(spec: Spec) -> str:
    """The oldest version that has all that the document uses (contracts/toolkit-cdi.md 1.2)."""
    edits = [block for _, block in spec.edits()]
    rdts = [block.intel_rdt for block in edits if block.intel_rdt is not None]
    needs = (
        ("1.1.0", any(block.net_devices for block in edits)),
        ("1.1.0", any(rdt.schemata or rdt.enable_monitoring for rdt in rdts)),
        ("0.7.0", bool(rdts) or any(block.additional_gids for block in edits)),
        ("0.6.0", bool(spec.annotations) or any(device.annotations for device in spec.devices)),
        ("0.6.0", "." in spec.device_class),
        ("0.5.0", any(node.host_path for block in edits for node in block.device_nodes)),
        ("0.5.0", any(device.name[:1].isdigit() for device in spec.devices)),
        ("0.4.0", any(mount.type for block in edits for mount in block.mounts)),
    )
    return next((version for version, needed in needs if needed), VERSIONS[0])


def qualified(kind: str, device: str) -> str:
    """The name by which a device is asked for."""
    return f"{kind}={device}"


def check(spec: Spec) -> None:
    """Raise :class:`SpecError` unless readers take the document; the text names the part that is wrong."""
    for problem in _problems(spec):
        raise SpecError(f"CDI spec {spec.kind}: {problem}")


def _problems(spec: Spec) -> Iterator[str]:
    for part, text in (("vendor", spec.vendor), ("class", spec.device_class)):
        if not _LABEL.fullmatch(text):
            yield f"{part} {text!r} must be letters, digits, _, - and ., a letter first, a letter or digit last"
    if spec.cdi_version and spec.cdi_version not in VERSIONS:
        yield f"version {spec.cdi_version!r} is none of {', '.join(VERSIONS)}"
    if not spec.devices:
        yield "there are no devices"
    seen: set[str] = set()
    for device in spec.devices:
        if not _DEVICE.fullmatch(device.name):
            yield (
                f"device name {device.name!r} must begin and end with a letter or digit "
                "and hold only these, _, -, . and :"
            )
        if device.name in seen:
            yield f"device {device.name} is there twice"
        seen.add(device.name)
        if not device.container_edits:
            yield f"device {device.name}: empty device edits"
    for what, edits in spec.edits():
        for problem in _edit_problems(edits):
            yield f"{what}: {problem}"


def _edit_problems(edits: ContainerEdits) -> Iterator[str]:
    for variable in (*edits.env, *(variable for hook in edits.hooks for variable in hook.env)):
        if variable.find("=") < 1:
            yield f"variable {variable!r} must be NAME=VALUE"
    for node in edits.device_nodes:
        if not node.path:
            yield "a device node needs a path"
        if node.type not in NODE_TYPES:
            yield f"device node {node.path}: type {node.type!r} is none of b, c, u and p"
        if set(node.permissions) - set("rwm"):
            yield f"device node {node.path}: permissions {node.permissions!r} must be some of r, w and m"
    for mount in edits.mounts:
        if not mount.host_path or not mount.container_path:
            yield f"mount {mount.host_path!r} at {mount.container_path!r}: both paths are needed"
    for hook in edits.hooks:
        if hook.hook_name not in HOOK_NAMES:
            yield f"hook {hook.path}: {hook.hook_name!r} is none of {', '.join(sorted(HOOK_NAMES))}"
        if not hook.path.startswith("/"):
            yield f"hook {hook.path!r}: its path must be absolute"
        if hook.timeout is not None and hook.timeout <= 0:
            yield f"hook {hook.path}: timeout {hook.timeout} must be more than 0"
    for part, names in (
        ("host interface", [device.host_interface_name for device in edits.net_devices]),
        ("interface", [device.name for device in edits.net_devices]),
    ):
        if not all(names) or len(set(names)) < len(names):
            yield f"each {part} name must be given, and once only"
