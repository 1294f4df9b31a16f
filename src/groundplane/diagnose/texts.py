"""Evidence out of loose text: what people paste into tickets, of several commands and in any order.

Known are objects as ``kubectl get -o yaml`` and ``-o json`` print them, ``kubectl describe`` of pods and nodes, the
tables of ``kubectl get pods`` and ``get events``, kernel messages (dmesg, journal), nvidia-smi's table, and documents
of evidence. Whatever else there is stays a log of unknown origin, in which all tokens are looked for: nothing that was
given is lost. Text is hostile: any encoding, lines of any length, halves of documents; it never raises for content.
Archives are ``archive``'s.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ..api import goyaml
from . import evidence as seen
from . import pods
from .evidence import Command, Event, Evidence, EvidenceError, KernelLog, Log, NodeFacts, Object

LARGEST: Final = 16 << 20
"""Bytes of a text that are read; its end is kept, as failures are there."""
LONGEST: Final = 1 << 14
"""Characters of a line that are kept."""
_YAML_MOST: Final = 1 << 20
"""Characters that are read as one document of YAML, which takes seconds; of longer Lists, objects one by one."""
_YAML_ALL: Final = 4 << 20
"""Characters of YAML that are read in all: the rest of a text stays text."""
_RUN: Final = re.compile(rb"[\t\x20-\x7e]{4,}")
_SAMPLE: Final = 1 << 16
_MARKS: Final = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")


def decoded(data: bytes) -> str:
    """The text of bytes in any encoding: what cannot be read is replaced, lines and the whole are bounded."""
    if not data.startswith(tuple(mark for mark, _ in _MARKS)) and _is_binary(data[:_SAMPLE]):
        data = b"\n".join(_RUN.findall(data[-LARGEST:]))
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    text = (
        data[-LARGEST:].decode(encoding, "replace")
        if encoding == "utf-8"
        else data[:LARGEST].decode(encoding, "replace")
    )
    if "\x1b" in text:
        text = _COLOURS.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = text.replace("\0", "")
    if text.lstrip()[:1] == "{" and _is_json(text):
        return text  # one line, as the API server itself writes it
    lines = text.split("\n")
    return "\n".join([line if len(line) <= LONGEST else line[:LONGEST] for line in lines])


def _is_binary(sample: bytes) -> bool:
    """Whether bytes are no text in any encoding: of such, only what can be printed is read."""
    text = sample.decode("utf-8", "replace")
    return text.count("\N{REPLACEMENT CHARACTER}") > len(text) // 10


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return False
    return True


def read(text: str, source: str = "the text") -> Evidence:
    """The evidence that a text holds; its parts are told apart by their form."""
    document = _document(text)
    if isinstance(document, Mapping) and document and set(document) <= set(seen.FIELDS):
        try:
            return seen.load(document, source)
        except EvidenceError:
            pass  # it only looks like one; what it says is still read below
    found = _Found()
    if document is not None and (objects := list(_objects(document))):
        found.objects += objects
    else:
        _read_lines(text.split("\n"), found)
    return found.evidence()


def merged(parts: Iterable[Evidence]) -> Evidence:
    """Several evidences as one; of facts of the cluster, the first that was seen."""
    parts = list(parts)
    context: dict[str, Any] = {}
    labels: dict[str, dict[str, str]] = {}
    for part in parts:
        context = {**part.context, **context}
        for node, mine in part.labels.items():
            labels.setdefault(node, {}).update(mine)
    return Evidence(
        context=context,
        objects=tuple(each for part in parts for each in part.objects),
        events=tuple(each for part in parts for each in part.events),
        logs=tuple(each for part in parts for each in part.logs),
        kernel=tuple(each for part in parts for each in part.kernel),
        nodes=tuple(each for part in parts for each in part.nodes),
        labels=labels,
        missing=tuple(each for part in parts for each in part.missing),
    )


class _Found:
    """What has been found in a text so far."""

    def __init__(self) -> None:
        self.objects: list[Object] = []
        self.events: list[Event] = []
        self.kernel: list[str] = []
        self.smi: list[str] = []
        self.rest: list[str] = []
        self.missing: list[str] = []
        self.yaml_left = _YAML_ALL

    def evidence(self) -> Evidence:
        """All of it; of several objects of one name, the one that says more."""
        things = [each for each in self.objects if each.get("kind") != "Event"]
        events = [seen.event_of(each) for each in self.objects if each.get("kind") == "Event"]
        ours = [each for each in things if each.get("kind") == "Pod" and pods.concerns_us(each, "gpu-operator")]
        if ours:
            things = [each for each in things if each.get("kind") != "Pod" or each in ours]
        rest = "\n".join(self.rest).strip()
        return Evidence(
            objects=tuple(_unique(things)),
            events=tuple(each for each in (*self.events, *events) if each.type != "Normal"),
            logs=(Log(text=rest),) if rest else (),
            kernel=(KernelLog(text="\n".join(self.kernel)),) if self.kernel else (),
            nodes=(_smi(self.smi),) if self.smi else (),
            missing=tuple(dict.fromkeys(self.missing)),
        )


def _unique(things: Iterable[Object]) -> Iterator[Object]:
    best: dict[tuple[str, str, str], Object] = {}
    for thing in things:
        key = (str(thing.get("kind")), seen.namespace(thing), seen.name(thing))
        if key not in best or len(str(thing)) > len(str(best[key])):
            best[key] = thing
    yield from best.values()


# --- Documents --------------------------------------------------------------------------------------------------------

_YAML_HEAD: Final = re.compile(
    r"^(?:apiVersion|kind|items|ctx|pods|events|logs|kmsg|node|labels|objects):", re.MULTILINE
)
_TROUBLES: Final = (goyaml.DocumentError, ValueError, RecursionError)


def _document(text: str) -> Any:
    """The document that a text is as a whole; None if it is none."""
    begin = text.lstrip()[:1]
    try:
        if begin == "{":
            return json.loads(text)
        if (
            len(text) <= _YAML_MOST
            and _YAML_HEAD.match(text.lstrip().removeprefix("---").lstrip())
            and "\n---" not in text
        ):
            return goyaml.loads(text)
    except _TROUBLES:
        pass
    return None


def _objects(document: Any) -> Iterator[Object]:
    """The Kubernetes objects of a document, those of Lists too; what has another shape is left out."""
    if not isinstance(document, dict):
        return
    items = document.get("items")
    kind = document.get("kind")
    if isinstance(items, list) and str(kind or "List").endswith("List"):
        head = {"kind": str(kind).removesuffix("List")} if kind and kind != "List" else {}
        for item in items:
            if isinstance(item, dict):
                yield from _objects({**head, **item})
        return
    if isinstance(kind, str) and kind and isinstance(document.get("metadata"), dict):
        try:
            yield from seen.load({"objects": [document]}).objects if kind != "Event" else (document,)
        except EvidenceError:
            return


# --- Lines ------------------------------------------------------------------------------------------------------------

_KERNEL: Final = re.compile(
    r"^(?:<[0-9]{1,3}>)?\[ *[0-9]{1,9}\.[0-9]{3,9}\]|^\[[A-Z][a-z]{2} [A-Z][a-z]{2} +[0-9]{1,2} [0-9:]{8} [0-9]{4}\]"
    r"|^(?:[A-Z][a-z]{2} +[0-9]{1,2} [0-9:]{8}|[0-9]{4}-[0-9-]{5}T\S{1,40}) \S{1,253} kernel: |^kern +:"
)
_PODS: Final = re.compile(r"^(?:NAMESPACE +)?NAME +READY +STATUS +RESTARTS")
_EVENTS: Final = re.compile(r"^(?:NAMESPACE +)?LAST SEEN +TYPE +REASON +OBJECT")
_DESCRIBED: Final = re.compile(r"^Name: {2,}\S")
_YAML_TOP: Final = re.compile(r"^(?:apiVersion|kind): ?\S")
_YAML_MORE: Final = re.compile(r"^(?:[ #-]|$|[A-Za-z]+:(?: |$))")
_SMI: Final = re.compile(r"^\|? *NVIDIA-SMI [0-9]+\.")
_SMI_ROW: Final = re.compile(r"^[|+ ]|^$")


class _Block(NamedTuple):
    """A part of a text that one reader takes: how it begins, and what goes on with it."""

    begin: re.Pattern[str]
    goes_on: re.Pattern[str]
    read: str


_BLOCKS: Final = (
    _Block(_PODS, re.compile(r"^\S+ +\S+ +\S+"), "pods"),
    _Block(_EVENTS, re.compile(r"^\S+ +\S+ +\S+"), "events"),
    _Block(_DESCRIBED, re.compile(r"^[ \t]|^$|^[A-Z][A-Za-z -]{1,40}:(?: |$)"), "described"),
    _Block(_YAML_TOP, _YAML_MORE, "yaml"),
    _Block(re.compile(r"^\{\s*$"), re.compile(r"^[ \t}\]]"), "json"),
    _Block(_SMI, _SMI_ROW, "smi"),
)


def _read_lines(lines: Sequence[str], found: _Found) -> None:
    at = 0
    while at < len(lines):
        line = lines[at]
        block = next((each for each in _BLOCKS if each.begin.match(line)), None)
        if block is None:
            (found.kernel if _KERNEL.match(line) else found.rest).append(line)
            at += 1
            continue
        end = at + 1
        while end < len(lines) and block.goes_on.match(lines[end]) and not _another(block, lines[end]):
            end += 1
        part = lines[at:end]
        if not _READERS[block.read](part, found):
            found.rest += part
        at = end


def _another(block: _Block, line: str) -> bool:
    """Whether a line begins the next block: of any kind, but for what is within a document."""
    if _KERNEL.match(line):
        return True
    if block.read in ("yaml", "json"):
        return False
    return any(each.begin.match(line) for each in _BLOCKS)


def _read_yaml(lines: Sequence[str], found: _Found) -> bool:
    if sum(map(len, lines)) > _YAML_MOST:
        return _read_long_yaml(lines, found)
    whole = list(lines)
    while whole:  # what stands below a pasted document often looks like more of it
        text = "\n".join(whole)
        found.yaml_left -= len(text)
        if found.yaml_left < 0:
            found.missing.append(_TOO_LONG)
            return False
        try:
            things = list(_objects(goyaml.loads(text)))
        except _TROUBLES:
            cut = next((index for index in range(len(whole) - 1, 0, -1) if not whole[index].startswith(" ")), 0)
            found.rest += whole[cut:] if cut else []
            if len(lines) - cut > _RETRIES * 8 or not cut:
                return False
            whole = whole[:cut]
            continue
        found.objects += things
        return bool(things)
    return False


_TOO_LONG: Final = "a part of the YAML was read as text only, as there is much of it; JSON (-o json) is read quicker"


def _read_long_yaml(lines: Sequence[str], found: _Found) -> bool:
    """The objects of a List one after another, as long as there is room; what is left stays text."""
    begin = next((number for number, line in enumerate(lines) if line.startswith("items:")), len(lines)) + 1
    starts = [number for number, line in enumerate(lines[begin:], start=begin) if line.startswith("- ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        item = "\n".join(lines[start:end])
        found.yaml_left -= len(item)
        if found.yaml_left < 0:
            found.missing.append(_TOO_LONG)
            found.rest += lines[start:]
            return True
        try:
            found.objects += [each for thing in goyaml.loads(item) for each in _objects(thing)]
        except _TROUBLES:
            found.rest += lines[start:end]
    if not starts:
        found.missing.append(_TOO_LONG)
    return bool(starts)


_RETRIES: Final = 8
"""Lines that are not a document's are few; text that only looks like YAML is given up soon."""


