"""The values file that fits a cluster: each value with the reason for it and the check that asks for it.

The guide's six settings are always written (A57); beyond them only what this cluster needs (A58, contracts 3.3, 3.6).
What was found decides, then what is set already; nothing is guessed: what nobody could look at is said in a note. Lists
replace in Helm, so a list is written with the chart's own entries and those that are set already. A setting that may
hold a secret is never written, it is named. :func:`propose` is pure; :meth:`Proposal.text` is the file.
"""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import yaml
from msgspec.structs import replace

from ..api import names
from ..diagnose.evidence import NodeFacts as Seen
from ..diagnose.findings import Outcome
from ..diagnose.redact import is_sensitive
from ..node.toolkit.runtimes.distributions import DISTRIBUTIONS
from . import chart, lookups, trees
from .hops import Version
from .inquiry import Inquiry
from .lookups import Gpu
from .snapshot import NodeFacts, PodFacts, Settings
from .values import newest_driver
from .versions import numbers

WIDTH: Final = 112
OPERATORS_TOOLKIT: Final = "/usr/local/nvidia/toolkit"
KUBELET_ROOT_SINCE: Final = (26, 7)
"""First family whose chart knows ``hostPaths.kubeletRootDir``."""


class Setting(NamedTuple):
    """A value, why it is set, and the number of the check that says so."""

    path: str
    value: Any
    why: str
    check: str


class Proposal(NamedTuple):
    """Values for one release on one cluster."""

    release: str
    data_as_of: str
    settings: tuple[Setting, ...]
    notes: tuple[str, ...]
    """What a person has to decide or to add, a sentence each."""

    @property
    def tree(self) -> dict[str, Any]:
        """As Helm takes it."""
        made: dict[str, Any] = {}
        for setting in self.settings:
            made = trees.put(made, trees.parse(setting.path), setting.value)
        return made

    @property
    def text(self) -> str:
        """The file: every value under a comment that says why."""
        head = (
            f"Values of the gpu-operator chart {self.release} for this cluster, as preflight proposes them (support "
            f"matrix of {self.data_as_of}). Each says why, with the number of its check."
        )
        lines = [*_comment(head, 0), *(line for note in self.notes for line in _comment(f"NOTE: {note}", 0))]
        why = {trees.parse(setting.path): f"{setting.why} ({setting.check})" for setting in self.settings}
        return "\n".join([*lines, *_lines(self.tree, why, ())]) + "\n"


def _comment(text: str, depth: int) -> list[str]:
    indent = "  " * depth + "# "
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _lines(tree: Mapping[str, Any], why: Mapping[trees.Path, str], at: trees.Path) -> Iterator[str]:
    for key, value in tree.items():
        path = (*at, key)
        if path in why:
            yield from _comment(why[path], len(at))
            plain = yaml.safe_dump({key: value}, sort_keys=False, width=WIDTH)
            yield from (textwrap.indent(line, "  " * len(at)) for line in plain.splitlines())
        else:
            yield f"{'  ' * len(at)}{key}:"
            yield from _lines(value, why, path)


# --- What is known ----------------------------------------------------------------------------------------------------


def has_driver(node: NodeFacts, seen: Seen | None) -> bool | None:
    """Whether a node has a driver of its own: by the operator's label, else by what is on it; None if nobody knows."""
    if node.host_driver:
        return True
    if seen is None:
        return None
    facts = seen.facts
    own = bool(facts.get("host_library_version") or facts.get("host_tool"))
    return own and bool(facts.get("driver_version")) and not facts.get("driver_container")


def has_toolkit(seen: Seen | None) -> bool | None:
    """Whether a node has a toolkit of its own that containers get GPUs by; None if nobody looked."""
    if seen is None:
        return None
    facts = seen.facts
    programs = [str(path) for path in facts.get("toolkit") or () if not str(path).startswith(OPERATORS_TOOLKIT)]
    runtimes = [facts.get(name) for name in ("containerd", "crio")]
    default = any(isinstance(each, Mapping) and each.get("default_runtime") == "nvidia" for each in runtimes)
    return bool(programs) and (default or bool(facts.get("cdi_specs")))


