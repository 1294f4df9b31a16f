"""Drift: what of a cluster's GPU stack is no longer as a baseline says (contracts/admin-workflow.md 8).

Pure: two baselines in, findings out; whether either is live or saved makes no difference. Each rule is a row of a
table with what it needs; what a side has not read is ``unknown``, never "unchanged". Which parts are recorded, and what
is left out as it changes all the time, is ``baseline``'s.
"""

import difflib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from ..api import xids
from ..diagnose.findings import Action, Evidence, Finding, Layer, Outcome, Severity
from ..diagnose.html import Section
from . import trees
from .baseline import OPTIONAL, Baseline, Node, Pod, Resource

DIFF_LINES: Final = 60
"""Lines of a diff that a finding has; the page has all."""
SLOWER: Final = 2.0
"""How many times as long a CUDA test must take to be told of."""

Changes = Iterator[Finding]


class Rule(NamedTuple):
    """What is compared: the part it needs, the check it is of, and what is said while nothing has changed."""

    part: str
    id: str
    layer: Layer
    same: str
    changes: Callable[["Rule", Baseline, Baseline], Changes]

    def finding(self, outcome: Outcome, title: str, *evidence: Evidence, **more: Any) -> Finding:
        """A finding of this rule."""
        more.setdefault("layer", self.layer)
        return Finding(id=self.id, outcome=outcome, title=title, evidence=evidence, **more)


def drift(was: Baseline, now: Baseline) -> list[Finding]:
    """What has changed from one to the other, in no order; what has not, a pass for each rule."""
    return [*_cluster(was, now), *(finding for rule in RULES for finding in _judged(rule, was, now))]


def _judged(rule: Rule, was: Baseline, now: Baseline) -> Changes:
    sides = (("baseline", was), ("now", now))
    lacking = [(name, side.coverage[rule.part]) for name, side in sides if not side.knows(rule.part)]
    if lacking:
        neither = len(lacking) == len(sides) and rule.part in OPTIONAL
        skipped = neither or rule.part == "cuda"
        yield rule.finding(
            Outcome.SKIP if skipped else Outcome.UNKNOWN,
            f"{rule.same}: {'not recorded' if skipped else 'could not be compared'}",
            *(Evidence(f"{name}: {rule.part}", "; ".join(coverage.reasons)) for name, coverage in lacking),
            fix=() if skipped else (_LOOK,),
        )
        return
    found = list(rule.changes(rule, was, now))
    yield from found
    partial = [(name, side.coverage[rule.part]) for name, side in sides if side.coverage[rule.part].state == "partial"]
    if partial:
        yield rule.finding(
            Outcome.UNKNOWN,
            f"{rule.same}: compared in part only",
            *(Evidence(f"{name}: {rule.part}", reason) for name, coverage in partial for reason in coverage.reasons),
            nodes=tuple(sorted({node for _, coverage in partial for node in coverage.lacking})),
            fix=(_LOOK,),
        )
    elif not found:
        yield rule.finding(Outcome.PASS, rule.same)


_LOOK: Final = "give the permission or bring up what the evidence names, then run it again"


def _cluster(was: Baseline, now: Baseline) -> Changes:
    if was.cluster and now.cluster and was.cluster != now.cluster:
        yield Finding(
            id="A84",
            layer=Layer.OPERATOR,
            outcome=Outcome.WARN,
            title="the baseline is of another cluster",
            evidence=(Evidence("namespace/kube-system uid", _step(was.cluster, now.cluster)),),
            fix=("check --context, and which baseline was given",),
        )
    if was.version and now.version and was.version != now.version:
        yield Finding(
            id="A84",
            layer=Layer.OPERATOR,
            outcome=Outcome.WARN,
            title="the API server has another version",
            evidence=(Evidence("/version", _step(was.version, now.version)),),
            fix=("check that the release supports it: groundplane preflight",),
        )


def _step(was: object, now: object) -> str:
    return f"{was if was not in (None, '') else 'nothing'} -> {now if now not in (None, '') else 'nothing'}"


def diff(was: Any, now: Any, name: str) -> str:
    """A unified diff of two documents as YAML; empty if they are the same."""
    lines = (_yaml(was), _yaml(now))
    return "\n".join(difflib.unified_diff(*lines, f"baseline {name}", f"now {name}", lineterm=""))


def _yaml(document: Any) -> list[str]:
    return str(yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=True, allow_unicode=True)).splitlines()


