"""Node descriptions: what a simulated node is made of, read from a YAML node file (docs/reference/node-file.md).

A `NodeSpec` says which GPUs, kernel, operating system, container runtime and host driver a node has. What there is to
know of a card by its model's name is in `node/devices/models.py`. Making the node's file system out of a description is
`lab/host.py`'s work.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from ..node.devices import simfile
from ..node.devices.models import ALIASES, MODELS, Model, find
from ..node.devices.simulated import FileError, GpuEntry, Mig, describe
from . import amounts


class NodeFileError(ValueError):
    """A node file cannot be used; the message says file, place, what was found, what is expected and the remedy."""


COUNT_LIMIT = 16


class GpuSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Some equal GPUs of a node. Memory (MiB), PCI device id (hex) and MIG capability override the model's.

    `mig_devices` are the profiles of each GPU's MIG devices; MIG mode is on if they are given, even if there are none.
    """

    model: str
    count: int = 1
    memory_mib: int | None = msgspec.field(default=None, name="memoryMiB")
    pci_id: str | None = None
    mig_capable: bool | None = None
    mig_devices: tuple[str, ...] | None = None

    @property
    def card(self) -> Model:
        """The model with this spec's own values in place."""
        base = MODELS[ALIASES.get(self.model, self.model)]
        return msgspec.structs.replace(
            base,
            memory_mib=base.memory_mib if self.memory_mib is None else self.memory_mib,
            pci_id=base.pci_id if self.pci_id is None else self.pci_id,
            mig=base.mig if self.mig_capable is None else self.mig_capable,
        )

    @property
    def entry(self) -> GpuEntry:
        """One of the GPUs as the file of simulated GPUs has it."""
        return GpuEntry(
            self.model,
            memory_mib=self.memory_mib,
            mig_capable=self.mig_capable,
            mig=Mig(self.mig_devices is not None, self.mig_devices or ()),
        )


class OsSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The operating system as `/etc/os-release` names it. `ostree_version` is set on OpenShift nodes only."""

    id: str = "ubuntu"
    version_id: str = "24.04"
    ostree_version: str | None = None


class RuntimeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The container runtime: `containerd`, `cri-o` or `docker`."""

    name: str = "containerd"
    version: str = "2.1.4"


class Taint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """A node taint."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One simulated node.

    `host_driver` is the version of a driver installed on the host, or None. `nfd` says whether node feature discovery
    runs there. `missing_images` are image references (exact, or a repository without tag) that no registry has.
    `capacity` overrides single resources of the node, such as `cpu`, `memory` or `pods`.
    """

    name: str
    gpus: tuple[GpuSpec, ...] = ()
    kernel: str = "6.8.0-60-generic"
    os: OsSpec = OsSpec()
    arch: str = "amd64"
    runtime: RuntimeSpec = RuntimeSpec()
    host_driver: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    capacity: dict[str, str] = {}
    nfd: bool = True
    missing_images: tuple[str, ...] = ()

    def entries(self) -> Iterator[GpuEntry]:
        """Each GPU as the file of simulated GPUs has it, in the same order."""
        for group in self.gpus:
            yield from (group.entry for _ in range(group.count))

    def cards(self) -> Iterator[Model]:
        """The model of each GPU, in the order of their PCI addresses."""
        for group in self.gpus:
            for _ in range(group.count):
                yield group.card


class _NodeFile(msgspec.Struct, forbid_unknown_fields=True):
    nodes: list[NodeSpec]


_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_HEX_ID = re.compile(r"[0-9a-fA-F]{4}")
_ARCHES = ("amd64", "arm64")
_RUNTIMES = ("containerd", "cri-o", "docker")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_FORM = "a node file is `nodes:` followed by a list; docs/reference/node-file.md shows each field"


def load(path: Path) -> list[NodeSpec]:
    """Read a node file. NodeFileError, naming the file, if it is missing or wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NodeFileError(f"node file {path} cannot be read: {error}; give the path of a YAML file") from error
    return parse(yaml_document(text, str(path)), str(path))


def yaml_document(text: str, source: str) -> Any:
    """Parse YAML text; NodeFileError with line and column if it is malformed."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise NodeFileError(f"{source} is not valid YAML: {error}") from error


