"""EndpointSlices: the addresses of the pods behind a Service.

One IPv4 slice holds up to a hundred endpoints; a pod's change rewrites only the slice it is in. Services without a
selector and other address families are left alone.
"""

from collections.abc import Mapping, Sequence

from .. import placement
from ..resources import ENDPOINT_SLICES, SERVICES
from . import objects
from .cache import same
from .loop import Loop
from .objects import Doc, Key, Obj
from .shared import Shared

SERVICE_LABEL = "kubernetes.io/service-name"
MANAGED_LABEL = "endpointslice.kubernetes.io/managed-by"
HEADLESS_LABEL = "service.kubernetes.io/headless"
MANAGER = "endpointslice-controller.k8s.io"
MAX_ENDPOINTS = 100
BATCH_S = 1.0
"""Cluster seconds in which the changes of a Service's pods are gathered."""
BATCH_REAL_S = 0.1
"""And at least this many real seconds."""


def endpoint_of(service: Doc, pod: Doc) -> Obj | None:
    """A pod as an endpoint of a Service; None while it has no address or has ended."""
    address = (pod.get("status") or {}).get("podIP")
    if not address or objects.finished(pod):
        return None
    serving = objects.ready(pod)
    going = objects.deleting(pod)
    published = bool(service["spec"].get("publishNotReadyAddresses"))
    return {
        "addresses": [address],
        "conditions": {"ready": published or (serving and not going), "serving": serving, "terminating": going},
        "nodeName": objects.node_name(pod),
        "targetRef": {
            "kind": "Pod",
            "name": pod["metadata"]["name"],
            "namespace": pod["metadata"]["namespace"],
            "uid": objects.uid(pod),
        },
    }


def ports_of(service: Doc, pods: Sequence[Doc]) -> list[Obj]:
    """A Service's ports as its pods have them; a named target port is looked up in the first pod that has it."""
    ports = []
    for port in service["spec"].get("ports") or ():
        target = port.get("targetPort", port["port"])
        number = target if isinstance(target, int) else _named_port(target, pods)
        if number is not None:
            ports.append({"name": port.get("name") or "", "port": number, "protocol": port.get("protocol") or "TCP"})
    return ports


def _named_port(name: str, pods: Sequence[Doc]) -> int | None:
    for pod in pods:
        for container in pod["spec"].get("containers") or ():
            for port in container.get("ports") or ():
                if port.get("name") == name:
                    return int(port["containerPort"])
    return None


def labels_of(service: Doc) -> dict[str, str]:
    """The labels of a Service's slices: its own, and those that say whose they are."""
    headless = {HEADLESS_LABEL: ""} if service["spec"].get("clusterIP") == "None" else {}
    name = service["metadata"]["name"]
    return {**objects.labels(service), SERVICE_LABEL: name, MANAGED_LABEL: MANAGER, **headless}


def distribute(
    endpoints: Mapping[str, Obj], slices: Mapping[str, Sequence[str]]
) -> tuple[dict[str, list[str]], list[list[str]]]:
    """Which pods (by UID) each slice should hold, and the new slices needed.

    Pods stay where they are; free places are filled before slices are added.
    """
    placed: dict[str, list[str]] = {}
    seen: set[str] = set()
    for name, uids in slices.items():
        placed[name] = [uid for uid in uids if uid in endpoints and uid not in seen]
        seen.update(placed[name])
    waiting = [uid for uid in endpoints if uid not in seen]
    for uids in placed.values():
        free = MAX_ENDPOINTS - len(uids)
        uids.extend(waiting[:free])
        waiting = waiting[free:]
    return placed, [waiting[start : start + MAX_ENDPOINTS] for start in range(0, len(waiting), MAX_ENDPOINTS)]