def _gpus(inquiry: Inquiry) -> dict[str, Gpu]:
    """The GPUs of nodes that get their driver from the operator, by architecture."""
    found = (inquiry.gpu_of(node) for node in _served(inquiry))
    return {gpu.architecture: gpu for gpu in found if gpu is not None and gpu.architecture}


def _served(inquiry: Inquiry) -> list[NodeFacts]:
    return [node for node in inquiry.served if not has_driver(node, inquiry.node_facts.get(node.name))]


def _of(nodes: Iterable[NodeFacts]) -> str:
    return ", ".join(sorted({node.name for node in nodes})[:3])


def _and_more(nodes: list[NodeFacts]) -> str:
    """A few nodes' names and how many there are besides."""
    return _of(nodes) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


def _said(inquiry: Inquiry, path: str) -> Any:
    """What is set now."""
    return trees.get(inquiry.settings.tree, path)


# --- The guide's six --------------------------------------------------------------------------------------------------

Found = Iterator[Setting | str]
"""Settings, and notes."""


def _feature_discovery(inquiry: Inquiry) -> Found:
    elsewhere = [
        pod for pod in inquiry.snapshot.pods if pod.namespace != inquiry.snapshot.namespace and _discovers(pod)
    ]
    if elsewhere:
        where = elsewhere[0].namespace
        yield Setting("nfd.enabled", False, f"node feature discovery runs already, in namespace {where}", "A57")
        return
    if "pods" in inquiry.snapshot.unread:
        yield f"whether node feature discovery runs already is not known: {inquiry.snapshot.unread['pods']}"
    yield Setting("nfd.enabled", True, "no other node feature discovery was seen", "A57")


_DISCOVERS: Final = ("node-feature-discovery", "nfd", "nfd-worker", "nfd-master")


def _discovers(pod: PodFacts) -> bool:
    return pod.labels.get("app.kubernetes.io/name") in _DISCOVERS or pod.labels.get("app") in _DISCOVERS


def _driver(inquiry: Inquiry) -> Found:
    nodes = inquiry.snapshot.gpu_nodes
    known = {node.name: has_driver(node, inquiry.node_facts.get(node.name)) for node in nodes}
    host = [node for node in nodes if known[node.name]]
    unseen = [node for node in nodes if known[node.name] is None and not _runs_driver(inquiry, node)]
    if nodes and len(host) == len(nodes):
        yield Setting("driver.enabled", False, "every GPU node has a driver of its host", "A22")
    elif unseen and not inquiry.settings.driver:
        yield Setting("driver.enabled", False, "set so already; not all GPU nodes could be looked at", "A22")
    elif host:
        why = f"most nodes need one; {_and_more(host)} with a driver of the host are labelled and left alone"
        yield Setting("driver.enabled", True, why, "A22")
    else:
        yield Setting("driver.enabled", True, "no GPU node is known to have a driver of its host", "A22")
    if unseen:
        yield f"whether {_and_more(unseen)} have a driver of their own is known on the nodes only (--node-pods)"


def _runs_driver(inquiry: Inquiry, node: NodeFacts) -> bool:
    return any(pod.is_driver for pod in inquiry.snapshot.pods_on(node))


