"""Evidence: what was seen of a cluster, each piece with where and when it was seen.

One typed model for every origin: a live cluster, an archive, a node, text that somebody pasted, or one document that
holds all of it (:func:`loads`; the table :data:`FIELDS` is its reference). Pods in short form become Pod objects, so
that rules look at one shape only. Nothing is judged here; that is ``engine``'s part.
"""

import enum
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, Final

import msgspec

from ..api import goyaml

Object = Mapping[str, Any]
"""A Kubernetes object as its JSON has it."""


class Kind(enum.StrEnum):
    """The kinds of evidence, as signatures name them."""

    LOG = "log"
    EVENT = "event"
    KERNEL = "kmsg"
    NODE = "node"
    LABEL = "label"
    OBJECT = "object"
    CONTEXT = "ctx"


class EvidenceError(ValueError):
    """A document of evidence is not one; the message says where and what was expected."""


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An Event: what it is about, and what it says."""

    message: str
    reason: str = ""
    type: str = ""
    """``Warning`` or ``Normal``; empty when it was not said."""
    kind: str = ""
    """Kind of the object it is about."""
    name: str = ""
    namespace: str = ""
    node: str = ""
    count: int = 1
    when: str = ""
    """When it was last seen, as the source writes moments."""


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A container's log, or a part of it."""

    text: str
    pod: str = ""
    container: str = ""
    namespace: str = ""
    node: str = ""
    previous: bool = False
    """Of the run before the present one."""
    when: str = ""


class KernelLog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node's kernel messages."""

    text: str
    node: str = ""
    when: str = ""


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a command on a node printed, and its exit status; None where only the text is known."""

    out: str = ""
    rc: int | None = None


class NodeFacts(msgspec.Struct, frozen=True):
    """What was found out on a node itself; :data:`NODE_FACTS` names the facts that our own signatures ask for."""

    name: str = ""
    facts: Mapping[str, Any] = {}
    commands: Mapping[str, Command] = {}
    """By command line, as a person would type it."""
    when: str = ""
    missing: tuple[str, ...] = ()
    """What could not be looked at on the node, and why, one sentence each."""


class Evidence(msgspec.Struct, frozen=True, dict=True):
    """All that was seen. What is absent was not looked for; what was looked for in vain is in :attr:`missing`."""

    context: Mapping[str, Any] = {}
    """Facts of the cluster and of the run as a whole (:data:`CONTEXT_FACTS`)."""
    objects: tuple[Object, ...] = ()
    events: tuple[Event, ...] = ()
    logs: tuple[Log, ...] = ()
    kernel: tuple[KernelLog, ...] = ()
    nodes: tuple[NodeFacts, ...] = ()
    labels: Mapping[str, Mapping[str, str]] = {}
    """A node's labels by its name, where they were seen apart from the Node object; they win over the object's."""
    missing: tuple[str, ...] = ()
    """What could not be looked at, and why, one sentence each: never taken for healthy."""

    @cached_property
    def placed(self) -> Mapping[tuple[str, str], str]:
        """The node that each pod is on, by namespace and name; a name alone (namespace empty) finds any such pod."""
        found: dict[tuple[str, str], str] = {}
        for pod in self.of_kind("Pod"):
            place = node_of(pod)
            found[namespace(pod), name(pod)] = place
            found.setdefault(("", name(pod)), place)
        return found

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        """Every node that any piece names, in order of appearance."""
        names = [name(each) for each in self.of_kind("Node")]
        names += [each.name for each in self.nodes]
        names += self.labels
        names += [each.node for each in self.kernel]
        names += [each.node for each in self.logs]
        names += [each.name if each.kind == "Node" else each.node for each in self.events]
        names += self.placed.values()
        return tuple(dict.fromkeys(filter(None, names)))

    @cached_property
    def only(self) -> str:
        """The one node that is named, to which whatever names none belongs; empty if none or several are named."""
        return self.node_names[0] if len(self.node_names) == 1 else ""

    def place(self, node: str, namespace: str = "", pod: str = "") -> str:
        """The node of a piece that names one, or its pod's, or the only one; empty if it is of none."""
        return node or self.placed.get((namespace, pod), "") or self.only

    def of_kind(self, kind: str) -> Iterator[Object]:
        """The objects of a kind."""
        return (each for each in self.objects if each.get("kind") == kind)

    def node_labels(self, node: str) -> Mapping[str, str] | None:
        """A node's labels, of its object and of those seen apart; None if nobody looked at them."""
        return self._labels.get(node)

    @cached_property
    def _labels(self) -> dict[str, dict[str, str]]:
        found = {name(each): dict(labels(each)) for each in self.of_kind("Node")}
        for node, seen in self.labels.items():
            found.setdefault(node or self.only, {}).update(seen)
        return found


