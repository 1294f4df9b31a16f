"""A baseline: what a cluster's GPU stack is while all is well, saved so that drift can be told later.

What is recorded is A80..A84 and the guide's lost list (contracts/admin-workflow.md 3.9 and 8). A part that could not be
read, or not wholly, says so and why; it is never taken for empty. Secrets are taken out before anything is written.
The same cluster makes the same bytes, but for the time. Reading node programs and exporters is ``nodehealth``'s,
comparing is
``drift``'s.
"""

import gzip
import hashlib
import io
import json
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec
import yaml

from .. import __version__
from ..api import names
from ..diagnose import survey as surveys
from ..diagnose.evidence import NodeFacts
from ..diagnose.findings import some
from ..diagnose.redact import Redactor
from ..diagnose.survey import Survey
from . import nodehealth, releases, snapshot, trees
from .nodehealth import Gpu

if TYPE_CHECKING:
    from ..cluster.client import Client

PLURALS: Final = (
    *("nodes", "namespaces", "pods", "clusterpolicies", "nvidiadrivers"),
    *("customresourcedefinitions", "secrets"),
)
"""The kinds that a baseline is made of."""
SCHEMA: Final = 1
MANIFEST: Final = "manifest.json"
_GROUPS: Final = ("nvidia.com", "nfd.k8s-sigs.io")
"""API groups whose definitions are recorded, with their subgroups."""
IGNORED_LABELS: Final = frozenset({names.GFD_TIMESTAMP, names.UPGRADE_STATE, names.MIG_CONFIG_STATE})
"""Labels that say when, or how far something under way is; ``nvidia.com/`` labels else are recorded."""
HOST_FACTS: Final = (
    *("secure_boot", "nouveau", "driver_version", "library_version", "cuda_version", "fabric_manager"),
    *("fabric_state", "toolkit_version", "pci"),
)
"""Facts of node inspection that are recorded; others change all the time, or are logs."""
_LARGEST: Final = 512 << 20
"""Bytes of a file of a baseline; far beyond what 5,000 nodes take."""


class BaselineError(ValueError):
    """A file is no baseline, or a damaged or newer one; the message says what is wrong and what to do."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What all parts have in common."""


class Release(_Record, frozen=True, kw_only=True):
    """A release of Helm's, as it is in force."""

    revision: int
    status: str
    chart: str
    version: str
    app_version: str = ""
    values: dict[str, Any] = {}
    """What the user gave."""
    computed: dict[str, Any] = {}
    """What the templates saw: the chart's defaults under those."""
    defaults: dict[str, Any] = {}
    """The chart's own (A59)."""
    manifest: str = ""
    """SHA-256 of the rendered manifest."""


class Resource(_Record, frozen=True, kw_only=True):
    """A ClusterPolicy or an NVIDIADriver."""

    kind: str
    name: str
    spec: dict[str, Any] = {}
    chart: dict[str, Any] | None = None
    """The spec that the release's manifest has; None if the object is in no release."""

    @property
    def where(self) -> str:
        """``Kind/name``."""
        return f"{self.kind}/{self.name}"


class Definition(_Record, frozen=True, kw_only=True):
    """A custom resource definition."""

    served: list[str] = []
    stored: list[str] = []
    schema: str = ""
    """SHA-256 of the schemas of all versions."""


class Node(_Record, frozen=True, kw_only=True):
    """What the API tells of a node."""

    kernel: str = ""
    os: str = ""
    arch: str = ""
    kubelet: str = ""
    runtime: str = ""
    driver: str = ""
    """As GPU feature discovery labelled it, like :attr:`cuda`; empty when it did not."""
    cuda: str = ""
    gpu: bool = False
    """Whether a label or a resource says that it has GPUs."""
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    labels: dict[str, str] = {}
    """``nvidia.com/*`` without :data:`IGNORED_LABELS`."""
    taints: list[str] = []


class Pod(_Record, frozen=True, kw_only=True):
    """A pod of the operator's namespace."""

    name: str
    operand: str
    node: str = ""
    phase: str = ""
    images: dict[str, list[str]] = {}
    """By container: the image as it was asked for, and the digest that runs (empty as long as none does)."""