def _modules(inquiry: Inquiry, version: str) -> Found:
    """``driver.kernelModuleType`` for a driver."""
    matrix, gpus = inquiry.target.matrix, _gpus(inquiry)
    path, mine = "driver.kernelModuleType", inquiry.settings.module_type
    if inquiry.settings.open_modules and mine == "auto":
        mine = "open"
    fitting = [kind for kind in ("auto", "open", "proprietary") if _fits(inquiry, kind, gpus, version)]
    if mine in fitting and (mine != "auto" or not inquiry.settings.open_modules):
        why = "chosen by GPU and driver" if mine == "auto" else f"set so already, and it works with driver {version}"
        yield Setting(path, mine, why, "A42")
    elif fitting:
        said = lookups.module_type(matrix, next(iter(gpus), ""), mine, version)
        yield Setting(path, fitting[0], said.reason, "A42")
    else:
        yield f"no one kind of kernel modules fits {', '.join(sorted(gpus))} with driver {version}: use NVIDIADrivers"


def _fits(inquiry: Inquiry, kind: str, gpus: Mapping[str, Gpu], version: str) -> bool:
    matrix = inquiry.target.matrix
    verdicts = [lookups.module_type(matrix, each, kind, version) for each in gpus] or [
        lookups.module_type(matrix, "", kind, version)
    ]
    return all(each.outcome is Outcome.PASS for each in verdicts)


def _toolkit(inquiry: Inquiry) -> Found:
    nodes = inquiry.snapshot.gpu_nodes
    known = [has_toolkit(inquiry.node_facts.get(node.name)) for node in nodes]
    if nodes and all(known):
        yield Setting(
            "toolkit.enabled", False, "every GPU node has a toolkit of its host, and its runtime uses it", "A38"
        )
        if not all(has_driver(node, inquiry.node_facts.get(node.name)) for node in nodes):
            yield "the host's toolkit must look for the driver in /run/nvidia/driver (root, in its config.toml)"
    elif not inquiry.settings.toolkit and None in known:
        yield Setting("toolkit.enabled", False, "set so already; not all GPU nodes could be looked at", "A24")
    else:
        why = "not every GPU node has a toolkit of its own" if any(known) else "no toolkit of the host was found"
        yield Setting("toolkit.enabled", True, why, "A24")


def _cdi(inquiry: Inquiry) -> Found:
    since = inquiry.target.matrix.runtime_paths.cdi_default_since
    restrictions = inquiry.target.platform.cdi_restrictions if inquiry.target.platform else ()
    distributions = {node.distribution for node in inquiry.snapshot.candidates}
    restricted = [each for each in restrictions if any(name in each.lower() for name in distributions)]
    if restricted:
        yield Setting("cdi.enabled", False, restricted[0], "A44")
    elif numbers(inquiry.target.family) >= numbers(since):
        yield Setting("cdi.enabled", True, f"on by default since {since}: no runtime class is needed", "A44")
    else:
        why = f"set so already; on by default since {since}" if inquiry.cdi else f"off by default before {since}"
        yield Setting("cdi.enabled", inquiry.cdi, why, "A44")


def _mig(inquiry: Inquiry) -> Found:
    mine = inquiry.settings.mig_strategy
    nodes = inquiry.snapshot.gpu_nodes
    renamed = [node for node in nodes if any(name.startswith("nvidia.com/mig-") for name in node.capacity)]
    mixed = [node for node in nodes if "mixed" in node.labels.get(names.MIG_CONFIG, "") or _balanced(node)]
    if renamed and mine != "mixed":
        yield Setting("mig.strategy", "mixed", f"{_and_more(renamed)} offer MIG devices by their profile", "A57")
    elif mixed:
        why = f"the MIG layout of {_and_more(mixed)} has devices of several sizes"
        yield Setting("mig.strategy", "mixed", why, "A57")
    elif mine and mine != "single":
        yield Setting("mig.strategy", mine, "set so already", "A57")
    else:
        yield Setting("mig.strategy", "single", "no node has MIG devices of several sizes", "A57")


def _balanced(node: NodeFacts) -> bool:
    return "balanced" in node.labels.get(names.MIG_CONFIG, "")


# --- Only where it is needed ------------------------------------------------------------------------------------------