def parse(document: Any, source: str) -> list[NodeSpec]:
    """Check a node file's document and return its nodes; `source` names it in errors (NodeFileError)."""
    if not isinstance(document, dict):
        raise NodeFileError(f"{source}: expected a mapping, found {type(document).__name__}; {_FORM}")
    try:
        nodes = msgspec.convert(document, _NodeFile).nodes
    except msgspec.ValidationError as error:
        raise NodeFileError(f"{source}: {_located(str(error))}; {_FORM}") from error
    if not nodes:
        raise NodeFileError(f"{source}: nodes: the list is empty; describe at least one node")
    problems = [f"{source}: {problem}" for problem in _problems(nodes)]
    if problems:
        raise NodeFileError("\n".join(problems))
    return nodes


def generate(count: int, *, model: str = "H100", gpus: int = 8) -> list[NodeSpec]:
    """Return `count` equal GPU nodes named gpu-1, gpu-2, ... for a lab without a node file."""
    if count < 1:
        raise NodeFileError(f"number of nodes is {count}; expected 1 or more")
    return [NodeSpec(f"gpu-{number}", gpus=(GpuSpec(model, gpus),)) for number in range(1, count + 1)]


def _located(text: str) -> str:
    """Put msgspec's path (`at `$.nodes[0].os``) in front, as the other errors have it."""
    found = re.search(r" - at `\$\.?([^`]*)`$", text)
    return f"{found[1]}: {text[: found.start()]}" if found else text


def _problems(nodes: Sequence[NodeSpec]) -> Iterator[str]:
    seen: set[str] = set()
    for index, node in enumerate(nodes):
        at = f"nodes[{index}]"
        if node.name in seen:
            yield f"{at}.name: {node.name!r} is used twice; give every node its own name"
        seen.add(node.name)
        yield from (f"{at}.{problem}" for problem in _node_problems(node))


def _node_problems(node: NodeSpec) -> Iterator[str]:
    if not _NAME.fullmatch(node.name) or len(node.name) > 253:
        yield f"name: {node.name!r} is no DNS name; use lower-case letters, digits, `-` and `.`, at most 253"
    yield from _choice("arch", node.arch, _ARCHES)
    yield from _choice("runtime.name", node.runtime.name, _RUNTIMES)
    if node.host_driver is not None and not simfile.DRIVER_VERSION.fullmatch(node.host_driver):
        yield f"hostDriver: {node.host_driver!r} is no driver version; expected a text such as '580.126.20', or null"
    for number, taint in enumerate(node.taints):
        yield from _choice(f"taints[{number}].effect", taint.effect, _EFFECTS)
    for resource, value in node.capacity.items():
        try:
            amounts.exact(value)
        except ValueError as error:
            yield f"capacity.{resource}: {error}"
    if sum(group.count for group in node.gpus) > COUNT_LIMIT:
        yield f"gpus: more than {COUNT_LIMIT} GPUs in one node; split them over several nodes"
    for number, group in enumerate(node.gpus):
        yield from (f"gpus[{number}].{problem}" for problem in _gpu_problems(group))


def _gpu_problems(group: GpuSpec) -> Iterator[str]:
    if ALIASES.get(group.model, group.model) not in MODELS:
        yield f"model: {group.model!r} is not known; known are {', '.join(sorted({*MODELS, *ALIASES}))}"
    if group.count < 1:
        yield f"count: {group.count} GPUs; expected 1 or more (leave the entry out for none)"
    if group.memory_mib is not None and group.memory_mib < 1:
        yield f"memoryMiB: {group.memory_mib}; expected MiB, 1 or more"
    if group.pci_id is not None and not _HEX_ID.fullmatch(group.pci_id):
        yield f"pciId: {group.pci_id!r}; expected four hexadecimal digits such as '2330', in quotes"
    if group.mig_devices is not None and find(group.model) is not None:
        try:
            simfile.machine(describe("any", [group.entry], "1.0"), "migDevices")
        except FileError as error:
            yield str(error)


def _choice(field: str, value: str, allowed: Sequence[str]) -> Iterator[str]:
    if value not in allowed:
        yield f"{field}: {value!r}; expected one of {', '.join(allowed)}"
