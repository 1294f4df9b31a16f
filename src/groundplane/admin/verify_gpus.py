"""Verify's checks of what nodes offer: GPUs that can be asked for, labels that describe them, metrics of each.

How many GPUs a node should offer follows from the labels of GPU feature discovery (contracts/device-plugin-gfd.md 8):
count times replicas, and each MIG profile's own; where somebody looked at the node itself, that has the last word.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ..api import names
from ..diagnose.evidence import moment
from ..diagnose.findings import Action, Evidence, Finding, Outcome
from ..diagnose.survey import Object
from ..operands import dcgm_exporter, device_plugin, gfd
from .expected import labels_of, name_of
from .metricslook import Exporter
from .verify_pods import running
from .verify_view import View, finding

SHARED: Final = ".shared"
"""What a resource's name ends in when sharing renames it."""
COUNT: Final = "nvidia.com/gpu.count"
REPLICAS: Final = "nvidia.com/gpu.replicas"
INVALID: Final = "MIG-INVALID"
STALE_S: Final = 120.0
"""Seconds by which a label's time may lie before the start of its container: clocks differ."""


class Wanted(dict[str, tuple[int, bool]]):
    """How many of each resource a node should offer; the flag says that it may be fewer (GPUs given to MIG)."""


def wanted(labels: Mapping[str, str]) -> Wanted | None:
    """What a node should offer by its labels; None if they do not tell."""
    count = _number(labels.get(COUNT))
    if count is None:
        return None
    found = Wanted()
    for key, value in labels.items():
        if key.startswith(names.MIG_RESOURCE_PREFIX) and key.endswith(".count"):
            resource = key.removesuffix(".count")
            found[resource] = ((_number(value) or 0) * (_number(labels.get(f"{resource}.replicas")) or 1), False)
    replicas = _number(labels.get(REPLICAS))
    found[names.GPU_RESOURCE] = (count * (1 if replicas is None else replicas), bool(found))
    return found


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def offered(node: Object, part: str = "allocatable") -> Mapping[str, int]:
    """NVIDIA's resources of a node, by the name that they have without renaming."""
    found: dict[str, int] = {}
    for resource, amount in ((node.get("status") or {}).get(part) or {}).items():
        if resource.startswith((names.GPU_RESOURCE, names.MIG_RESOURCE_PREFIX)):
            plain = resource.removesuffix(SHARED)
            found[plain] = found.get(plain, 0) + (_number(str(amount)) or 0)
    return found


# --- A68, A69 ---------------------------------------------------------------------------------------------------------


def allocatable(view: View) -> Iterator[Finding]:
    """A68: every node offers the GPUs it has, shared and sliced as its labels say; a node without any is explained."""
    good = total = 0
    for name, node in view.expected.nodes.items():
        if view.expected.operands and not view.expected.runs(device_plugin.STATE, name):
            yield finding("A68", Outcome.SKIP, "no device plugin is meant for the node", node=name)
            continue
        found = _allocatable(view, name, node)
        if found is None:
            good += 1
            total += sum(offered(node).values())
        else:
            yield found
    if good:
        yield finding("A68", Outcome.PASS, f"{good} nodes offer the GPUs they have, {total} in all")