def _precompiled(inquiry: Inquiry) -> tuple[int, str] | None:
    """The branch of precompiled drivers to use, and why; None: drivers are built, or nobody's."""
    nodes = _served(inquiry)
    why = _why_precompiled(inquiry, nodes)
    if not why or not nodes:
        return None
    limits = [row.last_branch for row in _architectures(inquiry) if row.last_branch is not None]
    row = inquiry.target.row
    systems = {(inquiry.snapshot.os_key(node), node.kernel) for node in nodes}
    branches = {
        branch
        for each in (inquiry.target.platform.precompiled.values() if inquiry.target.platform else ())
        for branch in each.branches
        if branch <= min(limits, default=branch) and all(_published(inquiry, *system, branch) for system in systems)
    }
    wanted = row.driver.branch if row is not None else 0
    mine = numbers(inquiry.settings.driver_version)[:1] if inquiry.settings.precompiled else ()
    best = next((each for each in (*mine, wanted) if each in branches), max(branches, default=0))
    return (best, why) if best else None


def _published(inquiry: Inquiry, key: str, kernel: str, branch: int) -> bool:
    return inquiry.target.precompiled(key, kernel, str(branch)).outcome is Outcome.PASS


def _why_precompiled(inquiry: Inquiry, nodes: list[NodeFacts]) -> str:
    facts = {node.name: inquiry.node_facts[node.name].facts for node in nodes if node.name in inquiry.node_facts}
    signed = [node for node in nodes if facts.get(node.name, {}).get("secure_boot") is True]
    absent = [node for node in nodes if facts.get(node.name, {}).get("headers") == "absent"]
    if signed:
        return f"Secure Boot is on on {_and_more(signed)}, and modules built there have no signature (A27)"
    if absent:
        return f"no repository of {_and_more(absent)} has headers of the running kernel (A17)"
    return "set so already" if inquiry.settings.precompiled else ""


def _architectures(inquiry: Inquiry) -> list[Any]:
    table = inquiry.target.matrix.gpu.architectures
    return [table[name] for name in _gpus(inquiry) if name in table]


def _version(inquiry: Inquiry) -> Found:
    """``driver.version`` and the kind of image; then the kind of modules that this driver needs."""
    chosen = _precompiled(inquiry)
    mine = inquiry.settings.driver_version
    if chosen is not None:
        branch, why = chosen
        yield Setting("driver.usePrecompiled", True, why, "A40")
        yield Setting("driver.version", str(branch), "precompiled images are named by the driver's branch", "A41")
        yield from _modules(inquiry, str(branch))
        return
    if inquiry.settings.precompiled:
        yield "no precompiled driver is listed for all GPU nodes: drivers are built on the nodes instead (A40)"
    pinned = _pin(inquiry)
    default = inquiry.target.row.driver.default if inquiry.target.row is not None else ""
    form = inquiry.target.driver_form(mine, precompiled=False).outcome is Outcome.PASS
    planned = inquiry.planned is not None  # a ClusterPolicy says no more than what its release had by default
    own = mine if planned and form and mine != default and not inquiry.settings.precompiled else ""
    if pinned and (not own or not _knows(inquiry, own)):
        old = sorted(name for name in _gpus(inquiry) if inquiry.target.pin(name))
        why = f"driver {own or default} does not know {', '.join(old)} GPUs; this is the newest listed that does"
        yield Setting("driver.version", pinned, why, "A42")
        own = pinned
        if len(_gpus(inquiry)) > len(old):
            yield "to give newer GPUs a newer driver, describe drivers by NVIDIADriver objects, one for each pool"
    elif own:
        yield Setting("driver.version", own, "set so already", "A41")
    yield from _modules(inquiry, own or default)


def _pin(inquiry: Inquiry) -> str:
    """The newest listed driver that knows every GPU of the cluster; empty if the default does."""
    pins = [pin for name in _gpus(inquiry) if (pin := inquiry.target.pin(name))]
    if not pins or inquiry.target.row is None:
        return ""
    return newest_driver(inquiry.target.row.drivers_listed, min(numbers(pin)[0] for pin in pins))