class Host(_Record, frozen=True, kw_only=True):
    """What was found out on a node itself, by the names that node inspection gives its facts."""

    facts: dict[str, Any] = {}


class CudaTest(_Record, frozen=True, kw_only=True):
    """The CUDA test on one node."""

    outcome: str
    seconds: float | None = None


class Parts(_Record, frozen=True, kw_only=True):
    """All that is recorded, by part."""

    helm: dict[str, Release] = {}
    """By ``namespace/name``."""
    resources: list[Resource] = []
    definitions: dict[str, Definition] = {}
    nodes: dict[str, Node] = {}
    pods: list[Pod] = []
    gpus: dict[str, list[Gpu]] = {}
    """By node; a node that is missing was not read."""
    hosts: dict[str, Host] = {}
    health: dict[str, dict[str, dict[str, float]]] = {}
    """By node and GPU: counters by DCGM's name."""
    cuda: dict[str, CudaTest] = {}


State = Literal["complete", "partial", "absent"]


class Coverage(_Record, frozen=True, kw_only=True):
    """How far a part could be read."""

    state: State = "complete"
    reasons: list[str] = []
    lacking: list[str] = []
    """Nodes of which the part has nothing, where it is of nodes."""


OPTIONAL: Final = frozenset({"cuda", "hosts"})
"""Parts that are recorded only on demand: the CUDA test, and what was found out on the nodes themselves."""


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """What was recorded, when, of which cluster, and how completely."""

    parts: Parts
    coverage: Mapping[str, Coverage]
    """By part; all are named."""
    tool: str = __version__
    matrix: str = ""
    """The support matrix's date."""
    cluster: str = ""
    """The uid of namespace kube-system; empty if it may not be read."""
    version: str = ""
    namespace: str = ""
    at: float = 0.0
    """Unix seconds."""
    redacted: Mapping[str, int] = {}
    """How many secrets of which kind were taken out."""
    source: str = "the live cluster"
    """Where it is from, for people."""

    @property
    def when(self) -> str:
        """When it was taken, for people and for the manifest."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.at))

    @property
    def complete(self) -> bool:
        """Whether every part is, but those that are recorded only on demand (:data:`OPTIONAL`)."""
        return all(
            each.state == "complete" or (part in OPTIONAL and each.state == "absent")
            for part, each in self.coverage.items()
        )

    def knows(self, part: str) -> bool:
        """Whether a part was read at all."""
        return self.coverage[part].state != "absent"


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of nodes beside the API's objects; ``nodehealth`` fills it."""

    gpus: Mapping[str, list[Gpu]] = {}
    health: Mapping[str, Mapping[str, Mapping[str, float]]] = {}
    hosts: Mapping[str, Mapping[str, Any]] = {}
    cuda: Mapping[str, CudaTest] = {}
    unread: Mapping[str, Mapping[str, str]] = {}
    """By part (``gpus``, ``health``, ``hosts``) and node: why there is nothing."""
    left_out: Mapping[str, str] = {}
    """By part: why it was not looked at, at all."""


# --- Taking ----------------------------------------------------------------------------------------------------------

_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "helm": ("secrets",),
    "resources": ("clusterpolicies", "nvidiadrivers", "secrets"),
    "definitions": ("customresourcedefinitions",),
    "nodes": ("nodes",),
    "pods": ("pods",),
}
"""What a part is read from."""


class NodeLook(Protocol):
    """What was found out on nodes, and why nothing was (``nodelook.NodeLook``)."""

    @property
    def facts(self) -> Mapping[str, NodeFacts]:
        """By node."""

    @property
    def unread(self) -> Mapping[str, str]:
        """By node, the reason."""


Look = Callable[[list[str]], Awaitable[NodeLook]]


