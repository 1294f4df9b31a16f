"""Gathering evidence of a cluster: what the API shows, and the logs of what is not well.

One survey (one listing a kind) says which pods and nodes are not well; only their logs, and what can be found out on
their nodes, are read. So a cluster of thousands of nodes costs little more than its listings. What the survey means
for evidence is pure (:func:`of_survey`, :func:`wanted_logs`, :func:`sick_nodes`), so that an archive gives the same.
Nothing is judged here. What was looked for in vain ends in ``Evidence.missing``, which the doctor tells as unknown.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from ..api import names
from ..cluster import errors, permissions
from . import evidence as seen
from . import pods
from . import survey as surveys
from .evidence import Evidence, KernelLog, Log, NodeFacts, Object
from .findings import Layer
from .survey import Survey

if TYPE_CHECKING:
    from ..cluster.client import Client

_POLICIES: Final = ("clusterpolicies", "gpuclusters")
"""Of these one tells an operator what to bring up."""
KINDS: Final = (
    *("nodes", "pods", "events", *_POLICIES, "nvidiadrivers", "daemonsets", "deployments"),
    *("runtimeclasses", "resourcequotas", "clusterversions", "customresourcedefinitions"),
)
"""What the doctor reads of a cluster, one listing each."""
LOG_LINES: Final = 200
"""Last lines of a log that are read."""
LOG_BYTES: Final = 256 << 10
"""Of those, the most that is kept: lines may be of any length."""
LOGS_AT_ONCE: Final = 16
LOGS_ALIKE: Final = 40
"""Logs that are read of containers of one operand that fail in one way; more of them would tell nothing new."""
LOGS_MOST: Final = 400
NODES_LOOKED_AT: Final = 24
"""Nodes that are looked at from inside when none is named."""
WITHIN_S: Final = 120.0
"""Seconds for all that is read live; what is there by then is judged."""
EVENT_AGE_S: Final = 3600.0
"""Warnings about nodes are news for so long; those about pods, as long as the pod is not well."""
EVENTS_A_THING: Final = 20


class Looked(Protocol):
    """What was found on nodes (``admin.nodelook.NodeLook``)."""

    @property
    def facts(self) -> Mapping[str, NodeFacts]:
        """By node."""

    @property
    def unread(self) -> Mapping[str, str]:
        """By node, why it could not be looked at."""

    @property
    def kernel(self) -> tuple[KernelLog, ...]:
        """The kernels' logs."""


Look = Callable[[Sequence[str]], Awaitable[Looked]]
"""Looks at nodes from inside."""


async def examine(
    client: "Client",
    *,
    namespace: str = surveys.OPERATOR_NAMESPACE,
    nodes: Sequence[str] = (),
    pod: tuple[str, str] | None = None,
    exec: bool = True,
    look: Look | None = None,
    log_lines: int = LOG_LINES,
    within_s: float = WITHIN_S,
    tell: Callable[[str], None] = lambda _: None,
) -> Evidence:
    """Evidence of a live cluster.

    Args:
        client: how the cluster is reached.
        namespace: the operator's.
        nodes: judge these only; all unless given.
        pod: namespace and name of a pod that is looked at although it is well.
        exec: whether nodes may be looked at from inside, with ``look``.
        look: finds facts of nodes out (``admin.nodelook``); without it there are none.
        log_lines: last lines of each log that are read.
        within_s: seconds for all of it, half of them for objects, so that what hangs leaves time for the rest; what
            was not read by then ends in ``missing``.
        tell: hears what is being done, a few words at a time.

    Raises what :func:`~.survey.live` raises; all else that cannot be read ends in ``missing``.
    """
    begin = asyncio.get_running_loop().time()
    tell("reading the cluster's objects")
    survey = await surveys.live(client, KINDS, namespace=namespace, within_s=within_s / 2)
    wishes = wanted_logs(survey, nodes=nodes, pod=pod)
    tell(f"reading {len(wishes.wanted)} logs of what is not well")
    logs, missing = await read_logs(client, wishes.wanted, log_lines, begin + within_s * 3 / 4)
    facts: tuple[NodeFacts, ...] = ()
    kernel: tuple[KernelLog, ...] = ()
    looked = list(nodes) or sick_nodes(survey)[:NODES_LOOKED_AT]
    if exec and look is not None and looked:
        tell(f"looking at {len(looked)} nodes from inside")
        try:
            async with asyncio.timeout_at(begin + within_s):
                found = await look(looked)
        except TimeoutError:
            missing.append(f"{len(looked)} nodes could not be looked at from inside: {_LATE}")
        else:
            facts, kernel = tuple(found.facts.values()), tuple(found.kernel)
            missing += [f"node {node} could not be looked at from inside: {why}" for node, why in found.unread.items()]
    missing = [*wishes.left_out, *missing]
    return of_survey(survey, logs=logs, facts=facts, kernel=kernel, nodes=nodes, pod=pod, missing=missing)


