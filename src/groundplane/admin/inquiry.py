"""What preflight is asked, and how its checks answer: shared by the modules of checks, free of any check itself."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from ..api import names
from ..diagnose import evidence
from ..diagnose.findings import Action, Evidence, Finding, Outcome
from . import lookups, pci_gpus
from .checks import CHECKS
from .lookups import Gpu, Target, Verdict
from .snapshot import PREINSTALLED, PSA_ENFORCE, DriverFacts, NodeFacts, PodFacts, Settings, Snapshot
from .versions import numbers

DEFAULT_DRIVER_SINCE: Final = (26, 7)
"""First family that knows an NVIDIADriver's ``default``."""


class Inquiry(msgspec.Struct, frozen=True, kw_only=True):
    """What preflight is asked: a cluster, a release, and what the operator is to be told."""

    target: Target
    snapshot: Snapshot
    planned: Settings | None = None
    """Of values that are to be installed; else those of the ClusterPolicy, else the release's defaults."""
    planned_source: str = "planned values"
    """Where they come from, such as the file's name."""
    vgpu: bool = False
    node_facts: Mapping[str, evidence.NodeFacts] = {}
    """What was found on nodes themselves, by node; nodes that nobody looked at are not among them."""
    node_unread: Mapping[str, str] = {}
    """Why a node could not be looked at, by node."""

    @property
    def settings(self) -> Settings:
        """The settings that count."""
        return self.planned or self.snapshot.settings or Settings()

    @property
    def unread(self) -> Mapping[str, str]:
        """What could not be read, and why; ``settings`` if they are the ClusterPolicy's and that is among it."""
        unread = self.snapshot.unread
        if "clusterpolicies" in unread and self.planned is None:
            return {**unread, "settings": unread["clusterpolicies"]}
        if "nvidiadrivers" in unread and self.settings.driver_resources:
            return {**unread, "settings": unread["nvidiadrivers"]}
        return unread

    @property
    def settings_source(self) -> str:
        """Where they came from, for evidence."""
        if self.planned is not None:
            return self.planned_source
        return "ClusterPolicy" if self.snapshot.settings is not None else "chart defaults"

    @property
    def policy_driver(self) -> DriverFacts:
        """The driver of the ClusterPolicy, or of the values that are planned."""
        settings = self.settings
        return DriverFacts(
            source=self.settings_source,
            version=settings.driver_version,
            precompiled=settings.precompiled,
            module_type=settings.module_type,
            open_modules=settings.open_modules,
        )

    @property
    def drivers(self) -> tuple[DriverFacts, ...]:
        """Every driver that nodes may get."""
        return self.snapshot.drivers if self.settings.driver_resources else (self.policy_driver,)

    def driver_of(self, node: NodeFacts) -> DriverFacts | None:
        """The driver that a node gets; None where drivers are NVIDIADrivers and none selects it."""
        if not self.settings.driver_resources:
            return self.policy_driver
        known = numbers(self.target.family) >= DEFAULT_DRIVER_SINCE
        last = [driver for driver in self.snapshot.drivers if known and driver.default]
        others = [driver for driver in self.snapshot.drivers if driver not in last]
        return next((driver for driver in others if driver.selects(node)), None) or next(iter(last), None)

    @property
    def served(self) -> tuple[NodeFacts, ...]:
        """Nodes that get their driver from the operator: not those with the host's own, nor those kept out by label."""
        kept_out = (PREINSTALLED, "false")
        return tuple(node for node in self.snapshot.candidates if node.labels.get(names.DEPLOY_DRIVER) not in kept_out)

    def gpu_of(self, node: NodeFacts) -> Gpu | None:
        """The GPU of a node: as labelled, else as a look on the node found it; None if neither tells."""
        labelled = lookups.gpu_of(node.labels)
        seen = self.node_facts.get(node.name)
        if labelled is not None or seen is None:
            return labelled
        devices = [each for each in seen.facts.get("gpus") or () if isinstance(each, Mapping)]
        found = {pci_gpus.architecture(str(each.get("device") or "")) for each in devices} - {""}
        products = [str(each) for each in seen.facts.get("gpu_names") or ()]
        product = products[0].removeprefix("NVIDIA ").replace(" ", "-") if products else ""
        return Gpu(next(iter(sorted(found)), ""), product) if found or product else None

    def installed(self, driver: DriverFacts) -> str:
        """The version or branch that a driver comes to; empty for the default of a release that is not listed."""
        row = self.target.row
        return driver.version or (row.driver.default if row is not None else "")

    @property
    def cdi(self) -> bool:
        """Whether CDI is on, by setting or by the release's default."""
        if self.settings.cdi is not None:
            return self.settings.cdi
        return numbers(self.target.family) >= numbers(self.target.matrix.runtime_paths.cdi_default_since)

    def finding(self, number: str, outcome: Outcome, title: str, *evidence: Evidence, **more: Any) -> Finding:
        """A finding of a check."""
        return Finding(id=number, layer=CHECKS[number].layer, outcome=outcome, title=title, evidence=evidence, **more)

    def judged(self, number: str, verdict: Verdict, *evidence: Evidence, **more: Any) -> Finding:
        """A verdict of the matrix as a finding of a check, the matrix's row among its evidence."""
        row = Evidence(f"support matrix {self.target.matrix.data_as_of}", verdict.row)
        if verdict.outcome in (Outcome.WARN, Outcome.FAIL):
            more.setdefault("action", Action.CHANGE_CONFIG if verdict.fix else Action.NONE)
        return self.finding(
            number,
            verdict.outcome,
            f"{verdict.reason}; blocks unless forced" if verdict.blocks else verdict.reason,
            *evidence,
            *([row] if verdict.row else []),
            fix=verdict.fix,
            **more,
        )

    def set_to(self, *settings: str) -> Evidence:
        """Evidence of settings, by name and value."""
        return Evidence(self.settings_source, ", ".join(settings))