async def take(
    client: "Client",
    *,
    namespace: str = surveys.OPERATOR_NAMESPACE,
    metrics: bool = True,
    smi: bool = True,
    look: Look | None = None,
    cuda: Mapping[str, CudaTest] | None = None,
    matrix: str = "",
    tell: Callable[[int, int], None] = lambda _done, _all: None,
) -> Baseline:
    """Read a cluster and make its baseline; changes nothing.

    ``metrics`` and ``smi`` say how GPUs are asked (:func:`nodehealth.readings`, whose progress ``tell`` hears),
    ``look`` looks at the GPU nodes from inside, if that is wanted (``nodelook.look``).

    Raises :class:`~groundplane.cluster.errors.ClusterError` if nothing at all can be read.
    """
    survey = await surveys.live(client, PLURALS, namespace=namespace)
    gpu_nodes = [name for name, node in _nodes(survey).items() if node.gpu]
    seen = await look(gpu_nodes) if look is not None else None
    left_out = {"hosts": "the nodes themselves were not looked at"} if seen is None else {}
    told = nodehealth.Readings()
    if metrics or smi:
        told = await nodehealth.readings(client, survey, gpu_nodes, metrics=metrics, smi=smi, tell=tell)
    else:
        left_out |= dict.fromkeys(("gpus", "health"), "neither metrics nor nvidia-smi were to be read")
    looked = Looked(
        gpus=told.gpus,
        health=told.counters,
        hosts={node: facts.facts for node, facts in seen.facts.items()} if seen is not None else {},
        cuda=cuda or {},
        unread={"gpus": told.no_gpus, "health": told.no_counters, "hosts": seen.unread if seen is not None else {}},
        left_out=left_out,
    )
    return of_survey(survey, looked, matrix=matrix)


def of_survey(survey: Survey, looked: Looked | None = None, *, matrix: str = "") -> Baseline:
    """The baseline of a survey (:data:`PLURALS`) and of what was read of nodes; secrets are out already."""
    looked = looked or Looked()
    found = releases.history(survey)
    nodes = _nodes(survey)
    parts = Parts(
        helm=dict(_helm(found)),
        resources=_resources(survey, found),
        definitions=dict(_definitions(survey)),
        nodes=nodes,
        pods=_pods(survey),
        gpus={node: sorted(looked.gpus[node], key=lambda gpu: gpu.uuid) for node in sorted(looked.gpus)},
        hosts={
            node: Host(facts={name: looked.hosts[node][name] for name in HOST_FACTS if name in looked.hosts[node]})
            for node in sorted(looked.hosts)
        },
        health=msgspec.convert({node: looked.health[node] for node in sorted(looked.health)}, Any),
        cuda={node: looked.cuda[node] for node in sorted(looked.cuda)},
    )
    redactor = Redactor()
    clean = msgspec.convert(_redacted(parts, redactor), Parts)
    kube_system = next((each for each in survey.of_kind("namespaces") if _name(each) == "kube-system"), {})
    return Baseline(
        parts=clean,
        coverage=_coverage(survey, found, looked, [name for name, node in nodes.items() if node.gpu]),
        matrix=matrix,
        cluster=str((kube_system.get("metadata") or {}).get("uid") or ""),
        version=survey.version,
        namespace=survey.namespace,
        at=survey.at,
        redacted=dict(sorted(redactor.report().items())),
    )


def _redacted(parts: Parts, redactor: Redactor) -> Any:
    """Parts without secrets. Counters are numbers that no person chose, and thousands: they are left as they are."""
    plain = msgspec.to_builtins(parts)
    return {part: value if part == "health" else redactor.document(value) for part, value in plain.items()}


def _name(thing: Mapping[str, Any]) -> str:
    return str((thing.get("metadata") or {}).get("name") or "")


def _helm(found: releases.History) -> Iterator[tuple[str, Release]]:
    for where in found.releases:
        last = found.deployed(where) or found.last(where)
        assert last is not None
        yield (
            where,
            Release(
                revision=last.revision,
                status=last.status,
                chart=last.chart,
                version=last.chart_version,
                app_version=last.app_version,
                values=dict(last.values),
                computed=trees.merge(last.defaults, last.values),
                defaults=dict(last.defaults),
                manifest=_digest(last.manifest),
            ),
        )