def _knows(inquiry: Inquiry, driver: str) -> bool:
    matrix = inquiry.target.matrix
    return all(lookups.driver_branch(matrix, name, driver).outcome is not Outcome.FAIL for name in _gpus(inquiry))


def _nri(inquiry: Inquiry) -> Found:
    if not inquiry.settings.nri:
        return
    verdicts = [inquiry.target.nri(node.runtime) for node in inquiry.snapshot.candidates]
    if all(each.outcome is Outcome.PASS for each in verdicts):
        yield Setting("cdi.nriPluginEnabled", True, "set so already, and every node's runtime is listed for it", "A47")
    else:
        said = next(each for each in verdicts if each.outcome is not Outcome.PASS)
        yield Setting("cdi.nriPluginEnabled", False, said.reason, "A47")


def _runtime_paths(inquiry: Inquiry) -> Found:
    """The toolkit's environment where containerd's files are elsewhere; what else is set already stays."""
    distributions = sorted({node.distribution for node in inquiry.snapshot.candidates})
    wanted = {each: _env_of(inquiry, each) for each in distributions}
    special = [each for each in distributions if wanted[each]]
    if not special:
        return
    if len(distributions) > 1:
        yield (
            f"nodes run {', '.join(distributions)}, whose containerd has different paths, and toolkit.env is one for "
            "all: set it for one of them, and give the other nodes a toolkit of their own"
        )
        return
    mine = _said(inquiry, "toolkit.env") or []
    kept = [each for each in mine if isinstance(each, Mapping) and each.get("name") not in wanted[special[0]]]
    for each in kept:
        if is_sensitive(str(each.get("name"))):
            yield f"toolkit.env {each.get('name')} may hold a secret and is left out: lists replace, so add it yourself"
    made = [{"name": name, "value": value} for name, value in wanted[special[0]].items()]
    made += [dict(each) for each in kept if not is_sensitive(str(each.get("name")))]
    yield Setting("toolkit.env", made, f"where {special[0]} keeps containerd's configuration and socket", "A49")


_BY_DISTRIBUTION: Final = {"k0s": "k0s"}


def _env_of(inquiry: Inquiry, distribution: str) -> dict[str, str]:
    """The variables that a distribution needs; none where the toolkit's own defaults fit."""
    nri = inquiry.target.platform.nri if inquiry.target.platform else None
    if inquiry.settings.nri and nri is not None and distribution in ("k3s", "rke2", "k0s"):
        fine = all(inquiry.target.nri(node.runtime).outcome is Outcome.PASS for node in inquiry.snapshot.candidates)
        if fine and nri.k3s_rke2_k0s_env_not_needed:
            return {}
    listed = inquiry.target.runtime_env(distribution)
    if listed or distribution not in _BY_DISTRIBUTION:
        return listed
    known = next(each for each in DISTRIBUTIONS if each.name == _BY_DISTRIBUTION[distribution])
    return {"CONTAINERD_CONFIG": known.config, "CONTAINERD_SOCKET": known.socket}


_NODES_OWN: Final = "node.kubernetes.io/"
"""Beginning of taints that come and go with a node's condition."""


def _tolerations(inquiry: Inquiry) -> Found:
    """Operands, and who labels nodes, must run on GPU nodes whatever keeps others away."""
    defaults = chart.defaults(Version.parse(inquiry.target.version))
    taints = sorted({taint for node in inquiry.snapshot.gpu_nodes for taint in node.taints})
    for path in ("daemonsets.tolerations", "node-feature-discovery.worker.tolerations"):
        if path.startswith("node-feature") and any(
            each.value is False for each in _settings(_feature_discovery(inquiry))
        ):
            continue
        base = _said(inquiry, path) or trees.get(defaults, path) or []
        lacking = [each for each in taints if not _passing(each) and not any(_tolerates(one, each) for one in base)]
        if lacking:
            why = f"GPU nodes have the taints {', '.join(lacking)}"
            yield Setting(path, [*base, *map(_toleration, lacking)], why, "A10")