def _allocatable(view: View, name: str, node: Object) -> Finding | None:
    labels, have = labels_of(node), offered(node)
    said = [Evidence(f"node/{name} allocatable", _told(have))]
    confirm = f"kubectl get node {name} -o jsonpath='{{.status.allocatable}}'"
    if labels.get(names.GPU_PRODUCT, "").endswith(INVALID):
        return finding(
            "A68",
            Outcome.FAIL,
            "the MIG layout does not suit the strategy single",
            *said,
            node=name,
            cause="a MIG GPU is empty, some GPUs are not in MIG mode, or their slices differ",
            confirm=f"kubectl get node {name} -L {names.MIG_CONFIG},{names.MIG_CONFIG_STATE}",
            fix=("choose a layout of one profile on all GPUs (nvidia.com/mig.config), or mig.strategy mixed",),
            action=Action.CHANGE_CONFIG,
        )
    want = wanted(labels)
    hardware = _hardware(view, name)
    if not sum(have.values()) and (want is None or any(number for number, _ in want.values())):
        cause, fix = _nothing(view, name, node)
        return finding(
            "A68",
            Outcome.FAIL,
            "a GPU node offers no GPU",
            *said,
            node=name,
            cause=cause,
            confirm=confirm,
            fix=fix,
        )
    if want is None:
        title = "how many GPUs the node should offer is not known: it has no label " + COUNT
        return finding("A68", Outcome.UNKNOWN, title, *said, node=name, confirm=confirm)
    wrong = [
        f"{resource}: {have.get(resource, 0)}, expected {'at most ' if fewer else ''}{number}"
        for resource, (number, fewer) in want.items()
        if (have.get(resource, 0) > number) or (have.get(resource, 0) < number and not fewer)
    ]
    if wrong:
        return finding(
            "A68",
            Outcome.FAIL,
            "a node does not offer the GPUs that its labels tell of",
            Evidence(f"node/{name}", "; ".join(wrong)),
            node=name,
            cause="a device is unhealthy, the device plugin was started before a change of MIG or sharing, or the "
            "labels are older than that change",
            confirm=confirm,
            fix=(f"kubectl logs -n {view.survey.namespace} -l app=nvidia-device-plugin-daemonset",),
            action=Action.RESTART_POD,
        )
    physical = _number(labels.get(COUNT))
    sliced = "-MIG-" in labels.get(names.GPU_PRODUCT, "")
    if hardware is not None and not sliced and physical is not None and hardware != physical:
        return finding(
            "A68",
            Outcome.FAIL,
            "a node has another number of GPUs than its labels tell of",
            Evidence(f"node/{name}", f"{hardware} on the PCI bus, {COUNT}={physical}"),
            node=name,
            cause="a GPU has fallen off the bus, or the driver does not drive it",
            confirm="lspci -d 10de: ; nvidia-smi -L",
            action=Action.HARDWARE_INSPECTION,
        )
    return None


def _hardware(view: View, name: str) -> int | None:
    """GPUs on the node's PCI bus, else those of its driver, if somebody looked."""
    facts = view.node_facts.get(name)
    if facts is None:
        return None
    bus = facts.facts.get("gpus")
    if isinstance(bus, list):
        return len([each for each in bus if not (isinstance(each, Mapping) and each.get("virtual_function"))])
    number = facts.facts.get("driver_gpus")
    return int(number) if isinstance(number, int) else None


def _told(have: Mapping[str, int]) -> str:
    return ", ".join(f"{resource} {number}" for resource, number in sorted(have.items())) or "no resource of NVIDIA's"


def _nothing(view: View, name: str, node: Object) -> tuple[str, tuple[str, ...]]:
    """Why a node offers no GPU: the first thing in the way, in the order in which it comes up."""
    if name in view.unready_nodes:
        return "the node is not Ready", (f"kubectl describe node {name}",)
    plugins = [each.name for each in view.expected.operands if each.state == device_plugin.STATE]
    pods = [pod for plugin in plugins for pod in view.placed.get((name, plugin), ())]
    namespace = view.survey.namespace
    if not pods:
        return "the device plugin has no pod on the node (see A63)", (f"kubectl describe node {name}",)
    if not any(map(running, pods)):
        pod = name_of(pods[0])
        return "the device plugin's pod is not ready (see A64)", (f"kubectl describe pod {pod} -n {namespace}",)
    zero = [resource for resource, number in offered(node, "capacity").items() if number]
    if zero:
        return (
            f"the kubelet knows {', '.join(zero)}, and every device is unhealthy",
            (f"kubectl logs -n {namespace} {name_of(pods[0])}", "look for Xid errors in the node's kernel log"),
        )
    strategy = labels_of(node).get(names.MIG_STRATEGY, "none")
    if _number(labels_of(node).get(REPLICAS)) == 0:
        return (
            f"all GPUs are in MIG mode without slices that the strategy {strategy} offers",
            (f"kubectl label node {name} nvidia.com/mig.config=all-disabled --overwrite, or another layout",),
        )
    return (
        "the device plugin runs and the kubelet knows no resource of it: it is not registered, or it found no GPU",
        (
            f"kubectl logs -n {namespace} {name_of(pods[0])}",
            f"restart it: kubectl delete pod {name_of(pods[0])} -n {namespace}",
        ),
    )