def _excerpt(text: str) -> str:
    lines = text.splitlines()
    left = len(lines) - DIFF_LINES
    return "\n".join(lines[:DIFF_LINES]) + (f"\n… {left} more lines" if left > 0 else "")


# --- Helm, custom resources, definitions ------------------------------------------------------------------------------


def _helm(rule: Rule, was: Baseline, now: Baseline) -> Changes:
    before, after = was.parts.helm, now.parts.helm
    for where in sorted(before.keys() | after.keys()):
        one, other = before.get(where), after.get(where)
        if one is None or other is None:
            title = f"release {where} {'is new' if one is None else 'is gone'}"
            seen = one or other
            assert seen is not None
            fact = Evidence(f"release {where}", f"{seen.chart} {seen.version}, revision {seen.revision}, {seen.status}")
            yield rule.finding(Outcome.WARN, title, fact, confirm="helm list --all-namespaces --all")
            continue
        facts = [
            Evidence(f"release {where} {field}", _step(getattr(one, field), getattr(other, field)))
            for field in ("chart", "version", "revision", "status")
            if getattr(one, field) != getattr(other, field)
        ]
        changed = [("values", one.values, other.values)]
        if trees.same(one.values, other.values):  # else the computed ones say the same at greater length
            changed.append(("computed values", one.computed, other.computed))
        for name, before_values, after_values in changed:
            if text := diff(before_values, after_values, name):
                facts.append(Evidence(f"release {where} {name}", _excerpt(text)))
        if one.manifest != other.manifest:
            facts.append(Evidence(f"release {where} manifest", _step(one.manifest[:12], other.manifest[:12])))
        if facts:
            namespace, _, release = where.partition("/")
            yield rule.finding(
                Outcome.WARN,
                f"release {where} is not as recorded: {', '.join(fact.source.split(' ', 2)[2] for fact in facts)}",
                *facts,
                confirm=f"helm history {release} -n {namespace}; helm get values {release} -n {namespace}",
                fix=("if it was meant, take a new baseline; else see groundplane rollback plan",),
            )


def _resources(rule: Rule, was: Baseline, now: Baseline) -> Changes:
    before = {each.where: each for each in was.parts.resources}
    after = {each.where: each for each in now.parts.resources}
    for where in sorted(before.keys() | after.keys()):
        one, other = before.get(where), after.get(where)
        if other is None:
            yield rule.finding(Outcome.WARN, f"{where} is gone", confirm=f"kubectl get {where.lower()}")
            continue
        edited = _edited(one, other)
        text = diff(one.spec if one else {}, other.spec, where)
        confirm = f"kubectl get {where.lower()} -o yaml"
        if edited:
            yield rule.finding(
                Outcome.WARN,
                f"{where} was edited outside Helm: the next helm upgrade reverts it",
                *(Evidence(f"{where} spec.{path}", f"{chart} -> {live}") for path, chart, live in edited),
                *([Evidence(f"{where} spec", _excerpt(text))] if text else []),
                cause="the object's spec is not what the release's manifest has",
                confirm=confirm,
                fix=("put the change into the release's values, or undo it",),
                action=Action.CHANGE_CONFIG,
            )
        elif one is None:
            yield rule.finding(Outcome.WARN, f"{where} is new", confirm=confirm)
        elif text and other.chart is not None:
            yield rule.finding(Outcome.PASS, f"{where} follows its release", Evidence(f"{where} spec", _excerpt(text)))
        elif text:
            yield rule.finding(
                Outcome.WARN, f"{where} has changed", Evidence(f"{where} spec", _excerpt(text)), confirm=confirm
            )


def _edited(was: Resource | None, now: Resource) -> list[tuple[str, str, str]]:
    """Where a live spec differs from the release's: the path, what the chart has, what the object has.

    What the chart does not set may be a default of the definition: it counts only if the baseline has something else,
    while the chart is the same.
    """
    if now.chart is None:
        return []
    found = [
        (trees.dotted(path), _short(value), _short(trees.get(now.spec, path)))
        for path, value in trees.leaves(now.chart)
        if not trees.same(value, trees.get(now.spec, path))
    ]
    if was is not None and was.chart == now.chart:
        missing = object()
        for path, value in trees.leaves(now.spec):
            unset = trees.get(now.chart, path, missing) is missing
            if unset and not trees.same(value, trees.get(was.spec, path, missing)):
                found.append((trees.dotted(path), "not set", _short(value)))
    return found