# --- What a survey means ----------------------------------------------------------------------------------------------


def of_survey(
    survey: Survey,
    *,
    logs: Iterable[Log] = (),
    facts: Iterable[NodeFacts] = (),
    kernel: Iterable[KernelLog] = (),
    nodes: Sequence[str] = (),
    pod: tuple[str, str] | None = None,
    missing: Iterable[str] = (),
) -> Evidence:
    """The evidence that a survey, and what was read beside it, amount to; pure.

    Pods that have nothing to do with GPUs are left out, as are events of what is well by now.
    """
    wanted = frozenset(nodes)
    mine = [each for each in survey.of_kind("pods") if _is_ours(each, survey.namespace, pod) and not pods.leaving(each)]
    mine = [each for each in mine if not wanted or seen.node_of(each) in (*wanted, "") or _is(each, pod)]
    machines = [each for each in survey.of_kind("nodes") if not wanted or seen.name(each) in wanted]
    others = ("clusterpolicies", "nvidiadrivers", "daemonsets", "deployments", "runtimeclasses", "resourcequotas")
    objects = (*machines, *mine, *(each for plural in others for each in survey.of_kind(plural)))
    return Evidence(
        context=_context(survey),
        objects=objects,
        events=tuple(_events(survey, mine, machines)),
        logs=tuple(logs),
        kernel=tuple(kernel),
        nodes=tuple(_with_allocatable(facts, machines)),
        missing=(*_unread(survey), *(f"there is no node {each}" for each in _absent(survey, nodes)), *missing),
    )


def _is_ours(pod: Object, namespace: str, named: tuple[str, str] | None) -> bool:
    return pods.concerns_us(pod, namespace) or _is(pod, named)


def _is(pod: Object, named: tuple[str, str] | None) -> bool:
    return named is not None and (seen.namespace(pod), seen.name(pod)) == named


def _absent(survey: Survey, nodes: Sequence[str]) -> list[str]:
    known = {seen.name(each) for each in survey.of_kind("nodes")}
    return [each for each in nodes if each not in known] if survey.knows("nodes") else []


def _unread(survey: Survey) -> Iterator[str]:
    yield from (reason for plural, reason in sorted(survey.unread.items()) if plural in KINDS)


def _with_allocatable(facts: Iterable[NodeFacts], machines: Iterable[Object]) -> Iterator[NodeFacts]:
    """Facts of nodes, with what their objects say of the GPUs that they offer, where that can be compared."""
    offered = {seen.name(each): _whole_gpus(each) for each in machines}
    for each in facts:
        known = dict(each.facts)
        count = offered.get(each.name)
        buses = known.get("gpus")
        if count is not None and isinstance(buses, list) and buses and "expected_gpus" not in known:
            known |= {"expected_gpus": len(buses), "allocatable": count}
        yield NodeFacts(name=each.name, facts=known, commands=each.commands, when=each.when, missing=each.missing)