def name(thing: Object) -> str:
    """An object's name; empty if it has none."""
    return str(_mapping(thing, "metadata").get("name") or "")


def namespace(thing: Object) -> str:
    """An object's namespace; empty for an object of the cluster."""
    return str(_mapping(thing, "metadata").get("namespace") or "")


def labels(thing: Object) -> Mapping[str, str]:
    """An object's labels."""
    return _mapping(_mapping(thing, "metadata"), "labels")


def node_of(thing: Object) -> str:
    """The node that an object is on or is; empty if it is of none."""
    if thing.get("kind") == "Node":
        return name(thing)
    return str(_mapping(thing, "spec").get("nodeName") or "") if thing.get("kind") == "Pod" else ""


def _mapping(thing: Object, key: str) -> Mapping[str, Any]:
    found = thing.get(key)
    return found if isinstance(found, Mapping) else {}


def moment(stamp: Any) -> float | None:
    """Unix seconds of a time as the API server writes it; None if it is none."""
    try:
        return datetime.fromisoformat(str(stamp or "").replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


# --- The document -----------------------------------------------------------------------------------------------------

FIELDS: Final[Mapping[str, str]] = {
    "ctx": "facts of the cluster as a whole, `name: value`; any name is allowed, see the table of facts",
    "pods": (
        "list of Pods: whole objects, or short: `name`, `namespace` (gpu-operator), `node`, `app`, `labels`, `phase`, "
        "`status` (the STATUS column of `kubectl get pods`), `ready`, `restarts`, `reason`, `message`, and `init` and "
        "`containers`, each `container: status`"
    ),
    "events": (
        "list of Events: whole objects, texts, or short: `message`, `reason`, `type`, `kind`, `name`, `namespace`, "
        "`node`, `count`, `when`; `pod: NAME` stands for `kind: Pod` and `name: NAME`"
    ),
    "logs": (
        "list of `pod`, `container`, `namespace`, `node`, `previous`, `when` and `text` (or `lines`, a list); or "
        "`POD/CONTAINER: text`, `POD: text`; or one text of unknown origin"
    ),
    "kmsg": "kernel messages: a text or a list of lines, or `NODE: text or lines`",
    "node": (
        "facts of one node, or a list of such: `name`, `when`, `commands` (`COMMAND: text` or `COMMAND: {rc, out}`), "
        "`missing` (a list of sentences) and facts by name; any name is allowed, see the table of facts"
    ),
    "labels": "labels of the one node, `label: value`; or `NODE: {label: value}`",
    "objects": "list of Kubernetes objects as `kubectl get -o yaml` prints them; also a List, or one object",
}
"""The document's fields, all optional (``--evidence FILE``). With exactly one node named, what names none is its."""

CONTEXT_FACTS: Final[Mapping[str, str]] = {
    "release": "the operator's release, such as v26.3.3",
    "platform": "kubernetes, openshift, rke2, k3s, microk8s, k0s, aks, eks, gke",
    "values": "the release's values",
    "gpu_nodes": "number of nodes with a GPU, where it is known otherwise than by Node objects",
    "upgrade_stuck": "whether driver upgrades wait although a slot should be free: true, false",
    "brings_up": "what is there to bring the GPU stack up: `policy` (a ClusterPolicy or GPUCluster), `operator` (one "
    "without a policy), `nothing`",
    "idle_gpu_nodes": "number of nodes that have a GPU and neither offer it nor have an operand",
    "missing": "list of what could not be looked at, a sentence each",
}
"""The facts of ``ctx`` that are asked for by name; texts, such as what Helm printed, are searched under any name."""
NODE_FACTS: Final[Mapping[str, str]] = {
    "expected_gpus": "number of GPUs that the node should have",
    "allocatable": "number of GPUs that it offers",
    "pci": "list of `vendor:device` of the node's PCI devices, or lines of `lspci -nn`",
    "modules": "list of loaded kernel modules",
    "nouveau": "false where it is known not to be loaded",
    "driver_version": "version of the loaded kernel module",
    "library_version": "version of the driver's user libraries",
    "fabric_state": "State of the fabric as `nvidia-smi -q` prints it",
    "fabric_manager": "state of the service nvidia-fabricmanager: active, inactive, failed",
    "toolkit_version": "version of the NVIDIA container toolkit",
    "inactive_dropins": "list of the runtime's drop-in files that its configuration does not import",
    "plugin_socket": "whether the device plugin's socket is in the kubelet's folder: true, false",
    "gpus": "list of NVIDIA's GPUs on the PCI bus: `address`, `device`, `class`, `driver`, `virtual_function`, link",
    "nvswitches": "list of NVIDIA's switches on the PCI bus, each as a GPU",
    "module_uses": "how often each of NVIDIA's modules, and nouveau, is used",
    "module_type": "kind of the loaded kernel module: open, proprietary",
    "host_library_version": "version of the driver's user libraries that are installed on the node itself",
    "container_library_version": "version of the user libraries that the driver's container brings",
    "host_tool": "path of the node's own nvidia-smi; empty if it has none",
    "nvidia_smi_rc": "exit status of nvidia-smi",
    "cuda_version": "CUDA version of the driver, as `nvidia-smi -q` prints it",
    "driver_gpus": "number of GPUs that the driver has",
    "gpu_uuids": "list of their UUIDs",
    "gpu_names": "list of their products' names",
    "vbios": "list of their VBIOS versions",
    "fabric_status": "Status of the fabric as `nvidia-smi -q` prints it",
    "fabric_manager_version": "version of the fabric manager",
    "device_holders": "list of processes that have the driver's devices open",
    "os": "ID of the operating system, as os-release has it",
    "os_version": "its VERSION_ID",
    "kernel": "release of the running kernel",
    "kernels": "list of the installed kernels' releases",
    "newer_kernel": "release of the kernel that the next boot may start instead; empty if none is newer",
    "reboot_required": "true where the operating system asks for a reboot",
    "headers": "headers of the running kernel: installed, available, absent, `not installed` (no list to search)",
    "headers_package": "the package that has them",
    "kernel_updates": "list of what may install kernels by itself",
    "kernel_holds": "list of what keeps it from that",
    "nouveau_denied": "list of modprobe's files that deny nouveau",
    "nouveau_denied_in_initramfs": "whether the initramfs denies nouveau: true, false",
    "nouveau_on_cmdline": "whether the kernel's command line denies nouveau: true, false",
    "firmware": "UEFI, BIOS",
    "secure_boot": "whether Secure Boot is on: true, false",
    "lockdown": "the kernel's lockdown: none, integrity, confidentiality",
    "selinux": "enforcing, permissive, disabled",
    "selinux_configured": "what SELinux is configured to be at the next boot",
    "services": "state and enablement of services by name: `{containerd: {state: active, enabled: enabled}}`",
    "containerd": (
        "containerd's configuration: `version`, `config`, `config_version`, `imports`, `imported`, `cdi`, "
        "`cdi_spec_dirs`, `default_runtime`, `handlers`, `nri`, `cgroup`, `errors`"
    ),
    "crio": "CRI-O's configuration, likewise",
    "docker": "Docker's configuration, likewise",
    "sockets": "list of the runtimes' sockets that are there",
    "nri_socket": "whether NRI's socket is there: true, false",
    "toolkit": "list of the paths of NVIDIA's container toolkit's programs",
    "cdi_specs": "list of CDI specs: `path`, `kind`, `devices`",
    "cdi_errors": "list of what is wrong with CDI specs",
    "validations": "list of the files by which validations say that they have passed",
    "driver_container": "whether a driver's container says that it is ready: true, false",
    "kubelet_root": "the kubelet's folder",
    "kubelet_socket": "whether the kubelet's registration socket is there: true, false",
    "kubelet_version": "version of the kubelet's package",
    "device_plugins": "list of what is in the kubelet's folder of device plugins",
    "clock_service": "what keeps the clock right: systemd-timesyncd, chrony",
    "clock_skew_s": "seconds by which the node's clock is ahead of servers' that were reached",
    "reach": "by address that was tried: `{status, problem}`; reached where there is no problem",
    "pull": "by image whose manifest was asked for: `{status, problem, digest}`",
}
"""The facts of ``node`` that signatures and checks ask for by name; texts are searched under any name."""


class _ShortPod(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    namespace: str = "gpu-operator"
    node: str = ""
    app: str = ""
    labels: dict[str, str] = {}
    phase: str = ""
    status: str = ""
    ready: bool | None = None
    restarts: int = 0
    reason: str = ""
    message: str = ""
    init: dict[str, str] = {}
    containers: dict[str, str] = {}


class _ShortLog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pod: str = ""
    container: str = ""
    namespace: str = ""
    node: str = ""
    previous: bool = False
    when: str = ""
    text: str = ""
    lines: list[str] = []


def loads(text: str, source: str = "the document") -> Evidence:
    """Evidence of a document (:data:`FIELDS`); ``source`` is its name in messages.

    Raises:
        EvidenceError: it is no YAML, has unknown fields, or a field of another shape.
    """
    try:
        document = goyaml.loads(text)
    except goyaml.DocumentError as error:
        raise EvidenceError(f"{source} is not YAML: {error}") from None
    return load({} if document is None else document, source)


def load(document: Any, source: str = "the document") -> Evidence:
    """Evidence of a document that is read already. Raises :class:`EvidenceError`."""
    if not isinstance(document, Mapping):
        raise EvidenceError(f"{source} must be a mapping with any of {', '.join(FIELDS)}; it is {_what(document)}")
    if unknown := [str(key) for key in document if key not in FIELDS]:
        raise EvidenceError(f"{source} has no field {', '.join(unknown)}; its fields are {', '.join(FIELDS)}")
    read: dict[str, Any] = {}
    for field, reader in _READERS.items():
        if document.get(field) is None:
            continue
        try:
            read[field] = reader(document[field])
        except (msgspec.ValidationError, _ShapeError) as error:
            raise EvidenceError(f"{source}, field {field}: {error}. It must be: {FIELDS[field]}") from None
    context = dict(read.get("ctx", {}))
    objects = read.get("objects", ())
    return Evidence(
        missing=tuple(context.pop("missing", ())),
        context=context,
        objects=(*read.get("pods", ()), *(each for each in objects if each["kind"] != "Event")),
        events=(*read.get("events", ()), *(event_of(each) for each in objects if each["kind"] == "Event")),
        logs=read.get("logs", ()),
        kernel=read.get("kmsg", ()),
        nodes=read.get("node", ()),
        labels=read.get("labels", {}),
    )


class _ShapeError(ValueError):
    """A part has another shape than it should; :func:`load` adds where."""


def _what(value: Any) -> str:
    names = {
        dict: "a mapping",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "nothing")


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _ShapeError(f"it is {_what(value)}, not a list")
    return value


def _mapped(value: Any, where: str = "it") -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _ShapeError(f"{where} is {_what(value)}, not a mapping")
    return value


def _text(value: Any, where: str = "it") -> str:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise _ShapeError(f"{where} is {_what(value)}, not a text or a list of lines")
    return value


def _context(value: Any) -> dict[str, Any]:
    context = _mapped(value)
    missing = context.get("missing", [])
    if not isinstance(missing, list) or not all(isinstance(each, str) for each in missing):
        raise _ShapeError("missing must be a list of sentences")
    return context


def _pods(value: Any) -> tuple[Object, ...]:
    return tuple(_pod(item, f"[{index}]") for index, item in enumerate(_listed(value)))


def _pod(item: Any, where: str) -> Object:
    pod = _mapped(item, where)
    if "metadata" in pod:
        return _object({"apiVersion": "v1", "kind": "Pod", **pod}, where)
    return _as_pod(msgspec.convert(pod, _ShortPod))


_ENDED: Final = {"Completed": 0, "OOMKilled": 137, "Error": 1, "StartError": 128, "ContainerCannotRun": 128}
"""Reasons of containers that have ended, with the exit code that goes with them."""
_COUNT: Final = re.compile(r"[0-9]+/[0-9]+")
"""How ``kubectl get pods`` says how many init containers have ended (``Init:0/1``)."""
_PHASES: Final = {"Running": "Running", "Completed": "Succeeded", "Succeeded": "Succeeded", "Failed": "Failed"}


def _as_pod(short: _ShortPod) -> Object:
    init, containers = dict(short.init), dict(short.containers)
    told = init if short.status.startswith("Init:") else containers
    if short.status and short.status != "Pending" and not told:  # what is pending has no container yet
        told[""] = short.status.removeprefix("Init:")
    held = "Pending" if init or "ImagePull" in short.status or short.status == "Pending" else "Running"
    phase = short.phase or _PHASES.get(short.status, held)
    ready = short.ready if short.ready is not None else phase == "Running" and all(map(_runs, containers.values()))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": short.name,
            "namespace": short.namespace,
            "labels": {**({"app": short.app} if short.app else {}), **short.labels},
        },
        "spec": {"nodeName": short.node} if short.node else {},
        "status": {
            "phase": phase,
            "reason": short.reason,
            "message": short.message,
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "initContainerStatuses": [_container(each, said, short) for each, said in init.items()],
            "containerStatuses": [_container(each, said, short) for each, said in containers.items()],
        },
    }