def _short(value: Any) -> str:
    text = "not set" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else f"{text[:200]} …"


def _definitions(rule: Rule, was: Baseline, now: Baseline) -> Changes:
    versions = [{where: each.version for where, each in side.parts.helm.items()} for side in (was, now)]
    moved = versions[0] != versions[1]
    before, after = was.parts.definitions, now.parts.definitions
    changed = [
        Evidence(f"customresourcedefinition/{name}", _definition_step(before.get(name), after.get(name)))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
    if not changed:
        return
    if moved:
        yield rule.finding(Outcome.PASS, "custom resource definitions changed along with the chart", *changed)
        return
    yield rule.finding(
        Outcome.WARN,
        "custom resource definitions changed, the chart did not",
        *changed,
        cause="somebody applied another release's definitions, or another chart brought them",
        confirm="kubectl get crds -o custom-columns=NAME:.metadata.name,CREATED:.metadata.creationTimestamp",
        fix=("bring them to the release's: groundplane manage-crds",),
        action=Action.CHANGE_CONFIG,
    )


def _definition_step(was: Any, now: Any) -> str:
    def told(each: Any) -> str:
        return f"serves {', '.join(each.served)}, schema {each.schema[:12]}" if each is not None else ""

    return _step(told(was), told(now))


# --- Nodes -----------------------------------------------------------------------------------------------------------

_FIELDS: Final[tuple[tuple[str, Layer, str, str], ...]] = (
    ("kernel", Layer.KERNEL, "another kernel runs", "check that the driver is built or precompiled for it"),
    ("os", Layer.KERNEL, "another operating system runs", "groundplane preflight says whether it is supported"),
    ("arch", Layer.HARDWARE, "the node has another architecture", "find out who replaced the machine"),
    ("runtime", Layer.RUNTIME, "another container runtime, or version, runs", "check its configuration: doctor"),
    ("kubelet", Layer.DEVICE_PLUGIN, "another version of the kubelet runs", "check the device plugin: verify"),
    ("driver", Layer.DRIVER, "another driver version is told", "if it was meant, take a new baseline"),
    ("cuda", Layer.DRIVER, "another CUDA version is told", "check that the images in use fit it"),
)
"""Fields of a node: its layer, what a change is called, what to do."""
_COVERED: Final = ("nvidia.com/cuda.",)
"""Labels that fields tell already."""


def _both(was: Baseline, now: Baseline) -> Iterator[tuple[str, Node, Node]]:
    for name, before in was.parts.nodes.items():
        if (after := now.parts.nodes.get(name)) is not None:
            yield name, before, after


def _membership(rule: Rule, was: Baseline, now: Baseline) -> Changes:
    before, after = was.parts.nodes, now.parts.nodes
    for name in sorted(before.keys() - after.keys()):
        had = ", ".join(f"{key}: {value}" for key, value in before[name].capacity.items()) or "no GPU resource"
        gpu = before[name].gpu
        yield rule.finding(
            Outcome.FAIL if gpu else Outcome.WARN,
            "a node with GPUs is gone" if gpu else "a node is gone",
            Evidence(f"node/{name}", f"had {had}"),
            node=name,
            confirm=f"kubectl get node {name}",
            fix=("bring it back, or take a new baseline",),
        )
    for name in sorted(after.keys() - before.keys()):
        title = "a node with GPUs is new" if after[name].gpu else "a node is new"
        yield rule.finding(Outcome.PASS, title, Evidence(f"node/{name}", "not in the baseline"), node=name)


def _fields(rule: Rule, was: Baseline, now: Baseline) -> Changes:
    for name, before, after in _both(was, now):
        for field, layer, title, fix in _FIELDS:
            one, other = getattr(before, field), getattr(after, field)
            if one != other:
                told = title if other else f"{field} version is no longer told"
                seen = Evidence(f"node/{name} {field}", _step(one, other))
                yield rule.finding(Outcome.WARN, told, seen, node=name, layer=layer, fix=(fix,))


def _labels(rule: Rule, was: Baseline, now: Baseline) -> Changes:
    for name, before, after in _both(was, now):
        changed = [
            Evidence(f"node/{name} label {key}", _step(before.labels.get(key), after.labels.get(key)))
            for key in sorted(before.labels.keys() | after.labels.keys())
            if before.labels.get(key) != after.labels.get(key) and not key.startswith(_COVERED)
        ]
        for title, some in (
            ("the MIG layout's labels have changed", [each for each in changed if "nvidia.com/mig" in each.source]),
            ("nvidia.com labels have changed", [each for each in changed if "nvidia.com/mig" not in each.source]),
        ):
            if some:
                yield rule.finding(
                    Outcome.WARN, title, *some, node=name, confirm=f"kubectl get node {name} --show-labels"
                )
        if before.taints != after.taints:
            seen = Evidence(f"node/{name} taints", _step(", ".join(before.taints), ", ".join(after.taints)))
            yield rule.finding(Outcome.WARN, "taints have changed", seen, node=name)


def _amount(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _capacity(rule: Rule, was: Baseline, now: Baseline) -> Changes:
    for name, before, after in _both(was, now):
        for resource in sorted(before.allocatable.keys() | after.allocatable.keys()):
            one, other = (_amount(side.allocatable.get(resource, "0")) for side in (before, after))
            seen = Evidence(f"node/{name} status.allocatable {resource}", _step(one, other))
            if other < one:
                yield rule.finding(
                    Outcome.FAIL,
                    f"fewer {resource} are allocatable",
                    seen,
                    node=name,
                    confirm=f"kubectl get node {name} -o jsonpath='{{.status.allocatable}}'",
                    fix=("find the layer that lost it: groundplane doctor",),
                )
            elif other > one:
                yield rule.finding(Outcome.PASS, f"more {resource} are allocatable", seen, node=name)


_HOST_FACTS: Final[tuple[tuple[str, Layer, str], ...]] = (
    ("secure_boot", Layer.KERNEL, "the Secure Boot state has changed"),
    ("nouveau", Layer.KERNEL, "whether nouveau is loaded has changed"),
    ("driver_version", Layer.DRIVER, "another version of the driver's module is loaded"),
    ("library_version", Layer.DRIVER, "another version of the driver's libraries is there"),
    ("cuda_version", Layer.DRIVER, "the driver has another CUDA version"),
    ("fabric_manager", Layer.FABRIC, "the Fabric Manager's state has changed"),
    ("fabric_state", Layer.FABRIC, "the NVLink fabric's state has changed"),
    ("toolkit_version", Layer.RUNTIME, "another version of the container toolkit is there"),
)
"""Facts of node inspection that a baseline compares."""


def _hosts(rule: Rule, was: Baseline, now: Baseline) -> Changes:
    for name in sorted(was.parts.hosts.keys() & now.parts.hosts.keys()):
        one, other = was.parts.hosts[name].facts, now.parts.hosts[name].facts
        for fact, layer, title in _HOST_FACTS:
            if fact in one and fact in other and one[fact] != other[fact]:
                seen = Evidence(f"node/{name} {fact}", _step(one[fact], other[fact]))
                yield rule.finding(Outcome.WARN, title, seen, node=name, layer=layer)
        before, after = one.get("pci"), other.get("pci")
        if isinstance(before, list) and isinstance(after, list) and (gone := sorted({*before} - {*after})):
            seen = Evidence(f"node/{name} PCI devices", f"gone: {', '.join(gone)}")
            yield rule.finding(
                Outcome.FAIL,
                "PCI devices are gone",
                seen,
                node=name,
                layer=Layer.HARDWARE,
                confirm="lspci -nn -d 10de:",
            )


def _gpus(rule: Rule, was: Baseline, now: Baseline) -> Changes:
    places = {gpu.uuid: node for node, gpus in now.parts.gpus.items() for gpu in gpus}
    for node in sorted(was.parts.gpus.keys() & now.parts.gpus.keys()):
        before = {gpu.uuid: gpu for gpu in was.parts.gpus[node]}
        after = {gpu.uuid: gpu for gpu in now.parts.gpus[node]}
        gone, new = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
        evidence = [
            *(Evidence(f"node/{node} {uuid}", f"gone ({_place(before[uuid].pci, places.get(uuid))})") for uuid in gone),
            *(Evidence(f"node/{node} {uuid}", f"new, at {after[uuid].pci or 'an unknown address'}") for uuid in new),
        ]
        if gone:
            swapped = len(new) >= len(gone)
            yield rule.finding(
                Outcome.FAIL,
                "GPUs were swapped for others" if swapped else "GPUs are missing",
                *evidence,
                node=node,
                confirm="nvidia-smi -L; lspci -nn -d 10de:",
                fix=("if the hardware was replaced, take a new baseline; else look at the kernel log for Xid errors",),
                action=Action.HARDWARE_INSPECTION,
            )
        elif new:
            yield rule.finding(Outcome.PASS, "GPUs are new", *evidence, node=node)
        for uuid in sorted(before.keys() & after.keys()):
            yield from _firmware(rule, node, uuid, before[uuid], after[uuid])


def _place(pci: str, elsewhere: str | None) -> str:
    return f"was at {pci or 'an unknown address'}" + (f", is now in {elsewhere}" if elsewhere else "")


def _firmware(rule: Rule, node: str, uuid: str, was: Any, now: Any) -> Changes:
    for field, title in (
        ("vbios", "GPUs have another VBIOS"),
        ("inforom", "GPUs have another InfoROM image"),
        ("pci", "GPUs are at another PCI address"),
        ("serial", "GPUs have another serial number"),
    ):
        one, other = getattr(was, field), getattr(now, field)
        if one and other and one != other:
            yield rule.finding(
                Outcome.WARN, title, Evidence(f"node/{node} {uuid} {field}", _step(one, other)), node=node
            )


# --- Pods, health, CUDA test ------------------------------------------------------------------------------------------


def _images(pods: list[Pod]) -> dict[tuple[str, str], dict[str, set[str]]]:
    """By operand and container: the digests that run of each image."""
    found: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for pod in pods:
        for container, (image, digest) in pod.images.items():
            found[pod.operand, container][image].update([digest] if digest else [])
    return found


def _pods(rule: Rule, was: Baseline, now: Baseline) -> Changes:
    before, after = _images(was.parts.pods), _images(now.parts.pods)
    for operand in sorted({name for name, _ in before} - {name for name, _ in after}):
        yield rule.finding(
            Outcome.WARN, f"{operand} has no pod any more", confirm=f"kubectl get pods -n {now.namespace}"
        )
    for key in sorted(before.keys() & after.keys()):
        operand, container = key
        for image in sorted(before[key].keys() & after[key].keys()):
            one, other = before[key][image], after[key][image]
            if one and (new := other - one):
                yield rule.finding(
                    Outcome.WARN,
                    f"{operand}: another image runs under the same tag",
                    Evidence(f"container {container} {image}", _step(", ".join(sorted(one)), ", ".join(sorted(new)))),
                    cause="the tag was pushed again, or a mirror has another image under it",
                    fix=("pin the image by digest, or take a new baseline if it was meant",),
                )
        if not before[key].keys() & after[key].keys():
            seen = Evidence(
                f"container {container}", _step(", ".join(sorted(before[key])), ", ".join(sorted(after[key])))
            )
            yield rule.finding(Outcome.PASS, f"{operand} has another image, under another name", seen)


class _Class(NamedTuple):
    """What growth of a counter means."""

    title: str
    outcome: Outcome
    severity: Severity
    action: Action = Action.NONE
    fix: str = ""
    layer: Layer = Layer.HARDWARE


_RESET: Final = "stop the GPU's clients and reset it, or drain and reboot the node"
_UNCORRECTED: Final = _Class(
    "uncorrectable memory errors have grown", Outcome.FAIL, Severity.CRITICAL, Action.RESET_GPU, _RESET
)
_CORRECTED: Final = _Class("corrected memory errors have grown", Outcome.PASS, Severity.INFO)
_PENDING: Final = _Class(
    "memory repair waits for a reset of the GPU", Outcome.WARN, Severity.WARNING, Action.RESET_GPU, _RESET
)
_LINK: Final = _Class(
    "NVLink errors have grown",
    Outcome.WARN,
    Severity.WARNING,
    Action.HARDWARE_INSPECTION,
    "nvidia-smi nvlink -e; if they go on growing, have the link inspected",
    Layer.FABRIC,
)
_CLASSES: Final[Mapping[str, _Class]] = {
    "ECC_DBE_VOL_TOTAL": _UNCORRECTED,
    "ECC_DBE_AGG_TOTAL": _UNCORRECTED,
    "ECC_SBE_VOL_TOTAL": _CORRECTED,
    "ECC_SBE_AGG_TOTAL": _CORRECTED,
    "RETIRED_DBE": _UNCORRECTED,
    "RETIRED_SBE": _Class("memory pages were retired", Outcome.WARN, Severity.WARNING),
    "RETIRED_PENDING": _PENDING,
    "CORRECTABLE_REMAPPED_ROWS": _Class("memory rows were remapped", Outcome.PASS, Severity.INFO),
    "UNCORRECTABLE_REMAPPED_ROWS": _Class(
        "memory rows were remapped after uncorrectable errors", Outcome.WARN, Severity.WARNING
    ),
    "ROW_REMAP_PENDING": _PENDING,
    "ROW_REMAP_FAILURE": _Class(
        "remapping of memory rows has failed",
        Outcome.FAIL,
        Severity.FATAL,
        Action.HARDWARE_INSPECTION,
        "drain the node and have the GPU replaced",
    ),
    "PCIE_REPLAY_COUNTER": _Class("PCIe replays have grown", Outcome.PASS, Severity.INFO),
    "THERMAL_VIOLATION": _Class(
        "GPUs were throttled by heat", Outcome.WARN, Severity.WARNING, Action.HARDWARE_INSPECTION, "check the cooling"
    ),
    "RELIABILITY_VIOLATION": _Class("GPUs were throttled for reliability", Outcome.WARN, Severity.WARNING),
    "POWER_VIOLATION": _Class("GPUs were throttled by their power limit", Outcome.PASS, Severity.INFO),
    "BOARD_LIMIT_VIOLATION": _Class("GPUs were throttled by their board's limit", Outcome.PASS, Severity.INFO),
    "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": _LINK,
    "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": _LINK,
    "NVLINK_REPLAY_ERROR_COUNT_TOTAL": _LINK,
    "NVLINK_RECOVERY_ERROR_COUNT_TOTAL": _LINK,
}
"""By counter, without DCGM's prefix."""
_PREFIX: Final = "DCGM_FI_DEV_"
_XID: Final = f"{_PREFIX}XID_ERRORS"
_XID_CLASSES: Final[Mapping[xids.Action, tuple[Outcome, Severity, Action]]] = {
    xids.Action.IGNORE: (Outcome.PASS, Severity.INFO, Action.NONE),
    xids.Action.RESTART_APPLICATION: (Outcome.WARN, Severity.WARNING, Action.CHECK_WORKLOAD),
    xids.Action.NONE: (Outcome.WARN, Severity.WARNING, Action.CONTACT_SUPPORT),
    xids.Action.RESTART_NODE: (Outcome.FAIL, Severity.FATAL, Action.DRAIN_AND_REBOOT),
    xids.Action.RESTART_VM: (Outcome.FAIL, Severity.CRITICAL, Action.DRAIN_AND_REBOOT),
    xids.Action.RESET_GPU: (Outcome.FAIL, Severity.CRITICAL, Action.RESET_GPU),
    xids.Action.UPDATE: (Outcome.FAIL, Severity.CRITICAL, Action.UPGRADE_COMPONENT),
    xids.Action.CHECK_MECHANICS: (Outcome.FAIL, Severity.FATAL, Action.HARDWARE_INSPECTION),
    xids.Action.WORKFLOW: (Outcome.FAIL, Severity.CRITICAL, Action.HARDWARE_INSPECTION),
    xids.Action.SUPPORT: (Outcome.FAIL, Severity.CRITICAL, Action.CONTACT_SUPPORT),
}


def _health(rule: Rule, was: Baseline, now: Baseline) -> Changes:
    for node in sorted(was.parts.health.keys() & now.parts.health.keys()):
        grown: dict[_Class, list[Evidence]] = defaultdict(list)
        for uuid, after in now.parts.health[node].items():
            before = was.parts.health[node].get(uuid, {})
            for counter, value in sorted(after.items()):
                one = before.get(counter, 0.0)
                meaning = _meaning(counter, value)
                changed = value != one if counter == _XID else value > one
                if meaning is not None and changed:
                    grown[meaning].append(Evidence(f"node/{node} {uuid} {counter}", f"{one:g} -> {value:g}"))
        for meaning, evidence in grown.items():
            yield rule.finding(
                meaning.outcome,
                meaning.title,
                *evidence,
                node=node,
                layer=meaning.layer,
                severity=meaning.severity,
                action=meaning.action,
                fix=(meaning.fix,) if meaning.fix else (),
                confirm="nvidia-smi -q -d ECC,ROW_REMAPPER,PERFORMANCE; dmesg | grep -i xid",
            )


def _meaning(counter: str, value: float) -> _Class | None:
    if counter != _XID:
        return _CLASSES.get(counter.removeprefix(_PREFIX))
    code = int(value)
    if code == 0:
        return None
    known = xids.XIDS.get(code)
    action = known.action if known is not None else xids.Action.NONE
    outcome, severity, suggested = _XID_CLASSES[action]
    return _Class(f"Xid {code} since the baseline: {xids.text(code)}", outcome, severity, suggested, action.value)


def _cuda(rule: Rule, was: Baseline, now: Baseline) -> Changes:
    for node in sorted(was.parts.cuda.keys() & now.parts.cuda.keys()):
        one, other = was.parts.cuda[node], now.parts.cuda[node]
        if one.outcome == "pass" and other.outcome != "pass":
            seen = Evidence(f"node/{node} CUDA test", _step(one.outcome, other.outcome))
            yield rule.finding(
                Outcome.FAIL if other.outcome == "fail" else Outcome(other.outcome),
                "the CUDA test does not pass any more",
                seen,
                node=node,
                fix=("groundplane doctor",),
            )
        if one.seconds and other.seconds and other.seconds > SLOWER * one.seconds:
            seen = Evidence(f"node/{node} CUDA test", f"{one.seconds:.1f} s -> {other.seconds:.1f} s")
            title = f"the CUDA test takes more than {SLOWER:g} times as long"
            yield rule.finding(Outcome.PASS, title, seen, node=node)


RULES: Final = (
    Rule("helm", "A80", Layer.OPERATOR, "Helm's releases and values are as recorded", _helm),
    Rule("resources", "A81", Layer.OPERATOR, "ClusterPolicy and NVIDIADrivers are as recorded", _resources),
    Rule("definitions", "A84", Layer.OPERATOR, "custom resource definitions are as recorded", _definitions),
    Rule("nodes", "A84", Layer.HARDWARE, "the nodes are those of the baseline", _membership),
    Rule("nodes", "A84", Layer.KERNEL, "kernel, system, runtime and driver are as recorded", _fields),
    Rule("nodes", "A84", Layer.LABELS, "labels and taints of nodes are as recorded", _labels),
    Rule("nodes", "A82", Layer.DEVICE_PLUGIN, "allocatable GPUs are as recorded", _capacity),
    Rule("pods", "A83", Layer.OPERATOR, "images of pods are as recorded", _pods),
    Rule("gpus", "A84", Layer.HARDWARE, "GPUs are those of the baseline", _gpus),
    Rule("hosts", "A84", Layer.KERNEL, "facts of the nodes themselves are as recorded", _hosts),
    Rule("health", "A84", Layer.TELEMETRY, "health counters of GPUs have not grown", _health),
    Rule("cuda", "A84", Layer.WORKLOAD, "the CUDA test ends as recorded", _cuda),
)
"""All that is compared."""


# --- For people -------------------------------------------------------------------------------------------------------


def about(was: Baseline, now: Baseline) -> dict[str, str]:
    """What was compared, for the top of a report."""

    def told(side: Baseline) -> str:
        return f"{side.source}, {side.when}{'' if side.complete else ' (incomplete)'}"

    nodes = now.parts.nodes.values()
    return {
        "baseline": told(was),
        "now": told(now),
        "cluster": now.cluster or "its id may not be read",
        "Kubernetes": now.version,
        "nodes": f"{len(now.parts.nodes):,}, {sum(node.gpu for node in nodes):,} with GPUs",
        "releases": ", ".join(f"{where} {each.version}" for where, each in now.parts.helm.items()) or "none",
    }


def sections(was: Baseline, now: Baseline) -> list[Section]:
    """The diffs in full, and the nodes that differ, for the page."""
    values = [
        {f"Values of release {where}": each.values for where, each in side.parts.helm.items()} for side in (was, now)
    ]
    specs = [{f"Spec of {each.where}": each.spec for each in side.parts.resources} for side in (was, now)]
    found = [
        Section(title=title, text=text)
        for before, after in (values, specs)
        for title in sorted(before.keys() & after.keys())
        if (text := diff(before[title], after[title], title.partition(" of ")[2]))
    ]
    coverage = tuple(
        (name, part, each.state, "\n".join(each.reasons))
        for name, side in (("baseline", was), ("now", now))
        for part, each in side.coverage.items()
        if each.state != "complete"
    )
    if coverage:
        found.append(Section(title="What was not read", head=("side", "part", "state", "why"), rows=coverage))
    return found