def _digest(value: Any) -> str:
    """SHA-256 of a text, or of a document whatever the order of its keys."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _resources(survey: Survey, found: releases.History) -> list[Resource]:
    charts = dict(_chart_specs(found))
    return [
        Resource(
            kind=kind, name=_name(each), spec=normal(each.get("spec") or {}), chart=charts.get((kind, _name(each)))
        )
        for plural, kind in (("clusterpolicies", "ClusterPolicy"), ("nvidiadrivers", "NVIDIADriver"))
        for each in survey.of_kind(plural)
    ]


def _chart_specs(found: releases.History) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """The specs of ClusterPolicies and NVIDIADrivers that releases in force have rendered."""
    for where in found.releases:
        last = found.deployed(where)
        for text in _documents(last.manifest) if last is not None else ():
            if "kind: ClusterPolicy" not in text and "kind: NVIDIADriver" not in text:
                continue
            try:
                document = yaml.load(text, yaml.CSafeLoader)
            except yaml.YAMLError:  # a manifest that Helm applied; the objects are compared with the baseline's anyway
                continue
            if isinstance(document, dict):
                yield (str(document.get("kind")), _name(document)), normal(document.get("spec") or {})


def _documents(manifest: str) -> list[str]:
    return f"\n{manifest}".split("\n---")


def normal(value: Any) -> Any:
    """A spec in one form: keys and lists sorted, what is null or an empty map left out, as neither says anything."""
    if isinstance(value, Mapping):
        made = {key: normal(value[key]) for key in sorted(value)}
        return {key: each for key, each in made.items() if each is not None and each != {}}
    if isinstance(value, list | tuple):
        return sorted((normal(each) for each in value), key=_order)
    return value


def _order(value: Any) -> str:
    name = value.get("name", value.get("key", "")) if isinstance(value, dict) else ""
    return f"{name}\0{json.dumps(value, sort_keys=True, default=str)}"


def _definitions(survey: Survey) -> Iterator[tuple[str, Definition]]:
    for each in survey.of_kind("customresourcedefinitions"):
        spec = each.get("spec") or {}
        group = str(spec.get("group") or "")
        if not any(group == known or group.endswith(f".{known}") for known in _GROUPS):
            continue
        versions = sorted(spec.get("versions") or (), key=lambda version: str(version.get("name")))
        status = each.get("status") or {}
        yield (
            _name(each),
            Definition(
                served=[str(version.get("name")) for version in versions if version.get("served")],
                stored=sorted(status.get("storedVersions") or ()),
                schema=_digest([[version.get("name"), version.get("schema")] for version in versions]),
            ),
        )


def _nodes(survey: Survey) -> dict[str, Node]:
    return {_name(each): _node(snapshot.NodeFacts.of(each)) for each in survey.of_kind("nodes")}


def _node(node: snapshot.NodeFacts) -> Node:
    labels = {key: value for key, value in sorted(node.labels.items()) if key.startswith(snapshot.NVIDIA_RESOURCES)}
    return Node(
        kernel=node.kernel,
        os=node.os_image,
        arch=node.arch,
        kubelet=node.kubelet,
        runtime=node.runtime,
        driver=node.driver_version,
        cuda=_cuda(labels),
        gpu=node.has_gpu,
        capacity=dict(sorted(node.capacity.items())),
        allocatable=dict(sorted(node.allocatable.items())),
        labels={key: value for key, value in labels.items() if key not in IGNORED_LABELS},
        taints=sorted(node.taints),
    )


def _cuda(labels: Mapping[str, str]) -> str:
    """The CUDA version of a node's driver, from either spelling of the labels."""
    parts = [labels.get(f"{names.CUDA_RUNTIME}.{part}", "") for part in ("major", "minor")]
    return labels.get(f"{names.CUDA_RUNTIME_VERSION}.full", "") or ".".join(part for part in parts if part)


def _pods(survey: Survey) -> list[Pod]:
    return [_pod(each) for each in survey.of_kind("pods") if each["metadata"].get("namespace") == survey.namespace]