def _runs(state: str) -> bool:
    return state in ("Running", "Completed")


def _container(container: str, state: str, pod: _ShortPod) -> dict[str, Any]:
    reason, _, code = state.partition(":")
    known: dict[str, Any]
    if reason == "Running":
        known = {"running": {}}
    elif reason in _ENDED:
        exit_code = int(code) if code.strip().isdigit() else _ENDED[reason]
        known = {"terminated": {"reason": reason, "exitCode": exit_code, "message": pod.message}}
    else:
        waits = "PodInitializing" if _COUNT.fullmatch(reason) else reason
        known = {"waiting": {"reason": waits, "message": pod.message}}
    ready = _runs(state) and pod.ready is not False
    return {"name": container, "ready": ready, "restartCount": pod.restarts, "state": known}


def _events(value: Any) -> tuple[Event, ...]:
    return tuple(_event(item, f"[{index}]") for index, item in enumerate(_listed(value)))


def _event(item: Any, where: str) -> Event:
    if isinstance(item, str):
        return Event(message=item)
    event = dict(_mapped(item, where))
    if "involvedObject" in event or "regarding" in event:
        return event_of(event)
    if "pod" in event:
        event = {"kind": "Pod", "name": event.pop("pod"), **event}
    return msgspec.convert(event, Event)