class EndpointSliceController:
    """Keeps the slices of every Service that has a selector."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._services = shared.owned(SERVICES)
        self._slices = shared.owned(ENDPOINT_SLICES)
        self._members: dict[Key, dict[Key, None]] = {}
        self.loop: Loop[Key] = Loop("endpointslice", self._reconcile, shared.clock)
        self._services.subscribe(self._service_changed)
        shared.pods.subscribe(self._pod_changed)
        self._slices.subscribe(self._slice_changed)

    def _service_changed(self, old: Obj | None, new: Obj | None) -> None:
        if new is None:
            if old is not None:
                self._members.pop(objects.key(old), None)
        elif not same(old, new, "spec", "metadata.labels"):
            key = objects.key(new)
            if not same(old, new, "spec.selector"):
                pods = self._shared.pods.in_namespace(key[0])
                self._members[key] = {objects.key(pod): None for pod in pods if _behind(new, pod)}
            self.loop.add(key)

    def _slice_changed(self, old: Obj | None, new: Obj | None) -> None:
        if old is not None and not same(old, new, "endpoints", "ports", "metadata.labels"):
            name = objects.labels(old).get(SERVICE_LABEL)
            if name and objects.labels(old).get(MANAGED_LABEL) == MANAGER:
                self._later((old["metadata"]["namespace"], name))

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        paths = ("metadata.labels", "metadata.deletionTimestamp", "status.conditions", "status.podIP", "status.phase")
        some = new if new is not None else old
        if some is None or same(old, new, *paths):
            return
        key = objects.key(some)
        for service in self._services.in_namespace(key[0]):
            members = self._members.setdefault(objects.key(service), {})
            if new is not None and _behind(service, new):
                members[key] = None
            elif key not in members:
                continue
            else:
                del members[key]
            self._later(objects.key(service))

    def _later(self, key: Key) -> None:
        self.loop.add_after(key, max(BATCH_S, BATCH_REAL_S * self._shared.clock.speed))

    def _reconcile(self, key: Key) -> None:
        service = self._services.at(key)
        if service is None or not service["spec"].get("selector") or objects.deleting(service):
            return
        found = (self._shared.pods.at(member) for member in self._members.get(key, ()))
        pods = sorted((pod for pod in found if pod is not None), key=objects.created)
        endpoints = {}
        for pod in pods:
            endpoint = endpoint_of(service, pod)
            if endpoint is not None:
                endpoints[objects.uid(pod)] = endpoint
        self._write(service, endpoints, ports_of(service, pods))

    def _write(self, service: Obj, endpoints: Mapping[str, Obj], ports: list[Obj]) -> None:
        known = {each["metadata"]["name"]: each for each in self._slices.by_owner[objects.uid(service)]}
        held = {
            name: [point["targetRef"]["uid"] for point in each.get("endpoints") or ()] for name, each in known.items()
        }
        placed, more = distribute(endpoints, held)
        labels = labels_of(service)
        for name, uids in placed.items():
            wanted = [endpoints[uid] for uid in uids]
            present = known[name]
            if not wanted and len(known) > 1:
                self._shared.delete(ENDPOINT_SLICES, known.pop(name))
            elif (wanted, ports, labels) != (
                present.get("endpoints") or [],
                present.get("ports") or [],
                objects.labels(present),
            ):
                metadata = {**present["metadata"], "labels": labels}
                changed = {**present, "metadata": metadata, "endpoints": wanted, "ports": ports}
                self._shared.update(ENDPOINT_SLICES, changed)
        for uids in more or ([[]] if not known else []):
            self._create(service, [endpoints[uid] for uid in uids], ports)

    def _create(self, service: Obj, endpoints: list[Obj], ports: list[Obj]) -> None:
        name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
        document = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "generateName": f"{name}-",
                "namespace": namespace,
                "labels": labels_of(service),
                "ownerReferences": [objects.owner_reference(service, "v1", "Service")],
            },
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": ports,
        }
        self._shared.create(ENDPOINT_SLICES, document, namespace)


def _behind(service: Doc, pod: Doc) -> bool:
    """Whether a pod is behind a Service: it matches the selector, and there is one."""
    selector = service["spec"].get("selector")
    return bool(selector) and placement.selects_map(selector, objects.labels(pod))