def _read_json(lines: Sequence[str], found: _Found) -> bool:
    try:
        things = list(_objects(json.loads("\n".join(lines))))
    except _TROUBLES:
        return False
    found.objects += things
    return bool(things)


# --- Tables -----------------------------------------------------------------------------------------------------------


def _columns(head: str, names: Iterable[str]) -> dict[str, int]:
    """Where columns of a table begin."""
    return {name: head.index(name) for name in names if name in head}


def _cells(line: str, columns: Mapping[str, int]) -> dict[str, str]:
    """A row's cells by column; a cell begins where the heading does, unless one before is too long for its column."""
    starts = sorted(columns.items(), key=lambda each: each[1])
    aligned = all(start == 0 or line[start - 1 : start] in ("", " ") for _, start in starts)
    if aligned:
        ends = [start for _, start in starts[1:]] + [len(line)]
        return {name: line[start:end].strip() for (name, start), end in zip(starts, ends, strict=True)}
    parts = re.split(r" {2,}", line.strip(), maxsplit=len(starts) - 1)
    return dict(zip((name for name, _ in starts), parts, strict=False))


def _read_pods(lines: Sequence[str], found: _Found) -> bool:
    columns = _columns(
        lines[0], ("NAMESPACE", "NAME ", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE", "NOMINATED")
    )
    columns["NAME"] = columns.pop("NAME ", 0)
    for line in lines[1:]:
        row = _cells(line, columns)
        if not row.get("NAME") or not row.get("STATUS"):
            found.rest.append(line)
            continue
        found.objects.append(_pod_of(row))
    found.rest += lines  # names and states are text too
    return True


_APPS: Final = re.compile(r"^(.+?)(?:-[bcdfghjklmnpqrstvwxz2456789]{6,10})?-[a-z0-9]{5}$")
"""A pod's name: its owner's, a hash of the template (of letters that make no words) where it has one, and five more."""


def _pod_of(row: Mapping[str, str]) -> Object:
    """A pod of a row of ``kubectl get pods``; its ``app`` follows from its name, as operands are called."""
    name = row["NAME"].split()[0]
    base = _APPS.match(name)
    ready = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", row.get("READY", ""))
    restarts = re.match(r"[0-9]{1,6}", row.get("RESTARTS", ""))
    node = row.get("NODE", "").split(" ")[0]
    short: dict[str, Any] = {
        "name": name,
        "app": base[1] if base else name,
        "status": row["STATUS"].split()[0],
        "ready": bool(ready and ready[1] == ready[2]),
        "restarts": int(restarts[0]) if restarts else 0,
        "namespace": row.get("NAMESPACE") or "gpu-operator",
        "node": "" if node == "<none>" else node,
    }
    return seen.load({"pods": [short]}).objects[0]


def _read_events(lines: Sequence[str], found: _Found) -> bool:
    columns = _columns(
        lines[0], ("NAMESPACE", "LAST SEEN", "TYPE", "REASON", "OBJECT", "SUBOBJECT", "SOURCE", "MESSAGE")
    )
    for line in lines[1:]:
        row = _cells(line, columns)
        kind, _, name = row.get("OBJECT", "").partition("/")
        if not row.get("MESSAGE"):
            found.rest.append(line)
            continue
        kind = {"pod": "Pod", "node": "Node", "daemonset": "DaemonSet"}.get(kind, kind)
        found.events.append(
            Event(
                message=row["MESSAGE"],
                reason=row.get("REASON", ""),
                type=row.get("TYPE", ""),
                kind=kind,
                name=name,
                namespace=row.get("NAMESPACE", ""),
                node=name if kind == "Node" else "",
                when=f"{row['LAST SEEN']} before" if row.get("LAST SEEN") else "",
            )
        )
    return True


# --- kubectl describe -------------------------------------------------------------------------------------------------


class _Tree(NamedTuple):
    """A line of ``kubectl describe`` with those that are indented below it."""

    key: str
    value: str
    inner: list["_Tree"]
    line: str

    def get(self, key: str) -> "_Tree":
        """The part below that is called so; an empty one if there is none."""
        return next((each for each in self.inner if each.key == key), _Tree(key, "", [], ""))


def _tree(lines: Sequence[str]) -> _Tree:
    root = _Tree("", "", [], "")
    open_at: list[tuple[int, _Tree]] = [(-1, root)]
    for line in lines:
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        key, colon, value = line.strip().partition(":")
        part = _Tree(key if colon else "", value.strip() if colon else "", [], line.strip())
        while open_at[-1][0] >= depth:
            open_at.pop()
        open_at[-1][1].inner.append(part)
        open_at.append((depth, part))
        if len(open_at) > 64:
            open_at.pop()
    return root


def _read_described(lines: Sequence[str], found: _Found) -> bool:
    tree = _tree(lines)
    name = tree.get("Name").value
    if not name or not (tree.get("Namespace").value or tree.get("Capacity").inner or tree.get("Roles").line):
        return False
    namespace = tree.get("Namespace").value
    is_node = not namespace
    is_pod = bool(namespace and (tree.get("Containers").inner or tree.get("Status").value))
    if is_pod:
        found.objects.append(_described_pod(tree, name, namespace))
    elif is_node:
        found.objects.append(_described_node(tree, name))
    kind = "Pod" if is_pod else "Node" if is_node else ""
    found.events += _described_events(tree.get("Events"), kind, name, namespace)
    found.rest += lines
    return True


def _pairs(tree: _Tree, separator: str = "=") -> dict[str, str]:
    """``a=b`` on the line itself and on those below it."""
    rows = [tree.value, *(each.line for each in tree.inner)]
    # labels stand below each other, under the first, which is deeper than the word Labels itself
    return {key: value for row in rows for key, mark, value in [row.partition(separator)] if mark}


def _described_pod(tree: _Tree, name: str, namespace: str) -> Object:
    status: dict[str, Any] = {
        "phase": tree.get("Status").value,
        "reason": tree.get("Reason").value,
        "message": tree.get("Message").value,
        "conditions": [
            {"type": words[0], "status": words[1]}
            for each in tree.get("Conditions").inner
            if len(words := each.line.split()) == 2 and words[1] in ("True", "False")
        ],
    }
    spec: dict[str, Any] = {"nodeSelector": _pairs(tree.get("Node-Selectors"))}
    for title, part, of_spec in (
        ("Init Containers", "initContainerStatuses", "initContainers"),
        ("Containers", "containerStatuses", "containers"),
    ):
        inner = tree.get(title).inner
        status[part] = [_described_container(each) for each in inner]
        spec[of_spec] = [
            {"name": each.key, "image": each.get("Image").value, "resources": _described_resources(each)}
            for each in inner
        ]
    node = tree.get("Node").value.split("/")[0]
    if node and node != "<none>":
        spec["nodeName"] = node
    if runtime := tree.get("Runtime Class Name").value:
        spec["runtimeClassName"] = runtime
    metadata = {"name": name, "namespace": namespace, "labels": _pairs(tree.get("Labels"))}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def _described_resources(container: _Tree) -> dict[str, dict[str, str]]:
    return {
        part.lower(): {each.key: each.value for each in container.get(part).inner if each.key}
        for part in ("Limits", "Requests")
    }


def _described_container(container: _Tree) -> dict[str, Any]:
    restarts = container.get("Restart Count").value
    return {
        "name": container.key,
        "ready": container.get("Ready").value == "True",
        "restartCount": int(restarts) if re.fullmatch("[0-9]{1,6}", restarts) else 0,
        "state": _described_state(container.get("State")),
        "lastState": _described_state(container.get("Last State")),
    }


def _described_state(state: _Tree) -> dict[str, Any]:
    if not state.value:
        return {}
    said: dict[str, Any] = {}
    if reason := state.get("Reason").value:
        said["reason"] = reason
    if message := state.get("Message"):
        said["message"] = " ".join(filter(None, (message.value, *(each.line for each in message.inner))))
    code = state.get("Exit Code").value
    if re.fullmatch("-?[0-9]{1,6}", code):
        said["exitCode"] = int(code)
    return {state.value.lower(): said}


def _described_node(tree: _Tree, name: str) -> Object:
    taints = [tree.get("Taints").value, *(each.line for each in tree.get("Taints").inner)]
    info = {each.key: each.value for each in tree.get("System Info").inner}
    known = {
        "kernelVersion": info.get("Kernel Version", ""),
        "osImage": info.get("OS Image", ""),
        "containerRuntimeVersion": info.get("Container Runtime Version", ""),
        "kubeletVersion": info.get("Kubelet Version", ""),
    }
    conditions = [
        {"type": words[0], "status": words[1], "message": " ".join(words[2:])}
        for each in tree.get("Conditions").inner
        if len(words := each.line.split()) > 2 and words[1] in ("True", "False", "Unknown")
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": _pairs(tree.get("Labels"))},
        "spec": {
            "unschedulable": tree.get("Unschedulable").value == "true",
            "taints": [taint for each in taints if (taint := _taint(each))],
        },
        "status": {
            "nodeInfo": {key: value for key, value in known.items() if value},
            "conditions": conditions,
            "capacity": {each.key: each.value for each in tree.get("Capacity").inner if each.key},
            "allocatable": {each.key: each.value for each in tree.get("Allocatable").inner if each.key},
        },
    }


def _taint(text: str) -> dict[str, str]:
    key, _, effect = text.strip().rpartition(":")
    name, _, value = key.partition("=")
    return {"key": name, "value": value, "effect": effect} if name else {}


def _described_events(tree: _Tree, kind: str, name: str, namespace: str) -> Iterator[Event]:
    for each in tree.inner:
        cells = re.split(r"\s{2,}", each.line, maxsplit=4)
        if len(cells) < 5 or cells[0] not in ("Warning", "Normal"):
            continue
        yield Event(
            message=cells[4],
            reason=cells[1],
            type=cells[0],
            kind=kind,
            name=name,
            namespace=namespace,
            node=name if kind == "Node" else "",
            when=f"{cells[2]} before",
        )


# --- nvidia-smi -------------------------------------------------------------------------------------------------------

_SMI_VERSIONS: Final = re.compile(r"Driver Version: ([0-9.]{3,20}).{0,40}?CUDA Version: ([0-9.]{1,10}|N/A)")


def _read_smi(lines: Sequence[str], found: _Found) -> bool:
    found.smi += lines
    return True


def _smi(lines: Sequence[str]) -> NodeFacts:
    text = "\n".join(lines)
    facts: dict[str, Any] = {}
    if versions := _SMI_VERSIONS.search(text):
        facts = {"driver_version": versions[1], "cuda_version": versions[2]}
    return NodeFacts(facts=facts, commands={"nvidia-smi": Command(out=text)})


_READERS: Final = {
    "pods": _read_pods,
    "events": _read_events,
    "described": _read_described,
    "yaml": _read_yaml,
    "json": _read_json,
    "smi": _read_smi,
}