def event_of(thing: Object) -> Event:
    """An Event object of either API version, short."""
    about = _mapping(thing, "involvedObject") or _mapping(thing, "regarding")
    kind, called = str(about.get("kind") or ""), str(about.get("name") or "")
    source = _mapping(thing, "source") or _mapping(thing, "deprecatedSource")
    moment = thing.get("lastTimestamp") or thing.get("deprecatedLastTimestamp") or thing.get("eventTime") or ""
    count = thing.get("count") or thing.get("deprecatedCount") or 1
    return Event(
        message=str(thing.get("message") or thing.get("note") or ""),
        reason=str(thing.get("reason") or ""),
        type=str(thing.get("type") or ""),
        kind=kind,
        name=called,
        namespace=str(about.get("namespace") or ""),
        node=called if kind == "Node" else str(source.get("host") or ""),
        count=count if isinstance(count, int) else 1,
        when=str(moment),
    )


def _logs(value: Any) -> tuple[Log, ...]:
    if isinstance(value, str):
        return (Log(text=value),)
    if isinstance(value, dict):
        return tuple(_named_log(str(key), _text(text, str(key))) for key, text in value.items())
    return tuple(_log(item, f"[{index}]") for index, item in enumerate(_listed(value)))


def _named_log(key: str, text: str) -> Log:
    parts = key.split("/")
    if len(parts) > 3:
        raise _ShapeError(f"{key} is none of POD, POD/CONTAINER and NAMESPACE/POD/CONTAINER")
    if len(parts) == 1:  # people also name the container alone, as kubectl's prefix does
        return Log(text=text, pod=key, container=key if key.endswith("-ctr") else "")
    return Log(text=text, namespace="/".join(parts[:-2]), pod=parts[-2], container=parts[-1])