def capacity(view: View) -> Iterator[Finding]:
    """A69: what a node has and what it offers agree; a difference is unhealthy devices."""
    good = 0
    for name, node in view.expected.nodes.items():
        have, total = offered(node), offered(node, "capacity")
        wrong = [f"{each}: {have.get(each, 0)} of {total[each]}" for each in total if have.get(each, 0) != total[each]]
        if not wrong:
            good += bool(total)
            continue
        yield finding(
            "A69",
            Outcome.FAIL,
            "a node offers fewer GPUs than it has: devices are unhealthy",
            Evidence(f"node/{name} allocatable of capacity", "; ".join(wrong)),
            node=name,
            cause="the device plugin has reported them unhealthy, after an Xid error as a rule",
            confirm=f"kubectl logs -n {view.survey.namespace} -l app=nvidia-device-plugin-daemonset --prefix",
            fix=("read the kernel log for Xid errors: groundplane doctor says what each asks for",),
        )
    if good:
        yield finding("A69", Outcome.PASS, f"allocatable is capacity on {good} nodes")


# --- A70, A71 ---------------------------------------------------------------------------------------------------------

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "present": (names.GPU_PRESENT,),
    "product": (names.GPU_PRODUCT,),
    "memory": ("nvidia.com/gpu.memory",),
    "count": (COUNT,),
    "replicas": (REPLICAS,),
    "family": ("nvidia.com/gpu.family",),
    "compute": ("nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor"),
    "machine": (names.GPU_MACHINE,),
    "driver": tuple(f"{names.CUDA_DRIVER_VERSION}.{part}" for part in ("major", "minor", "revision", "full")),
    "cuda": tuple(f"{names.CUDA_RUNTIME_VERSION}.{part}" for part in ("major", "minor", "full")),
    "mig": (names.MIG_CAPABLE,),
    "sharing": ("nvidia.com/gpu.sharing-strategy",),
    "mode": (names.GPU_MODE,),
}
"""Families of labels (3.8), with those that each has on every GPU node that GPU feature discovery serves."""
REQUIRED: Final = ("present", "product", "count", "replicas", "driver", "cuda", "machine", "mig")
"""Without these, others do not work: scheduling, the MIG manager, and what A68 expects."""
OLD_DRIVER: Final = {
    f"{names.CUDA_DRIVER}.{old}": f"{names.CUDA_DRIVER_VERSION}.{new}"
    for old, new in (("major", "major"), ("minor", "minor"), ("rev", "revision"))
}


def labels(view: View) -> Iterator[Finding]:
    """A70: labels of GPU feature discovery are there, are of this driver, and were written since it runs."""
    good = 0
    for name, node in view.expected.nodes.items():
        if view.expected.operands and not view.expected.runs(gfd.STATE, name):
            yield finding("A70", Outcome.SKIP, "GPU feature discovery is not meant for the node", node=name)
            continue
        found = _labels(view, name, labels_of(node))
        good += found is None
        if found is not None:
            yield found
    if good:
        yield finding("A70", Outcome.PASS, f"labels of GPU feature discovery are complete and fresh on {good} nodes")


def _labels(view: View, name: str, have: Mapping[str, str]) -> Finding | None:
    confirm = f"kubectl logs -n {view.survey.namespace} -l app=gpu-feature-discovery --prefix"
    missing = [label for family in REQUIRED for label in FAMILIES[family] if label not in have]
    if missing:
        everything = len(missing) >= sum(len(FAMILIES[family]) for family in REQUIRED) - 1
        return finding(
            "A70",
            Outcome.FAIL,
            "GPU feature discovery has not labelled a GPU node" if everything else "labels of a GPU node are missing",
            Evidence(f"node/{name} labels", f"without {', '.join(missing)}"),
            node=name,
            cause="it does not run, sees no GPU, or node feature discovery does not take its labels over",
            confirm=confirm,
        )
    full = have[f"{names.CUDA_DRIVER_VERSION}.full"]
    for source, runs in _drivers(view, name):
        if runs and not _same(full, runs):
            return finding(
                "A70",
                Outcome.FAIL,
                "the labels are of another driver than the node has",
                Evidence(f"node/{name}", f"{names.CUDA_DRIVER_VERSION}.full={full}; {source}: {runs}"),
                node=name,
                cause="GPU feature discovery has not run since the driver was changed, or that is yet to be loaded",
                confirm=confirm,
                fix=("restart its pod on the node, once the driver's pod is ready",),
                action=Action.RESTART_POD,
            )
    return _fresh(view, name, have, confirm)