def _whole_gpus(node: Object) -> int | None:
    """GPUs that a node offers as they are; None where MIG or sharing makes their number another."""
    labels = seen.labels(node)
    _, offered = pods.offered(node)
    whole = set(offered) <= {names.GPU_RESOURCE}
    alone = labels.get("nvidia.com/gpu.replicas", "1") in ("", "0", "1")
    plain = not str(labels.get("nvidia.com/mig.config") or "all-disabled").startswith("all-1")
    return int(offered.get(names.GPU_RESOURCE, 0)) if offered and whole and alone and plain else None


# --- Facts of the cluster ---------------------------------------------------------------------------------------------

_PLATFORMS: Final = (
    *(("+rke2", "rke2"), ("+k3s", "k3s"), ("+k0s", "k0s"), ("-eks-", "eks"), ("-gke.", "gke")),
    *(("microk8s", "microk8s"), ("-aks", "aks")),
)
"""What the version of the kubelet or of the API server tells of the distribution."""
_PLATFORM_LABELS: Final = (
    ("microk8s.io/", "microk8s"),
    ("kubernetes.azure.com/", "aks"),
    ("eks.amazonaws.com/", "eks"),
    ("cloud.google.com/gke", "gke"),
    ("node.openshift.io/", "openshift"),
)