def _log(item: Any, where: str) -> Log:
    if isinstance(item, str):
        return Log(text=item)
    short = msgspec.convert(_mapped(item, where), _ShortLog)
    return Log(
        text=short.text or "\n".join(short.lines),
        pod=short.pod,
        container=short.container,
        namespace=short.namespace,
        node=short.node,
        previous=short.previous,
        when=short.when,
    )


def _kernel(value: Any) -> tuple[KernelLog, ...]:
    if isinstance(value, dict):
        return tuple(KernelLog(text=_text(text, str(node)), node=str(node)) for node, text in value.items())
    return (KernelLog(text=_text(value)),)


def _nodes(value: Any) -> tuple[NodeFacts, ...]:
    items = value if isinstance(value, list) else [value]
    return tuple(_node(_mapped(item, f"[{index}]")) for index, item in enumerate(items))


def _node(item: Mapping[str, Any]) -> NodeFacts:
    facts = dict(item)
    commands = {line: _command(said) for line, said in _mapped(facts.pop("commands", {}), "commands").items()}
    called, when, missing = facts.pop("name", ""), facts.pop("when", ""), facts.pop("missing", [])
    if not isinstance(called, str) or not isinstance(when, str):
        raise _ShapeError("name and when must be texts")
    if not isinstance(missing, list) or not all(isinstance(each, str) for each in missing):
        raise _ShapeError("missing must be a list of sentences")
    return NodeFacts(name=called, facts=facts, commands=commands, when=when, missing=tuple(missing))