def _pod(pod: Mapping[str, Any]) -> Pod:
    labels = pod["metadata"].get("labels") or {}
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    running = {
        each["name"]: str(each.get("imageID") or "")
        for part in ("initContainerStatuses", "containerStatuses")
        for each in status.get(part) or ()
    }
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return Pod(
        name=_name(pod),
        operand=operand(labels, _name(pod)),
        node=str(spec.get("nodeName") or ""),
        phase=str(status.get("phase") or ""),
        images={
            each["name"]: [str(each.get("image") or ""), _image_digest(running.get(each["name"], ""))]
            for each in sorted(containers, key=lambda each: str(each["name"]))
        },
    )


def operand(labels: Mapping[str, str], name: str) -> str:
    """What a pod is one of; NVIDIA's operands have the label ``app``, the operator and NFD the recommended ones."""
    parts = [labels.get(key, "") for key in ("app.kubernetes.io/name", "app.kubernetes.io/component", "role")]
    return labels.get("app") or "/".join(part for part in parts if part) or name


def _image_digest(image: str) -> str:
    return image.rpartition("@")[2] if "@" in image else image.rpartition("://")[2]


def _coverage(survey: Survey, found: releases.History, looked: Looked, gpu_nodes: list[str]) -> dict[str, Coverage]:
    coverage: dict[str, Coverage] = {}
    for part, plurals in _OF.items():
        reasons = [survey.unread.get(each, "it was not looked for") for each in plurals if not survey.knows(each)]
        absent = not survey.knows(plurals[0])
        coverage[part] = Coverage(state="absent" if absent else "partial" if reasons else "complete", reasons=reasons)
    if found.broken and coverage["helm"].state == "complete":
        coverage["helm"] = Coverage(state="partial", reasons=list(found.broken))
    for part, have in (("gpus", looked.gpus), ("health", looked.health), ("hosts", looked.hosts)):
        coverage[part] = (
            coverage["nodes"]
            if not gpu_nodes and coverage["nodes"].reasons
            else _of_nodes(part, have, looked, gpu_nodes)
        )
    given = bool(looked.cuda)
    coverage["cuda"] = Coverage(
        state="complete" if given else "absent",
        reasons=[] if given else ["no result of a CUDA test was given (--cuda)"],
    )
    return coverage


def _of_nodes(part: str, have: Mapping[str, Any], looked: Looked, gpu_nodes: list[str]) -> Coverage:
    lacking = [node for node in gpu_nodes if node not in have]
    if part in looked.left_out and not have:
        return Coverage(state="absent", reasons=[looked.left_out[part]], lacking=lacking)
    by_reason: dict[str, list[str]] = {}
    for node in lacking:
        reason = looked.unread.get(part, {}).get(node, "nobody looked")
        by_reason.setdefault(reason, []).append(node)
    reasons = [f"{some(nodes)}: {reason}" for reason, nodes in sorted(by_reason.items())]
    state: State = "complete" if not lacking else "partial" if have else "absent"
    return Coverage(state=state, reasons=reasons, lacking=lacking)


def cuda_results(document: Any) -> dict[str, CudaTest]:
    """The result of ``groundplane cuda-test -o json`` by node. Raises :class:`BaselineError`."""
    findings = document.get("findings") if isinstance(document, Mapping) else None
    if not isinstance(findings, list):
        raise BaselineError(
            "the CUDA test's result has no findings: give the file that `groundplane cuda-test -o json` wrote"
        )
    order = ("pass", "skip", "unknown", "warn", "fail")
    durations = document.get("durations")
    seconds = durations if isinstance(durations, Mapping) else {}
    outcomes: dict[str, str] = {}
    for finding in findings:
        for node in finding.get("nodes") or () if isinstance(finding, Mapping) else ():
            outcome = str(finding.get("outcome"))
            if outcome not in order:
                raise BaselineError(f"the CUDA test's result has a finding that ended in {outcome!r}")
            outcomes[node] = max(outcomes.get(node, "pass"), outcome, key=order.index)
    return {
        node: CudaTest(outcome=outcome, seconds=float(seconds[node]) if node in seconds else None)
        for node, outcome in sorted(outcomes.items())
    }