def _context(survey: Survey) -> dict[str, Any]:
    found: dict[str, Any] = {"platform": platform(survey)}
    if release := _release(survey):
        found["release"] = release
    if survey.knows("nodes"):
        found["upgrade_stuck"] = upgrade_stuck(survey)
    if all(map(survey.knows, _BRINGS_UP)):
        found["brings_up"] = _brings_up(survey)
        found["idle_gpu_nodes"] = len(_idle_gpu_nodes(survey))
    if survey.at:
        found["at"] = datetime.fromtimestamp(survey.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return found


_BRINGS_UP: Final = ("nodes", "pods", "deployments", *_POLICIES)


def _brings_up(survey: Survey) -> str:
    """What brings the stack up, in the words of ``evidence.CONTEXT_FACTS``."""
    if any(survey.of_kind(plural) for plural in _POLICIES):
        return "policy"
    operators = (each for plural in ("deployments", "pods") for each in survey.of_kind(plural))
    return "operator" if any(pods.is_operator(each) for each in operators) else "nothing"


def _idle_gpu_nodes(survey: Survey) -> list[str]:
    """Nodes that have a GPU and neither offer it nor have an operand."""
    served = {seen.node_of(pod) for pod in survey.of_kind("pods") if pods.layer_of(pod) not in (None, Layer.OPERATOR)}
    return [
        seen.name(node)
        for node in survey.of_kind("nodes")
        if any(seen.labels(node).get(each) == "true" for each in names.PCI_GPU_LABELS)
        and not any(pods.offered(node))
        and seen.name(node) not in served
    ]


def platform(survey: Survey) -> str:
    """The distribution of Kubernetes, in the words of ``evidence.CONTEXT_FACTS``."""
    if survey.of_kind("clusterversions"):
        return "openshift"
    nodes = survey.of_kind("nodes")
    versions = {survey.version, *map(_kubelet, nodes)}
    for sign, name in _PLATFORMS:
        if any(sign in version for version in versions):
            return name
    for begin, name in _PLATFORM_LABELS:
        if any(label.startswith(begin) for label in seen.labels(nodes[0] if nodes else {})):
            return name
    return "kubernetes"


def _kubelet(node: Object) -> str:
    return str(((node.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion") or "")


def _release(survey: Survey) -> str:
    for thing in (*survey.of_kind("deployments"), *survey.of_kind("clusterpolicies")):
        labels = seen.labels(thing)
        chart = str(labels.get("helm.sh/chart") or "")
        if chart.startswith("gpu-operator-"):
            return chart.removeprefix("gpu-operator-")
        if labels.get("app.kubernetes.io/name") == "gpu-operator" and labels.get("app.kubernetes.io/version"):
            return str(labels["app.kubernetes.io/version"])
    return ""


_WAITING: Final = frozenset({"upgrade-required"})
_AT_REST: Final = frozenset({"", "upgrade-done", "upgrade-failed", *_WAITING})


def upgrade_stuck(survey: Survey) -> bool:
    """Whether nodes wait for their driver's upgrade while none is upgraded and others use the slots up."""
    states = [(node, str(seen.labels(node).get(names.UPGRADE_STATE) or "")) for node in survey.of_kind("nodes")]
    if not any(state in _WAITING for _, state in states) or any(state not in _AT_REST for _, state in states):
        return False
    return any(state == "upgrade-failed" or _unavailable(node) for node, state in states if state not in _WAITING)


def _unavailable(node: Object) -> bool:
    return bool((node.get("spec") or {}).get("unschedulable")) or not _node_ready(node)


def _node_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return all(each.get("status") == "True" for each in conditions if each.get("type") == "Ready")


# --- Events -----------------------------------------------------------------------------------------------------------


def _events(survey: Survey, mine: Sequence[Object], machines: Sequence[Object]) -> Iterator[seen.Event]:
    """Events that still say something, oldest first: of pods that are not well, of nodes and the rest lately."""
    unwell = {(seen.namespace(each), seen.name(each)): _uid(each) for each in mine if not pods.ready(each)}
    begun = {(seen.namespace(each), seen.name(each)) for each in mine if any(map(pods.has_run, pods.statuses(each)))}
    sets = {seen.name(each) for each in survey.of_kind("daemonsets") if not _set_ready(each)}
    policies = {seen.name(each) for plural in _STATED for each in survey.of_kind(plural) if not _stated_ready(each)}
    elsewhere = {seen.name(each) for each in survey.of_kind("nodes")} - {seen.name(each) for each in machines}
    names_of_nodes = {seen.name(each) for each in machines}
    kept: list[tuple[str, seen.Event]] = []
    for thing in survey.of_kind("events"):
        about = thing.get("involvedObject") or thing.get("regarding") or {}
        key = (str(about.get("namespace") or ""), str(about.get("name") or ""))
        if key in begun and thing.get("reason") in _BEFORE_IT_RUNS:
            continue
        kind, uid = str(about.get("kind") or ""), about.get("uid")
        if _says_something(thing, kind, key, uid, unwell, sets, policies, names_of_nodes, survey):
            event = seen.event_of(thing)
            if kind not in ("Pod", "Node") and elsewhere & set(_WORDS.findall(event.message)):
                continue  # of other nodes than those that are judged
            if kind not in ("Pod", "Node"):  # its source's host is the reporter's
                event = msgspec.structs.replace(event, node="")
            kept.append((event.when, event))
    counted: Counter[tuple[str, str]] = Counter()
    for _, event in sorted(kept, key=lambda each: each[0], reverse=True):
        counted[event.kind, event.name] += 1
        if counted[event.kind, event.name] <= EVENTS_A_THING:
            yield event


_WORDS: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
_STATED: Final = ("clusterpolicies", "nvidiadrivers")


def _stated_ready(policy: Object) -> bool:
    return bool((policy.get("status") or {}).get("state") == "ready")


_BEFORE_IT_RUNS: Final = frozenset({"FailedCreatePodSandBox", "FailedScheduling", "FailedMount", "FailedAttachVolume"})
"""Events of what is over once a container of the pod has run."""


def _says_something(
    thing: Object,
    kind: str,
    key: tuple[str, str],
    uid: Any,
    unwell: Mapping[tuple[str, str], str],
    sets: set[str],
    policies: set[str],
    machines: set[str],
    survey: Survey,
) -> bool:
    if thing.get("reason") in names.DIAGNOSIS_REASONS or (thing.get("type") == "Normal" and not _killed(thing)):
        return False
    if kind == "Pod":
        return key in unwell and uid in (None, "", unwell[key])
    if kind == "Node":
        return key[1] in machines and _young(thing, survey.at)
    if kind == "DaemonSet":
        return key[0] == survey.namespace and key[1] in sets and _young(thing, survey.at)
    return kind in ("ClusterPolicy", "NVIDIADriver") and key[1] in policies and _young(thing, survey.at)


def _killed(thing: Object) -> bool:
    """Whether it is of a container that a probe has ended: Kubernetes calls that normal."""
    return thing.get("reason") == "Killing" and " probe" in str(thing.get("message") or thing.get("note") or "")


def _uid(thing: Object) -> str:
    return str((thing.get("metadata") or {}).get("uid") or "")


def _set_ready(daemon_set: Object) -> bool:
    status = daemon_set.get("status") or {}
    return bool(status.get("numberReady", 0) >= status.get("desiredNumberScheduled", 0))


def _young(event: Object, now: float) -> bool:
    moment = seen.moment(seen.event_of(event).when)
    return moment is None or not now or now - moment <= EVENT_AGE_S


# --- What is not well -------------------------------------------------------------------------------------------------


def sick_nodes(survey: Survey) -> list[str]:
    """Nodes of which something is not well, in order: operands, GPUs on offer, labels that tell of failures."""
    found = {
        seen.node_of(pod)
        for pod in survey.of_kind("pods")
        if pods.concerns_us(pod, survey.namespace) and not pods.ready(pod) and not pods.leaving(pod)
    }
    found |= {seen.name(node) for node in survey.of_kind("nodes") if suspicious(node)}
    return sorted(found - {""})


_FAILED: Final = (
    (names.MIG_CONFIG_STATE, "failed"),
    (names.UPGRADE_STATE, "upgrade-failed"),
)


def suspicious(node: Object) -> bool:
    """Whether a GPU node's object shows a failure: not Ready, fewer GPUs on offer than it has, a label that says so."""
    labels = seen.labels(node)
    if labels.get(names.GPU_PRESENT) != "true":
        return False
    if any(labels.get(label) == "false" for label in (names.DEPLOY_OPERANDS, names.DEPLOY_DEVICE_PLUGIN)):
        return not _node_ready(node)  # its administrator wants no GPU on offer there
    capacity, offered = pods.offered(node)
    fewer = any(offered.get(resource, 0) < amount for resource, amount in capacity.items())
    none = not capacity
    failed = any(labels.get(label) == value for label, value in _FAILED)
    return fewer or none or failed or not _node_ready(node)


class Wish(NamedTuple):
    """A log that is worth reading."""

    namespace: str
    pod: str
    container: str
    node: str
    previous: bool = False


class Wishes(NamedTuple):
    """Logs that are worth reading, and sentences about those that were left out for their number."""

    wanted: list[Wish]
    left_out: list[str]


def wanted_logs(survey: Survey, *, nodes: Sequence[str] = (), pod: tuple[str, str] | None = None) -> Wishes:
    """The logs that may tell why something is not well; pure.

    Of a pod that is not ready: its failing containers, their run before too. On a node that shows a failure although
    all its pods are ready: the operands' that could know. Of many that fail alike, the first :data:`LOGS_ALIKE`.
    """
    doubtful = {seen.name(node) for node in survey.of_kind("nodes") if suspicious(node)}
    wanted: list[Wish] = []
    alike: Counter[tuple[str, str, str]] = Counter()
    left_out: Counter[tuple[str, str]] = Counter()
    for each in survey.of_kind("pods"):
        if pods.leaving(each) or not _is_ours(each, survey.namespace, pod):
            continue
        if nodes and seen.node_of(each) not in (*nodes, "") and not _is(each, pod):
            continue
        for status, how in _worth_reading(each, doubtful | set(nodes), pod):
            container = str(status.get("name") or "")
            app = str(seen.labels(each).get("app") or seen.name(each))
            alike[app, container, how] += 1
            if alike[app, container, how] > LOGS_ALIKE or len(wanted) >= LOGS_MOST:
                left_out[app, container] += 1
                continue
            wish = Wish(seen.namespace(each), seen.name(each), container, seen.node_of(each))
            wanted.append(wish)
            if pods.restarted(status):
                wanted.append(wish._replace(previous=True))
    told = [
        f"logs of {count} more pods of {app}, container {container}, that fail alike were not read "
        "(groundplane doctor --node NODE reads a node's)"
        for (app, container), count in sorted(left_out.items())
    ]
    return Wishes(wanted, told)


def _worth_reading(
    pod: Object, suspicious: set[str], named: tuple[str, str] | None
) -> Iterator[tuple[Mapping[str, Any], str]]:
    everything = _is(pod, named) or (seen.node_of(pod) in suspicious and pods.layer_of(pod) is not None)
    if pods.ready(pod) and not everything:
        return
    for status in pods.statuses(pod):
        how = pods.unwell(status)
        running = (status.get("state") or {}).get("running") is not None
        if (how or (everything and running)) and pods.has_run(status):
            yield status, how or "ready"


_LATE: Final = "the time for it was over"


class _Trouble(NamedTuple):
    """Why a log could not be read. Those of one node that failed in one way are told once, with the first's words."""

    node: str
    way: str
    why: str


async def read_logs(
    client: "Client", wishes: Sequence[Wish], lines: int = LOG_LINES, until: float | None = None
) -> tuple[list[Log], list[str]]:
    """The logs, and sentences about those that could not be read; a log that is not there is no trouble.

    ``until`` is a time of the loop's clock, after which no log is waited for.
    """
    gate = asyncio.Semaphore(LOGS_AT_ONCE)

    async def one(wish: Wish) -> Log | _Trouble | None:
        async with gate:
            return await _read(client, wish, lines, until)

    results = await asyncio.gather(*map(one, wishes))
    return [each for each in results if isinstance(each, Log)], list(
        _told([each for each in results if isinstance(each, _Trouble)])
    )


def _told(troubles: Sequence[_Trouble]) -> Iterator[str]:
    counted = Counter((each.node, each.way) for each in troubles)
    first = {(each.node, each.way): each.why for each in reversed(troubles)}
    for (node, way), count in sorted(counted.items()):
        of_node = f" of node {node}" if node else ""
        yield f"{count} log{'s' if count > 1 else ''}{of_node} could not be read: {first[node, way]}"


_NO_LOG: Final = frozenset({400, 404})
"""What the API server answers when the pod has gone, or the container has no such run."""


async def _read(client: "Client", wish: Wish, lines: int, until: float | None) -> Log | _Trouble | None:
    kept: list[str] = []
    size = 0
    try:
        async with asyncio.timeout_at(until):
            async for line in client.logs(
                wish.pod, wish.namespace, container=wish.container, previous=wish.previous, tail_lines=lines
            ):
                kept.append(line)
                size += len(line)
                while size > LOG_BYTES and len(kept) > 1:
                    size -= len(kept.pop(0))
                if size > LOG_BYTES:
                    kept, size = [line[-LOG_BYTES:]], LOG_BYTES
    except TimeoutError:
        if not kept:
            return _Trouble("", _LATE, _LATE)
    except errors.ClusterError as error:
        if isinstance(error, errors.ApiError) and error.code in _NO_LOG:
            return None
        if lacking := permissions.missing(error):
            told = permissions.tell(permissions.Denied(each) for each in lacking)
            return _Trouble("", told, told)
        return _Trouble(wish.node, type(error).__name__, str(error))
    return Log(
        text="\n".join(kept),
        pod=wish.pod,
        container=wish.container,
        namespace=wish.namespace,
        node=wish.node,
        previous=wish.previous,
        when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(client.now())),
    )