def _drivers(view: View, name: str) -> Iterator[tuple[str, str]]:
    """The driver's version as the node itself has it, and as the image of its driver's pod says."""
    facts = view.node_facts.get(name)
    if facts is not None:
        yield "the loaded driver", str(facts.facts.get("driver_version") or "")
    for operand in view.expected.operands:
        if operand.driver:
            for pod in view.placed.get((name, operand.name), ()):
                yield "image of the driver's pod", _version_of_image(pod)


def _version_of_image(pod: Object) -> str:
    """``580.95.05`` of an image's tag, or the branch of a precompiled one; empty if a digest hides it."""
    for container in (pod.get("spec") or {}).get("containers") or ():
        if container.get("name") in ("nvidia-driver-ctr", "openshift-driver-toolkit-ctr"):
            image = str(container.get("image", "")).rpartition("/")[2]
            tag = "" if "@" in image else image.partition(":")[2].partition("-")[0]
            return tag if tag.replace(".", "").isdigit() else ""
    return ""


def _same(full: str, runs: str) -> bool:
    return full == runs or full.startswith(f"{runs}.")


def _fresh(view: View, name: str, have: Mapping[str, str], confirm: str) -> Finding | None:
    pods = [
        pod
        for operand in view.expected.operands
        if operand.state == gfd.STATE
        for pod in view.placed.get((name, operand.name), ())
    ]
    stamp = have.get(names.GFD_TIMESTAMP)
    if stamp is None and any(_without_timestamp(pod) for pod in pods):
        return None
    started = max(filter(None, map(_started, pods)), default=None)
    if stamp is None:
        title = "labels of a GPU node have no time: whether they are fresh cannot be told"
        return finding("A70", Outcome.WARN, title, node=name, confirm=confirm)
    if started is None or not stamp.isdigit() or int(stamp) >= started - STALE_S:
        return None
    return finding(
        "A70",
        Outcome.FAIL,
        "labels of a GPU node are older than GPU feature discovery's container",
        Evidence(f"node/{name} {names.GFD_TIMESTAMP}", f"{stamp}, the container started at {int(started)}"),
        node=name,
        cause="it runs and its labels do not arrive: node feature discovery does not take them over",
        confirm=confirm,
    )


def _without_timestamp(pod: Object) -> bool:
    return any(
        variable.get("name") == "GFD_NO_TIMESTAMP" and str(variable.get("value")).lower() == "true"
        for container in (pod.get("spec") or {}).get("containers") or ()
        for variable in container.get("env") or ()
    )


def _started(pod: Object) -> float | None:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        at = ((status.get("state") or {}).get("running") or {}).get("startedAt")
        if status.get("name") == "gpu-feature-discovery" and at:
            return moment(str(at))
    return None


def families(view: View) -> Iterator[Finding]:
    """A71: every family of labels is there; a node that GPU feature discovery does not serve is left out."""
    good = 0
    for name, node in view.expected.nodes.items():
        have = labels_of(node)
        if COUNT not in have:
            continue  # A70 says so
        absent = [family for family, wanted in FAMILIES.items() if not all(label in have for label in wanted)]
        absent = [family for family in absent if not (family == "driver" and _old_driver(have))]
        if not absent:
            good += 1
            continue
        yield finding(
            "A71",
            Outcome.WARN,
            f"label families are incomplete: {', '.join(absent)}",
            Evidence(
                f"node/{name} labels", ", ".join(f for family in absent for f in FAMILIES[family] if f not in have)
            ),
            node=name,
            cause="an older GPU feature discovery, or a GPU that does not tell",
        )
    if good:
        yield finding("A71", Outcome.PASS, f"all {len(FAMILIES)} label families are there on {good} nodes")
    elif view.expected.nodes and not any(COUNT in labels_of(node) for node in view.expected.nodes.values()):
        yield finding("A71", Outcome.SKIP, "no node has labels of GPU feature discovery (see A70)")