# --- Files -----------------------------------------------------------------------------------------------------------

_FILES: Final[Mapping[str, str]] = {
    "helm": "helm.yaml",
    "resources": "resources.yaml",
    **{part: f"{part}.json" for part in ("definitions", "nodes", "pods", "gpus", "hosts", "health", "cuda")},
}
"""The file of each part: YAML for what people write, JSON for what there is much of."""


class _PartEntry(_Record, frozen=True, kw_only=True):
    file: str
    sha256: str
    state: State = "complete"
    reasons: list[str] = []
    lacking: list[str] = []


class _Manifest(_Record, frozen=True, kw_only=True):
    api_version: str
    kind: str
    schema: int
    tool: str
    matrix: str
    cluster: str
    version: str
    namespace: str
    time: str
    at: float
    complete: bool
    redacted: dict[str, int]
    parts: dict[str, _PartEntry]


def files(baseline: Baseline) -> dict[str, bytes]:
    """The files that a baseline is saved as, the manifest first."""
    plain = msgspec.to_builtins(baseline.parts)
    made = {file: _encoded(file, plain[part]) for part, file in _FILES.items()}
    manifest = _Manifest(
        api_version="groundplane.dev/v1alpha1",
        kind="Baseline",
        schema=SCHEMA,
        tool=baseline.tool,
        matrix=baseline.matrix,
        cluster=baseline.cluster,
        version=baseline.version,
        namespace=baseline.namespace,
        time=baseline.when,
        at=baseline.at,
        complete=baseline.complete,
        redacted=dict(baseline.redacted),
        parts={
            part: _PartEntry(
                file=file,
                sha256=hashlib.sha256(made[file]).hexdigest(),
                state=baseline.coverage[part].state,
                reasons=baseline.coverage[part].reasons,
                lacking=baseline.coverage[part].lacking,
            )
            for part, file in _FILES.items()
        },
    )
    return {MANIFEST: _json(msgspec.to_builtins(manifest)), **made}


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value, order="deterministic"), indent=1) + b"\n"


