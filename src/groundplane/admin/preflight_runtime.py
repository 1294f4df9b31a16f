"""Preflight of CDI, NRI and the runtime's paths, and of pods that go round them (A31, A44..A50), from the API."""

from collections.abc import Iterator, Mapping
from typing import Final

from ..diagnose.findings import Action, Evidence, Finding, Outcome, Severity
from .inquiry import Answers, Inquiry, of_node, switched_off
from .lookups import Verdict
from .snapshot import VISIBLE_DEVICES, PodFacts
from .versions import numbers

CDI_DEFAULT_SINCE: Final = "runtime_paths.cdi_default_since"
RUNTIME_CLASS: Final = "nvidia"


ANSWERS: Final = Answers()


@ANSWERS.check("A44", "settings")
def _cdi(inquiry: Inquiry) -> Iterator[Finding]:
    since = inquiry.target.matrix.runtime_paths.cdi_default_since
    by_default = numbers(inquiry.target.family) >= numbers(since)
    mode = f"CDI is {'on' if inquiry.cdi else 'off'}"
    if inquiry.cdi or not by_default:
        restrictions = inquiry.target.platform.cdi_restrictions if inquiry.target.platform else ()
        notes = [Evidence("support matrix, cdi_restrictions", text) for text in restrictions] if inquiry.cdi else []
        broken = [note for note in notes if _restricted(inquiry, note.excerpt)]
        if broken:
            yield inquiry.finding(
                "A44",
                Outcome.FAIL,
                f"{mode}, which does not work on this distribution with v{inquiry.target.version}",
                inquiry.set_to("cdi.enabled=true"),
                *broken,
                fix=("set cdi.enabled=false", "or install a later patch of the release"),
                action=Action.CHANGE_CONFIG,
            )
            return
        yield inquiry.finding(
            "A44", Outcome.PASS, mode, inquiry.set_to(f"cdi.enabled={str(inquiry.cdi).lower()}"), *notes
        )
        return
    verdict = Verdict(
        outcome=Outcome.WARN,
        reason=f"{mode} by setting; it is on by default since {since}",
        row=CDI_DEFAULT_SINCE,
        fix=("remove cdi.enabled=false unless a workload needs it",),
    )
    yield inquiry.judged("A44", verdict, inquiry.set_to("cdi.enabled=false"))


def _restricted(inquiry: Inquiry, text: str) -> bool:
    """Whether a documented restriction names this release and a distribution that nodes run."""
    words = text.lower().replace(",", " ").split()
    return inquiry.target.version in words and any(
        node.distribution in words for node in inquiry.snapshot.candidates if node.distribution
    )


@ANSWERS.check("A45", "pods")
def _runtime_classes(inquiry: Inquiry) -> Iterator[Finding]:
    """A needless class is told, not warned of: such pods work as long as the class exists."""
    named = [pod for pod in _workloads(inquiry) if pod.runtime_class == RUNTIME_CLASS and pod.limits]
    evidence = [Evidence(f"pod/{pod.where} spec.runtimeClassName", pod.runtime_class) for pod in named]
    title = "no pod with a limit on GPUs names a runtime class"
    if named:
        title = f"{len(named)} pods with a limit on GPUs need not name runtimeClassName {RUNTIME_CLASS}"
    yield inquiry.finding("A45", Outcome.PASS, title, *evidence, severity=Severity.INFO)


@ANSWERS.check("A46", "pods")
def _bypasses(inquiry: Inquiry) -> Iterator[Finding]:
    named = [pod for pod in _workloads(inquiry) if pod.visible_devices]
    if not named:
        yield inquiry.finding("A46", Outcome.PASS, f"no pod sets {VISIBLE_DEVICES} without a limit on GPUs")
        return
    yield inquiry.finding(
        "A46",
        Outcome.WARN,
        f"{len(named)} pods set {VISIBLE_DEVICES} without a limit on GPUs: they may use GPUs given to others",
        *(Evidence(f"pod/{pod.where} {VISIBLE_DEVICES}", ", ".join(pod.visible_devices)) for pod in named),
        fix=("ask for GPUs by a limit on the resource, and remove the variable",),
        action=Action.CHECK_WORKLOAD,
    )


def _workloads(inquiry: Inquiry) -> list[PodFacts]:
    """Pods that are not the operator's."""
    return [pod for pod in inquiry.snapshot.pods if pod.namespace != inquiry.snapshot.namespace]