def _old_driver(have: Mapping[str, str]) -> bool:
    """The driver's parts under the names that they had before."""
    return all(old in have or new in have for old, new in OLD_DRIVER.items())


def family_table(nodes: Iterable[Object]) -> list[tuple[str, str, str]]:
    """Family, its labels, and the values that nodes have, for people."""
    things = list(nodes)
    rows = []
    for family, wanted_labels in FAMILIES.items():
        values = sorted(
            {labels_of(node)[label] for node in things for label in wanted_labels if label in labels_of(node)}
        )
        shown = ", ".join(values[:5]) + (f" and {len(values) - 5} more" if len(values) > 5 else "")
        rows.append((family, ", ".join(wanted_labels), shown or "none"))
    return rows


# --- metrics ----------------------------------------------------------------------------------------------------------


def exporters(view: View) -> list[Exporter]:
    """Exporters' pods that run, of nodes that should have one."""
    names_of = [each.name for each in view.expected.operands if each.state == dcgm_exporter.STATE]
    return [
        Exporter(node, view.survey.namespace, name_of(pod))
        for node in view.expected.nodes
        for operand in names_of
        for pod in view.placed.get((node, operand), ())[:1]
        if running(pod)
    ]


def metrics(view: View) -> Iterator[Finding]:
    """V3: an exporter's page has series of every GPU of its node."""
    served = [node for node in view.expected.nodes if view.expected.runs(dcgm_exporter.STATE, node)]
    if not served:
        yield finding("V3", Outcome.SKIP, "no exporter is meant for any node")
        return
    if view.metrics is None:
        yield finding("V3", Outcome.SKIP, "exporters were not asked")
        return
    good, left = 0, len(served) - len(view.metrics)
    for node, page in view.metrics.items():
        found = _page(view, node, page.uuids, page.problem, page.forbidden)
        good += found is None
        if found is not None:
            yield found
    if good:
        told = f"; {left} nodes were not asked (--metrics 0 asks all)" if left > 0 else ""
        yield finding("V3", Outcome.PASS, f"exporters have series of every GPU on {good} nodes{told}")
    elif not view.metrics:
        title = "no exporter could be asked: none of their pods is ready (see A64)"
        yield finding("V3", Outcome.UNKNOWN, title)


def _page(view: View, node: str, uuids: frozenset[str], problem: str, forbidden: bool) -> Finding | None:
    confirm = "kubectl get --raw /api/v1/namespaces/NAMESPACE/pods/POD:9400/proxy/metrics"
    if problem:
        said: dict[str, Any] = {"cause": problem, "confirm": confirm, "node": node}
        if forbidden:
            return finding("V3", Outcome.UNKNOWN, "exporters may not be asked: get pods/proxy is not allowed", **said)
        return finding("V3", Outcome.FAIL, "the exporter does not answer", **said)
    count = _number(labels_of(view.expected.nodes[node]).get(COUNT))
    sliced = "-MIG-" in labels_of(view.expected.nodes[node]).get(names.GPU_PRODUCT, "")
    least = 1 if count is None or sliced else count
    if len(uuids) >= least:
        return None
    return finding(
        "V3",
        Outcome.FAIL,
        "the exporter lacks series of GPUs" if uuids else "the exporter has no series of any GPU",
        Evidence("exporter's page", f"{len(uuids)} GPUs of {least}"),
        node=node,
        cause="the exporter was started before the driver, lost a GPU, or may not reach it",
        confirm=confirm,
        fix=("restart the exporter's pod; if that does not help, see the GPU: groundplane doctor",),
        action=Action.RESTART_POD,
    )
