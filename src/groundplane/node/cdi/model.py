"""The CDI document: its types as they are written, the rules it must keep, and the oldest version that it needs.

Facts are those of contracts/toolkit-cdi.md 1.1 to 1.3. Fields that are not given are not written. Where devices, nodes
and libraries are found is left to whoever makes a document, reading one to ``read``, files and folders to ``write`` and
``registry``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Versions that a reader accepts, oldest first."""
TOO_OLD: Final = ("0.1.0", "0.2.0")
"""Versions that readers know, and that no document may have."""

HOOK_NAMES: Final = frozenset(
    {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}
)
NODE_TYPES: Final = frozenset({"", "b", "c", "u", "p"})
NO_PERMISSIONS: Final = "none"
"""What a device node's permissions say if the container's control group shall allow no access."""
MAX_ANNOTATIONS: Final = 256 * 1024
"""Bytes that the keys and values of one object's annotations may have together."""

_LABEL: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_KEY_NAME: Final = re.compile(r"(?:[a-z0-9][a-z0-9_.-]{0,61})?[a-z0-9]")
_KEY_PREFIX: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_NOT_YAML: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that JSON takes as they are and YAML, by which runtimes read JSON, does not."""
_PATH_MAX: Final = 4096
_UINT32: Final = range(1 << 32)
_INT64: Final = range(-(1 << 63), 1 << 63)


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


def document(spec: Spec) -> dict[str, Any]:
    """What is written of a spec, in the order of the contract's tables, of the oldest version that has all it needs.

    Raises :class:`SpecError`.
    """
    check(spec)
    versioned = msgspec.structs.replace(spec, cdi_version=minimum_version(spec))
    written: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(versioned))
    for device in written["devices"]:
        device["containerEdits"] = device.pop("containerEdits")  # annotations come before
    return written


def encode(spec: Spec) -> bytes:
    """The document as indented JSON that is YAML, too, of the oldest version that has all it needs.

    Raises :class:`SpecError`.
    """
    text = msgspec.json.format(msgspec.json.encode(document(spec)), indent=2).decode() + "\n"
    return _NOT_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()


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


def parse_qualified(name: str) -> tuple[str, str, str]:
    """Vendor, class and device of a qualified name (contracts/toolkit-cdi.md 1.3).

    Raises:
        SpecError: it is not qualified, or one of its parts is not as it must be.
    """
    kind, _, device = name.partition("=")
    vendor, _, device_class = kind.partition("/")
    if name.startswith("/") or not (vendor and device_class and device):
        raise SpecError(f"unqualified CDI device {name!r}: expected VENDOR/CLASS=DEVICE")
    for problem in (*_kind_problems(vendor, device_class), *_device_name_problems(device)):
        raise SpecError(f"invalid CDI device {name!r}: {problem}")
    return vendor, device_class, device


def is_qualified(name: str) -> bool:
    """Whether a name is a qualified one."""
    try:
        parse_qualified(name)
    except SpecError:
        return False
    return True


def check(spec: Spec) -> None:
    """Raise :class:`SpecError` unless readers take the document; the text names the part that is wrong."""
    for problem in _problems(spec):
        raise SpecError(f"CDI spec {spec.kind}: {problem}")


def check_version(spec: Spec) -> None:
    """Raise :class:`SpecError` unless the version that a document says it has, has all that it uses (1.2)."""
    minimum = minimum_version(spec)
    if spec.cdi_version not in (*TOO_OLD, *VERSIONS):
        raise SpecError(f"CDI spec {spec.kind}: {_unknown_version(spec.cdi_version)}")
    if spec.cdi_version in TOO_OLD or VERSIONS.index(spec.cdi_version) < VERSIONS.index(minimum):
        raise SpecError(
            f"CDI spec {spec.kind}: version {spec.cdi_version} is too old for it: cdiVersion must be at least {minimum}"
        )


def _unknown_version(version: str) -> str:
    return f"version {version!r} is none of {', '.join(VERSIONS)}"


def _problems(spec: Spec) -> Iterator[str]:
    yield from _kind_problems(spec.vendor, spec.device_class)
    if spec.cdi_version and spec.cdi_version not in VERSIONS:
        yield _unknown_version(spec.cdi_version)
    yield from _annotation_problems(spec.annotations)
    if not spec.devices:
        yield "there are no devices"
    seen: set[str] = set()
    for device in spec.devices:
        yield from _device_name_problems(device.name)
        if device.name in seen:
            yield f"device {device.name} is there twice"
        seen.add(device.name)
        for problem in _annotation_problems(device.annotations):
            yield f"device {device.name}: {problem}"
        if not device.container_edits:
            yield f"device {device.name}: empty device edits"
    for what, edits in spec.edits():
        for problem in _edit_problems(edits):
            yield f"{what}: {problem}"


def _kind_problems(vendor: str, device_class: str) -> Iterator[str]:
    for part, text in (("vendor", vendor), ("class", device_class)):
        if not _LABEL.fullmatch(text):
            yield f"{part} {text!r} must be letters, digits, _, - and ., a letter first, a letter or digit last"


def _device_name_problems(name: str) -> Iterator[str]:
    if not _DEVICE.fullmatch(name):
        yield f"device name {name!r} must begin and end with a letter or digit and hold only these, _, -, . and :"


def _annotation_problems(annotations: Mapping[str, str]) -> Iterator[str]:
    """Keys are Kubernetes' qualified names, whatever their case (1.4)."""
    for key in annotations:
        prefix, slash, name = key.lower().rpartition("/")
        if not _KEY_NAME.fullmatch(name) or (slash and not _KEY_PREFIX.fullmatch(prefix)):
            yield (
                f"annotation {key!r} must be a name of at most 63 letters, digits, -, _ and . that begins and ends "
                "with a letter or digit, after a DNS name and a slash if it has a prefix"
            )
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > MAX_ANNOTATIONS:
        yield f"annotations have {size} bytes; at most {MAX_ANNOTATIONS} are taken"