class _Dumper(yaml.CSafeDumper):
    """YAML without anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _encoded(file: str, value: Any) -> bytes:
    if file.endswith(".json"):
        return _json(value)
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=True, width=120, allow_unicode=True)
    return text.encode()


def save(baseline: Baseline, path: Path, *, replace: bool = False) -> None:
    """Save as a directory, or as one file if the name ends in ``.tar.gz`` or ``.tgz``.

    Raises:
        BaselineError: there is something at the path already, and ``replace`` is not given or it is no baseline.
        OSError: it cannot be written.
    """
    packed = is_packed(path)
    if path.exists() and not replace:
        raise BaselineError(f"{path} exists already: give another name, or --force to replace it")
    if path.exists() and not packed and (not path.is_dir() or not (path / MANIFEST).exists()):
        raise BaselineError(f"{path} is no baseline's directory: give a new name, or one that ends in .tar.gz")
    made = files(baseline)
    if packed:
        _replace(path, _packed(made))
        return
    path.mkdir(parents=True, exist_ok=True)
    for file, content in sorted(made.items(), key=lambda item: item[0] == MANIFEST):  # the manifest last: it seals
        _replace(path / file, content)


def is_packed(path: Path) -> bool:
    """Whether a path names a single file."""
    return path.name.endswith((".tar.gz", ".tgz"))


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.partial")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _packed(made: Mapping[str, bytes]) -> bytes:
    """The files as one, without anything that changes from run to run."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for file, content in made.items():
            entry = tarfile.TarInfo(f"baseline/{file}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), compresslevel=6, mtime=0)


def load(path: Path) -> Baseline:
    """Read a saved baseline. Raises :class:`BaselineError`; OSError if there is nothing to read."""
    if path.is_dir():
        return _loaded(path, lambda file: _contents(path / file))
    packed = _unpacked(path)
    return _loaded(path, packed.get)


def _contents(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _unpacked(path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    wanted = {MANIFEST, *_FILES.values()}
    try:
        with tarfile.open(path, mode="r:*") as archive:
            for entry in archive:
                file = entry.name.rpartition("/")[2]
                if not entry.isreg() or file not in wanted:
                    continue
                if entry.size > _LARGEST:
                    raise BaselineError(f"{path}: {file} has {entry.size} bytes; a baseline's are far fewer")
                stream = archive.extractfile(entry)
                found[file] = stream.read() if stream is not None else b""
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, ValueError) as error:
        if isinstance(error, BaselineError):
            raise
        raise BaselineError(f"{path} is damaged, or no archive: {error}. Take a new baseline, or use a copy") from None
    return found


def _loaded(path: Path, read: Callable[[str], bytes | None]) -> Baseline:
    manifest = _manifest(path, read(MANIFEST))
    plain: dict[str, Any] = {}
    for part, entry in manifest.parts.items():
        content = read(entry.file) if entry.file == _FILES.get(part) else None
        if content is None:
            raise BaselineError(f"{path}: {entry.file} is missing; the baseline is damaged. Use a copy")
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            raise BaselineError(f"{path}: {entry.file} is not what was saved (its checksum differs). Use a copy")
        plain[part] = _decoded(path, entry.file, content)
    try:
        parts = msgspec.convert(plain, Parts)
    except msgspec.ValidationError as error:
        raise BaselineError(f"{path} does not fit this version's schema {SCHEMA}: {error}") from None
    return Baseline(
        parts=parts,
        coverage={
            part: Coverage(state=entry.state, reasons=entry.reasons, lacking=entry.lacking)
            for part, entry in manifest.parts.items()
        },
        tool=manifest.tool,
        matrix=manifest.matrix,
        cluster=manifest.cluster,
        version=manifest.version,
        namespace=manifest.namespace,
        at=manifest.at,
        redacted=manifest.redacted,
        source=str(path),
    )


def _manifest(path: Path, content: bytes | None) -> _Manifest:
    if content is None:
        raise BaselineError(f"{path} is no baseline: it has no {MANIFEST}. `groundplane baseline save` makes one")
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path}: {MANIFEST} is damaged: {error}. Use a copy") from None
    if not isinstance(document, dict) or document.get("kind") != "Baseline":
        raise BaselineError(f"{path} is no baseline: {MANIFEST} does not say that it is one")
    schema = document.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise BaselineError(
            f"{path} has schema {schema!r}, made by groundplane {document.get('tool')}; this version ({__version__}) "
            f"reads up to {SCHEMA}: use that version, or take a new baseline"
        )
    try:
        manifest = msgspec.convert(document, _Manifest)
    except msgspec.ValidationError as error:
        raise BaselineError(f"{path}: {MANIFEST} is damaged: {error}. Use a copy") from None
    if lacking := sorted(_FILES.keys() - manifest.parts.keys()):
        raise BaselineError(f"{path}: {MANIFEST} does not name {', '.join(lacking)}; the baseline is damaged")
    return manifest


def _decoded(path: Path, file: str, content: bytes) -> Any:
    try:
        if file.endswith(".json"):
            return msgspec.json.decode(content)
        return yaml.load(content, yaml.CSafeLoader)
    except (msgspec.DecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path}: {file} is damaged: {error}. Use a copy") from None


def document(baseline: Baseline, parts: Iterable[str] = ()) -> dict[str, Any]:
    """The baseline as one document: the manifest's facts, and the named parts, or all."""
    plain = msgspec.to_builtins(baseline.parts)
    chosen = list(parts) or list(_FILES)
    return {
        "apiVersion": "groundplane.dev/v1alpha1",
        "kind": "Baseline",
        "schema": SCHEMA,
        "tool": baseline.tool,
        "matrix": baseline.matrix,
        "cluster": baseline.cluster,
        "version": baseline.version,
        "namespace": baseline.namespace,
        "time": baseline.when,
        "complete": baseline.complete,
        "redacted": dict(baseline.redacted),
        "coverage": {part: msgspec.to_builtins(each) for part, each in baseline.coverage.items()},
        "parts": {part: plain[part] for part in chosen},
    }


PARTS: Final = tuple(_FILES)
"""The names of the parts."""