@ANSWERS.check("A47", "nodes", "settings")
def _nri(inquiry: Inquiry) -> Iterator[Finding]:
    settings = inquiry.settings
    if not settings.nri:
        yield switched_off(inquiry, "A47", "cdi.nriPluginEnabled=false")
        return
    for node in inquiry.snapshot.candidates:
        verdict = inquiry.target.nri(node.runtime, cdi=inquiry.cdi, toolkit=settings.toolkit)
        seen = of_node(node, "status.nodeInfo.containerRuntimeVersion", node.runtime)
        yield inquiry.judged("A47", verdict, seen, node=node.name)


@ANSWERS.check("A48", "settings")
def _nri_off(inquiry: Inquiry) -> Iterator[Finding]:
    """Information only: NRI is a choice."""
    nri = inquiry.target.platform.nri if inquiry.target.platform else None
    title = "NRI is off, as it should be at first"
    if inquiry.settings.nri:
        title = f"NRI is on: {nri.maturity}" if nri and nri.maturity else "NRI is on: start without it where you can"
    yield inquiry.finding("A48", Outcome.PASS, title, severity=Severity.INFO)


@ANSWERS.check("A49", "nodes", "settings")
def _paths(inquiry: Inquiry) -> Iterator[Finding]:
    settings = inquiry.settings
    if not settings.toolkit:
        yield switched_off(inquiry, "A49", "toolkit.enabled=false")
        return
    nri = inquiry.target.platform.nri if inquiry.target.platform else None
    for node in inquiry.snapshot.candidates:
        env = Evidence(
            f"{inquiry.settings_source} toolkit.env",
            ", ".join(
                f"{name}={value}" if name in _SHOWN else name for name, value in sorted(settings.toolkit_env.items())
            )
            or "empty",
        )
        if (
            settings.nri
            and nri is not None
            and nri.k3s_rke2_k0s_env_not_needed
            and node.distribution in _NRI_NEEDS_NONE
        ):
            title = f"with NRI, {node.distribution} needs no paths"
            yield inquiry.finding("A49", Outcome.SKIP, title, env, node=node.name)
        else:
            verdict = inquiry.target.toolkit_env(node.distribution, settings.toolkit_env)
            kubelet = of_node(node, "status.nodeInfo.kubeletVersion", node.kubelet)
            yield inquiry.judged("A49", verdict, kubelet, env, node=node.name)


_SHOWN: Final = ("CONTAINERD_CONFIG", "CONTAINERD_SOCKET", "RUNTIME_CONFIG_SOURCE", "RUNTIME_DROP_IN_CONFIG")
"""Variables of the toolkit that are shown with their values; of others, which may hold secrets, the name."""
_NRI_NEEDS_NONE: Final = ("k3s", "rke2", "k0s")

REGENERATED_BY: Final[Mapping[str, str]] = {
    "k3s": "the k3s or k3s-agent service, at every start",
    "rke2": "the rke2-server or rke2-agent service, at every start",
    "k0s": "the k0s worker, at every start",
    "microk8s": "the MicroK8s snap, from its template, at every start and refresh",
    "aks": "the node image, when AKS upgrades or reimages the node",
    "gke": "the node image, when GKE upgrades, repairs or recreates the node",
}
"""Who writes the container runtime's configuration anew, by distribution (A50)."""


@ANSWERS.check("A50", "nodes")
def _regenerated(inquiry: Inquiry) -> Iterator[Finding]:
    for node in inquiry.snapshot.candidates:
        kubelet = of_node(node, "status.nodeInfo.kubeletVersion", node.kubelet)
        service = REGENERATED_BY.get(node.distribution, "")
        if not service:
            title = "no service is known to write the runtime's configuration anew"
            yield inquiry.finding("A50", Outcome.PASS, title, kubelet, node=node.name)
            continue
        yield inquiry.finding(
            "A50",
            Outcome.WARN,
            f"the runtime's configuration on {node.distribution} is written anew by {service}",
            kubelet,
            node=node.name,
            fix=(
                "keep what the toolkit sets in a drop-in or template that the service leaves, and check after restarts",
            ),
        )


@ANSWERS.check("A31", "nodes")
def _kubelets(inquiry: Inquiry) -> Iterator[Finding]:
    """A node's Ready condition; what the kubelet's directories are is known on the node only."""
    for node in inquiry.snapshot.candidates:
        seen = of_node(node, "condition Ready", "True" if node.ready else "not True")
        if node.ready:
            yield inquiry.finding("A31", Outcome.PASS, "the kubelet says that its node is ready", seen, node=node.name)
            continue
        yield inquiry.finding(
            "A31",
            Outcome.FAIL,
            "the node is not ready: nothing can be installed on it",
            seen,
            node=node.name,
            confirm="systemctl status kubelet",
            fix=("bring the kubelet, or the runtime under it, back first",),
        )