def _edit_problems(edits: ContainerEdits) -> Iterator[str]:
    yield from _variable_problems(edits.env)
    for node in edits.device_nodes:
        yield from _node_problems(node)
    for mount in edits.mounts:
        if not mount.host_path or not mount.container_path:
            yield f"mount {mount.host_path!r} at {mount.container_path!r}: both paths are needed"
    for hook in edits.hooks:
        yield from _hook_problems(hook)
    yield from _net_device_problems(edits.net_devices)
    if edits.intel_rdt is not None and not _is_clos_id(edits.intel_rdt.clos_id):
        yield f"closID {edits.intel_rdt.clos_id!r} must be a file name, or /"
    for gid in edits.additional_gids:
        if gid not in _UINT32:
            yield f"additional group {gid} must be from 0 to {_UINT32[-1]}"


def _variable_problems(variables: tuple[str, ...]) -> Iterator[str]:
    for variable in variables:
        if variable.find("=") < 1:
            yield f"variable {variable!r} must be NAME=VALUE"


def _node_problems(node: DeviceNode) -> Iterator[str]:
    if not node.path:
        yield "a device node needs a path"
    if node.type not in NODE_TYPES:
        yield f"device node {node.path}: type {node.type!r} is none of b, c, u and p"
    if set(node.permissions) - set("rwm") and node.permissions != NO_PERMISSIONS:
        yield f"device node {node.path}: permissions {node.permissions!r} must be some of r, w and m"
    for what, number, allowed in (
        ("major", node.major, _INT64),
        ("minor", node.minor, _INT64),
        ("fileMode", node.file_mode, _UINT32),
        ("uid", node.uid, _UINT32),
        ("gid", node.gid, _UINT32),
    ):
        if number is not None and number not in allowed:
            yield f"device node {node.path}: {what} {number} must be from {allowed[0]} to {allowed[-1]}"


def _hook_problems(hook: Hook) -> Iterator[str]:
    if hook.hook_name not in HOOK_NAMES:
        yield f"hook {hook.path}: {hook.hook_name!r} is none of {', '.join(sorted(HOOK_NAMES))}"
    if not hook.path.startswith("/"):
        yield f"hook {hook.path!r}: its path must be absolute"
    yield from _variable_problems(hook.env)
    if hook.timeout is not None and not 0 < hook.timeout <= _INT64[-1]:
        yield f"hook {hook.path}: timeout {hook.timeout} must be more than 0"


def _net_device_problems(devices: tuple[NetDevice, ...]) -> Iterator[str]:
    for part, names in (
        ("host interface", [device.host_interface_name for device in devices]),
        ("interface", [device.name for device in devices]),
    ):
        if not all(names) or len(set(names)) < len(names):
            yield f"each {part} name must be given, and once only"


def _is_clos_id(text: str) -> bool:
    return text == "/" or (text not in (".", "..") and len(text.encode()) < _PATH_MAX and not set(text) & set("/\n"))