def _passing(taint: str) -> bool:
    return taint.startswith(_NODES_OWN) or taint.endswith(":PreferNoSchedule")


def _tolerates(toleration: Mapping[str, Any], taint: str) -> bool:
    key, _, rest = taint.partition("=")
    value, _, effect = rest.rpartition(":")
    if toleration.get("effect") not in (None, "", effect) or toleration.get("key") not in (None, "", key):
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == value


def _toleration(taint: str) -> dict[str, str]:
    key, _, rest = taint.partition("=")
    return {"key": key, "operator": "Exists", "effect": rest.rpartition(":")[2]}


def _openshift(inquiry: Inquiry) -> Found:
    if inquiry.snapshot.openshift:
        yield Setting("platform.openshift", True, "the cluster is OpenShift", "A3")
        yield Setting(
            "operator.use_ocp_driver_toolkit", True, "drivers are built with OpenShift's driver toolkit", "A3"
        )


def _kubelet(inquiry: Inquiry) -> Found:
    roots = {str(seen.facts["kubelet_root"]) for seen in inquiry.node_facts.values() if seen.facts.get("kubelet_root")}
    if roots in (set(), {names.KUBELET_ROOT}):
        return
    if len(roots) > 1 or numbers(inquiry.target.family) < KUBELET_ROOT_SINCE:
        yield f"kubelets keep their files in {', '.join(sorted(roots))}; the chart knows one folder, from 26.7 on (A31)"
        return
    yield Setting("hostPaths.kubeletRootDir", roots.pop(), "where the kubelets of the nodes keep their files", "A31")


def _vgpu(inquiry: Inquiry) -> Found:
    if inquiry.vgpu:
        yield "vGPU: set driver.repository, image and version to your guest driver, and driver.licensingConfig (A6)"


RULES: Final[tuple[Callable[[Inquiry], Found], ...]] = (
    *(_feature_discovery, _driver, _version, _toolkit, _cdi, _mig),
    *(_nri, _runtime_paths, _tolerations, _openshift, _kubelet, _vgpu),
)
"""In the order of the file: the guide's six first (the kind of modules comes with the driver's version)."""


def propose(inquiry: Inquiry) -> Proposal:
    """The values file that fits a cluster."""
    found = [each for rule in RULES for each in rule(inquiry)]
    settings = _consistent(list(_settings(found)))
    return Proposal(
        release=f"v{inquiry.target.version}",
        data_as_of=str(inquiry.target.matrix.data_as_of),
        settings=tuple(settings),
        notes=tuple(dict.fromkeys(each for each in found if isinstance(each, str))),
    )


def _settings(found: Iterable[Setting | str]) -> Iterator[Setting]:
    return (each for each in found if isinstance(each, Setting))


def _consistent(settings: list[Setting]) -> list[Setting]:
    """Without what the chart would refuse, or nobody would read: drivers where there are none, NRI without CDI."""
    value = {setting.path: setting.value for setting in settings}
    gone = set()
    if value.get("driver.enabled") is False:
        gone |= {"driver.version", "driver.usePrecompiled"}
    if value.get("toolkit.enabled") is False:
        gone |= {"toolkit.env", "cdi.nriPluginEnabled"}
    if value.get("cdi.enabled") is False:
        gone.add("cdi.nriPluginEnabled")
    return [each for each in settings if each.path not in gone]


def with_proposal(inquiry: Inquiry, proposal: Proposal) -> Inquiry:
    """The same cluster, with the proposed values to be installed: what preflight says then is what is left to do."""
    return replace(inquiry, planned=Settings.of(proposal.tree), planned_source="proposed values")