Function = Callable[[Inquiry], Iterable[Finding]]
"""A check's function: none at all means that there is nothing in the cluster that it is about."""


class Answers(dict[str, Function]):
    """Functions by the number of their check; a module has one, and its functions enter it as they are defined."""

    def check(self, number: str, *reads: str) -> Callable[[Function], Function]:
        """Make a function the check's.

        ``reads`` names the resources without which it cannot be answered; ``settings`` among them stands for the
        ClusterPolicy, unless settings are planned.
        """

        def enter(function: Function) -> Function:
            def guarded(inquiry: Inquiry) -> Iterable[Finding]:
                unread = inquiry.unread
                lacking = sorted(set(unread) & set(reads))
                if lacking:
                    title = f"{CHECKS[number].title}: {', '.join(lacking)} could not be read"
                    cause = "; ".join(dict.fromkeys(unread[each] for each in lacking))
                    return [inquiry.finding(number, Outcome.UNKNOWN, title, cause=cause)]
                return function(inquiry)

            self[number] = guarded
            return function

        return enter


def of_node(node: NodeFacts, what: str, value: str) -> Evidence:
    """Evidence of a node's field, label or annotation."""
    return Evidence(f"node/{node.name} {what}", value)


def switched_off(inquiry: Inquiry, number: str, setting: str) -> Finding:
    """A check that a setting makes needless."""
    return inquiry.finding(number, Outcome.SKIP, f"{CHECKS[number].title}: {setting}", inquiry.set_to(setting))


def driver_owner(snapshot: Snapshot, node: NodeFacts) -> str:
    """Whose a node's driver is, as far as the API tells; empty when it does not."""
    if node.host_driver:
        return "the host's"
    return "the operator's" if driver_pods(snapshot, node) else ""


def driver_pods(snapshot: Snapshot, node: NodeFacts) -> list[PodFacts]:
    """A node's driver pods that have not ended."""
    return [pod for pod in snapshot.pods_on(node) if pod.is_driver]


def pod_security(inquiry: Inquiry, number: str) -> Finding:
    """Whether the operator's namespace lets privileged pods in."""
    snapshot = inquiry.snapshot
    where = f"namespace {snapshot.namespace}"
    if snapshot.namespace_labels is None:
        title = f"{where} does not exist yet: its Pod Security level is set when it is made"
        return inquiry.finding(number, Outcome.PASS, title)
    level = snapshot.namespace_labels.get(PSA_ENFORCE, "")
    label = Evidence(f"{where} label {PSA_ENFORCE}", level or "not set")
    if level in ("", "privileged"):
        title = f"{where} allows privileged pods" if level else f"{where} has no Pod Security level of its own"
        return inquiry.finding(number, Outcome.PASS, title, label)
    return inquiry.finding(
        number,
        Outcome.FAIL,
        f"{where} enforces Pod Security level {level}: privileged operand pods are refused",
        label,
        fix=(f"kubectl label --overwrite namespace {snapshot.namespace} {PSA_ENFORCE}=privileged",),
        action=Action.CHANGE_CONFIG,
    )


def no_driver(inquiry: Inquiry, number: str, node: NodeFacts) -> Finding:
    """A check of a driver on a node that gets none."""
    title = "no NVIDIADriver selects the node: it gets no driver"
    fix = ("give an NVIDIADriver a nodeSelector that fits the node",)
    return inquiry.finding(number, Outcome.WARN, title, node=node.name, confirm="kubectl get nvidiadrivers", fix=fix)
