"""Namespaces: what every one of them contains, and how one that is deleted is emptied.

A new namespace gets the service account `default` and the ConfigMap `kube-root-ca.crt`, and gets them again when they
are deleted. A namespace that is going is emptied resource by resource; what is left, and why, is in its conditions;
when nothing is left its finalizer `kubernetes` is taken away.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ..resources import CONFIG_MAPS, NAMESPACES, PODS, SERVICE_ACCOUNTS, Resource
from ..status import StatusError
from . import objects
from .everything import Everything
from .loop import Loop
from .objects import Doc, Obj
from .shared import Shared

FINALIZER = "kubernetes"
ROOT_CA = "kube-root-ca.crt"
ROOT_CA_NOTE = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes "
    "clusters."
)


class Rule(NamedTuple):
    """A condition of a namespace that is going: its reasons with and without a problem, and the text without."""

    kind: str
    bad: str
    good: str
    message: str


CONDITIONS: Sequence[Rule] = (
    Rule(
        "NamespaceDeletionDiscoveryFailure",
        "DiscoveryFailed",
        "ResourcesDiscovered",
        "All resources successfully discovered",
    ),
    Rule(
        "NamespaceDeletionGroupVersionParsingFailure",
        "GroupVersionParsingFailed",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    Rule(
        "NamespaceDeletionContentFailure",
        "ContentDeletionFailed",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    Rule("NamespaceContentRemaining", "SomeResourcesRemain", "ContentRemoved", "All content successfully removed"),
    Rule(
        "NamespaceFinalizersRemaining",
        "SomeFinalizersRemain",
        "ContentHasNoFinalizers",
        "All content-preserving finalizers finished",
    ),
)


class NamespaceController:
    """Furnishes namespaces, and empties those that are deleted."""

    def __init__(self, shared: Shared, everything: Everything, *, root_ca: str = "") -> None:
        self._shared = shared
        self._everything = everything
        self._root_ca = root_ca
        self._namespaces = shared.cache(NAMESPACES)
        self._terminating: set[str] = set()
        self.loop: Loop[str] = Loop("namespace", self._reconcile, shared.clock)
        self._namespaces.subscribe(self._namespace_changed)
        shared.cache(SERVICE_ACCOUNTS).subscribe(self._furniture_changed)
        shared.cache(CONFIG_MAPS).subscribe(self._furniture_changed)
        everything.subscribe(self._content_changed)

    def _namespace_changed(self, old: Obj | None, new: Obj | None) -> None:
        some = new if new is not None else old
        if some is None:
            return
        name = some["metadata"]["name"]
        if new is None:
            self._terminating.discard(name)
        elif objects.deleting(new):
            self._terminating.add(name)
        if old is None or new is None or objects.deleting(old) != objects.deleting(new):
            self.loop.add(name)

    def _furniture_changed(self, old: Obj | None, new: Obj | None) -> None:
        ours = old is not None and old["metadata"]["name"] in ("default", ROOT_CA)
        if ours and old is not None and (new is None or new.get("data") != old.get("data")):
            self.loop.add(old["metadata"]["namespace"])

    def _content_changed(self, resource: Resource, old: Obj | None, new: Obj | None) -> None:
        if not self._terminating or not resource.namespaced:
            return
        some = new if new is not None else old
        if some is not None and some["metadata"].get("namespace") in self._terminating and (new is None or old is None):
            self.loop.add(some["metadata"]["namespace"])

    def _reconcile(self, name: str) -> None:
        namespace = self._namespaces.get(name)
        if namespace is None:
            return
        if objects.deleting(namespace):
            self._empty(name)
        else:
            self._furnish(name)

    # --- furnishing ---------------------------------------------------------------------------------------------------

    def _furnish(self, name: str) -> None:
        if self._shared.cache(SERVICE_ACCOUNTS).get("default", name) is None:
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
            self._create(SERVICE_ACCOUNTS, account)
        data = {"ca.crt": self._root_ca}
        known = self._shared.cache(CONFIG_MAPS).get(ROOT_CA, name)
        if known is None:
            metadata = {
                "name": ROOT_CA,
                "namespace": name,
                "annotations": {"kubernetes.io/description": ROOT_CA_NOTE},
            }
            self._create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
        elif known.get("data") != data:
            self._shared.update(CONFIG_MAPS, {**known, "data": data})

    def _create(self, resource: Resource, document: Obj) -> None:
        try:
            self._shared.create(resource, document, document["metadata"]["namespace"])
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise

    # --- emptying -----------------------------------------------------------------------------------------------------

    def _empty(self, name: str) -> None:
        remaining: Counter[str] = Counter()
        finalizers: Counter[str] = Counter()
        failures: list[str] = []
        for resource in map(self._everything.current, self._everything):
            if resource.namespaced:
                try:
                    self._empty_resource(resource, name)
                except StatusError as error:
                    failures.append(f"{resource.qualified}: {error.message}")
                for item in self._items(resource, name):
                    remaining[resource.plural + ("." + resource.group if resource.group else ".")] += 1
                    finalizers.update(item["metadata"].get("finalizers") or ())
        self._report(name, remaining, finalizers, failures)
        if not remaining and not failures:
            self._finalize(name)
        elif failures:
            raise StatusError(500, "InternalError", f"namespace {name} is not empty yet: {'; '.join(failures)}")

    def _items(self, resource: Resource, name: str) -> list[Obj]:
        if resource.id == PODS.id:
            return self._shared.pods.in_namespace(name)
        found: list[Obj] = self._shared.api.list(resource, name)["items"]
        return found

    def _empty_resource(self, resource: Resource, name: str) -> None:
        for item in self._items(resource, name):
            if not objects.deleting(item):
                self._shared.delete(resource, item, propagation="Background")

    def _report(self, name: str, remaining: Counter[str], finalizers: Counter[str], failures: list[str]) -> None:
        namespace = self._namespaces.get(name)
        if namespace is None:
            return
        left = ", ".join(f"{kind} has {count} resource instances" for kind, count in sorted(remaining.items()))
        held = ", ".join(f"{each} in {count} resource instances" for each, count in sorted(finalizers.items()))
        wrong = "; ".join(failures)
        said = {
            "NamespaceDeletionContentFailure": wrong,
            "NamespaceContentRemaining": left and f"Some resources are remaining: {left}",
            "NamespaceFinalizersRemaining": held and f"Some content in the namespace has finalizers remaining: {held}",
        }
        status = dict(namespace.get("status") or {})
        conditions: list[Obj] = list(status.get("conditions") or ())
        for rule in CONDITIONS:
            problem = said.get(rule.kind) or ""
            wanted = {
                "type": rule.kind,
                "status": "True" if problem else "False",
                "reason": rule.bad if problem else rule.good,
                "message": problem or rule.message,
            }
            if not _holds(conditions, wanted):
                conditions = objects.set_conditions(conditions, wanted, self._shared.clock.timestamp())
        self._shared.set_status(NAMESPACES, namespace, {**status, "conditions": conditions})

    def _finalize(self, name: str) -> None:
        namespace = self._namespaces.get(name)
        if namespace is None:
            return
        spec = namespace.get("spec") or {}
        kept = [each for each in spec.get("finalizers") or () if each != FINALIZER]
        self._shared.update(NAMESPACES, {**namespace, "spec": {**spec, "finalizers": kept}}, subresource="finalize")


def _holds(conditions: list[Obj], wanted: Doc) -> bool:
    return any(wanted.items() <= each.items() for each in conditions)