def _command(said: Any) -> Command:
    return Command(out=said) if isinstance(said, str) else msgspec.convert(said, Command)


def _labels(value: Any) -> dict[str, dict[str, str]]:
    found = _mapped(value)
    if found and all(isinstance(each, dict) for each in found.values()):
        return {node: _label_set(each, node) for node, each in found.items()}
    return {"": _label_set(found, "it")}


def _label_set(value: dict[str, Any], where: str) -> dict[str, str]:
    for label, said in value.items():
        if isinstance(said, dict | list):
            raise _ShapeError(f"{where}: the label {label} is {_what(said)}, not a text")
    plain = {True: "true", False: "false", None: ""}
    return {
        label: plain[said] if said is None or isinstance(said, bool) else str(said) for label, said in value.items()
    }


def _objects(value: Any) -> tuple[Object, ...]:
    items = value if isinstance(value, list) else [value]
    found: list[Object] = []
    for index, item in enumerate(items):
        thing = _object(_mapped(item, f"[{index}]"), f"[{index}]")
        inner = thing.get("items") if str(thing["kind"]).endswith("List") else None
        found += _objects(inner) if isinstance(inner, list) else [thing]
    return tuple(found)


def _object(thing: dict[str, Any], where: str) -> Object:
    if not isinstance(thing.get("kind"), str) or not thing["kind"]:
        raise _ShapeError(f"{where} has no kind")
    for part in ("metadata", "spec", "status"):
        if thing.get(part) is not None:
            _mapped(thing[part], f"{where}: {part}")
    return thing


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "ctx": _context,
    "pods": _pods,
    "events": _events,
    "logs": _logs,
    "kmsg": _kernel,
    "node": _nodes,
    "labels": _labels,
    "objects": _objects,
}
