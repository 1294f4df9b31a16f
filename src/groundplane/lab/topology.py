"""Which pods keep others away from a topology domain, or draw them there: required pod affinity and anti-affinity.

Kept by node, so that a question costs the pods of the domains concerned. Where a pod fits otherwise is `fitting`'s.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from . import placement
from .controllers import objects
from .controllers.cache import Cache, PodCache
from .controllers.objects import Doc, Key, Obj
from .fitting import NodeState, Refusal

AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"


def required_terms(spec: Doc, kind: str) -> Sequence[Doc]:
    """The required terms of `podAffinity` or `podAntiAffinity`."""
    affinity = (spec.get("affinity") or {}).get(kind) or {}
    terms: Sequence[Doc] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    return terms


class Topology:
    """Which bound pods are in which topology domain: nodes by label value, and pods that keep others away."""

    def __init__(self, nodes: Mapping[str, NodeState], pods: PodCache, namespaces: Cache) -> None:
        self._nodes = nodes
        self._pods = pods
        self._namespaces = namespaces
        self._domains: dict[str, defaultdict[str, set[str]]] = {}
        self._keeping_away: dict[str, dict[Key, Obj]] = {}
        self._away_keys: Counter[str] = Counter()

    def node_changed(self, name: str, old: Obj | None, new: Obj | None) -> None:
        """Note a node's labels."""
        for key, domains in self._domains.items():
            before = placement.node_labels(old).get(key) if old is not None else None
            after = placement.node_labels(new).get(key) if new is not None else None
            if before is not None and before != after:
                domains[before].discard(name)
            if after is not None:
                domains[after].add(name)

    def pod_bound(self, node: str, pod: Obj) -> None:
        """Note a pod that runs on a node, if it keeps others away."""
        terms = required_terms(pod["spec"], "podAntiAffinity")
        if terms:
            self._keeping_away.setdefault(node, {})[objects.key(pod)] = pod
            self._away_keys.update(term["topologyKey"] for term in terms)

    def pod_gone(self, node: str, key: Key) -> None:
        """Forget a pod."""
        found = self._keeping_away.get(node)
        pod = found.pop(key, None) if found is not None else None
        if pod is not None:
            self._away_keys.subtract(term["topologyKey"] for term in required_terms(pod["spec"], "podAntiAffinity"))
        if found is not None and not found:
            del self._keeping_away[node]

    def refusal(self, pod: Obj, node: Obj, without: Collection[Key] = ()) -> Refusal | None:
        """Why other pods, those of `without` left aside, keep a pod off a node or are missing there."""
        spec = pod["spec"]
        terms = required_terms(spec, "podAffinity")
        if not all(self._affinity_holds(term, pod, node, without) for term in terms):
            return Refusal((AFFINITY,), resolvable=False)
        terms = required_terms(spec, "podAntiAffinity")
        if any(self._matches_in_domain(term, pod, node, without) for term in terms):
            return Refusal((ANTI_AFFINITY,))
        if self._kept_away(pod, node, without):
            return Refusal((EXISTING_ANTI_AFFINITY,))
        return None

    def _kept_away(self, pod: Obj, node: Obj, without: Collection[Key]) -> bool:
        if not self._keeping_away:
            return False
        labels = placement.node_labels(node)
        for name in self._neighbours(labels):
            for key_of_other, other in self._keeping_away.get(name, {}).items():
                for term in required_terms(other["spec"], "podAntiAffinity"):
                    there = self._nodes[name].node
                    key = term["topologyKey"]
                    same_domain = there is not None and labels.get(key) == placement.node_labels(there).get(key)
                    apart = same_domain and key in labels and key_of_other not in without
                    if apart and self._selects(term, other, pod):
                        return True
        return False

    def _neighbours(self, labels: placement.Labels) -> set[str]:
        """The nodes that share a domain, of any key a keeping-away pod uses, with a node of these labels."""
        names: set[str] = set()
        for key, uses in self._away_keys.items():
            if uses and key in labels:
                names |= self._domain(key)[labels[key]] & self._keeping_away.keys()
        return names

    def _domain(self, key: str) -> defaultdict[str, set[str]]:
        found = self._domains.get(key)
        if found is None:
            found = self._domains[key] = defaultdict(set)
            for name, state in self._nodes.items():
                value = placement.node_labels(state.node).get(key) if state.node is not None else None
                if value is not None:
                    found[value].add(name)
        return found

    def _affinity_holds(self, term: Doc, pod: Obj, node: Obj, without: Collection[Key]) -> bool:
        """A term also holds for the first pod of a group that is to stick together: it matches its own term."""
        if term["topologyKey"] not in placement.node_labels(node):
            return False
        if self._matches_in_domain(term, pod, node, without):
            return True
        return self._selects(term, pod, pod) and not self._matches_anywhere(term, pod, without)

    def _matches_in_domain(self, term: Doc, pod: Obj, node: Obj, without: Collection[Key]) -> bool:
        value = placement.node_labels(node).get(term["topologyKey"])
        if value is None:
            return False
        return any(
            self._selects(term, pod, other)
            for name in self._domain(term["topologyKey"])[value]
            for other in self._bound(name, without)
        )

    def _matches_anywhere(self, term: Doc, pod: Obj, without: Collection[Key]) -> bool:
        return any(self._selects(term, pod, other) for name in self._nodes for other in self._bound(name, without))

    def _bound(self, node: str, without: Collection[Key]) -> Iterator[Obj]:
        for key in self._nodes[node].pods:
            pod = self._pods.at(key) if key not in without else None
            if pod is not None:
                yield pod

    def _selects(self, term: Doc, owner: Obj, other: Obj) -> bool:
        """Whether a term of `owner` is about `other`."""
        namespace = other["metadata"]["namespace"]
        named = term.get("namespaces") or ()
        by_label = term.get("namespaceSelector")
        if by_label is not None:
            found = self._namespaces.get(namespace)
            inside = namespace in named or (found is not None and placement.selects(by_label, objects.labels(found)))
        else:
            inside = namespace in (named or (owner["metadata"]["namespace"],))
        return inside and placement.selects(term.get("labelSelector"), objects.labels(other))
