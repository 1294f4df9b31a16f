"""Preflight of drivers: what hosts have (A20..A24) and the model chosen (A35..A43), as far as the API tells."""

from collections.abc import Iterator
from typing import Final

import msgspec

from ..api import names
from ..diagnose.findings import Action, Evidence, Finding, Outcome
from . import lookups
from .inquiry import Answers, Inquiry, driver_owner, driver_pods, no_driver, of_node, pod_security, switched_off
from .lookups import Gpu, Verdict
from .propose import has_driver
from .snapshot import TOOLKIT_APP, DriverFacts, NodeFacts, Settings
from .versions import numbers

ANSWERS: Final = Answers()


@ANSWERS.check("A20", "nodes", "pods")
def _host_module(inquiry: Inquiry) -> Iterator[Finding]:
    for node in inquiry.snapshot.gpu_nodes:
        yield _about_host(inquiry, "A20", node, "driver module", "lsmod | grep '^nvidia'")


@ANSWERS.check("A21", "nodes", "pods")
def _host_userspace(inquiry: Inquiry) -> Iterator[Finding]:
    for node in inquiry.snapshot.gpu_nodes:
        if node.host_driver and node.driver_version:
            verdict = inquiry.target.driver(node.driver_version)
            version = of_node(node, f"{names.CUDA_DRIVER_VERSION}.full", node.driver_version)
            yield inquiry.judged("A21", verdict, version, node=node.name, confirm="nvidia-smi")
        else:
            yield _about_host(inquiry, "A21", node, "driver userspace", "nvidia-smi")


def _about_host(inquiry: Inquiry, number: str, node: NodeFacts, what: str, confirm: str) -> Finding:
    label = of_node(node, names.DEPLOY_DRIVER, node.labels.get(names.DEPLOY_DRIVER, "not set"))
    if node.host_driver:
        version = node.driver_version or "of a version no label tells"
        return inquiry.finding(number, Outcome.PASS, f"the host has a {what} {version}", label, node=node.name)
    pods = driver_pods(inquiry.snapshot, node)
    if pods:
        pod = Evidence(f"pod/{pods[0].where}", pods[0].phase)
        return inquiry.finding(number, Outcome.PASS, f"the {what} is the operator's", pod, node=node.name)
    title = f"whether the host has a {what} is known on the node only"
    return inquiry.finding(number, Outcome.UNKNOWN, title, label, node=node.name, confirm=confirm)


@ANSWERS.check("A22", "nodes", "pods", "settings")
def _driver_enabled(inquiry: Inquiry) -> Iterator[Finding]:
    """What ``driver.enabled`` should be (contracts/admin-workflow.md 3.3)."""
    nodes = inquiry.snapshot.gpu_nodes
    own = {node.name: has_driver(node, inquiry.node_facts.get(node.name)) for node in nodes}
    host = [node.name for node in nodes if own[node.name]]
    unknown = [node.name for node in nodes if own[node.name] is None and not driver_owner(inquiry.snapshot, node)]
    setting = inquiry.set_to(f"driver.enabled={str(inquiry.settings.driver).lower()}")
    hosts = Evidence("nodes with a driver of the host", ", ".join(host) or "none")
    if not nodes:
        return
    if unknown:
        title = "driver.enabled cannot be proposed: not all GPU nodes tell whether the host has a driver"
        yield inquiry.finding("A22", Outcome.UNKNOWN, title, hosts, setting)
        return
    proposed = len(host) < len(nodes)
    why = "every GPU node has a driver of the host"
    if proposed:
        why = (
            "no node has a driver of the host"
            if not host
            else "nodes with a driver of the host are labelled by themselves"
        )
    wanted = f"driver.enabled={str(proposed).lower()}"
    if inquiry.settings.driver is proposed:
        yield inquiry.finding("A22", Outcome.PASS, f"{wanted} is right: {why}", hosts, setting)
        return
    fix = (f"set {wanted}",)
    yield inquiry.finding(
        "A22", Outcome.WARN, f"{wanted} is proposed: {why}", hosts, setting, fix=fix, action=Action.CHANGE_CONFIG
    )


@ANSWERS.check("A23", "nodes", "pods")
def _two_managers(inquiry: Inquiry) -> Iterator[Finding]:
    for node in inquiry.snapshot.gpu_nodes:
        pods = driver_pods(inquiry.snapshot, node)
        named = [Evidence(f"pod/{pod.where}", pod.phase) for pod in pods]
        label = of_node(node, names.DEPLOY_DRIVER, node.labels.get(names.DEPLOY_DRIVER, "not set"))
        if (node.host_driver and pods) or len(pods) > 1:
            cause = "the host's driver and a driver pod" if node.host_driver else "several driver pods"
            yield inquiry.finding(
                "A23",
                Outcome.FAIL,
                "two managers of one driver are on the node",
                label,
                *named,
                node=node.name,
                cause=cause,
                fix=("remove the host's driver, or keep the operator's off the node by driver.enabled=false",),
                action=Action.CHANGE_CONFIG,
            )
        else:
            yield inquiry.finding(
                "A23", Outcome.PASS, "one manager at most has the driver", label, *named, node=node.name
            )


@ANSWERS.check("A24", "nodes", "pods")
def _toolkit(inquiry: Inquiry) -> Iterator[Finding]:
    for node in inquiry.snapshot.gpu_nodes:
        pod = next((pod for pod in inquiry.snapshot.pods_on(node) if pod.labels.get("app") == TOOLKIT_APP), None)
        if pod is not None:
            seen = Evidence(f"pod/{pod.where}", pod.phase)
            yield inquiry.finding("A24", Outcome.PASS, "the toolkit is the operator's", seen, node=node.name)
        else:
            title = "whether the host has a toolkit is known on the node only"
            yield inquiry.finding("A24", Outcome.UNKNOWN, title, node=node.name, confirm="nvidia-ctk --version")


# --- Driver model -----------------------------------------------------------------------------------------------------


def driver_model(settings: Settings) -> tuple[str, tuple[str, ...]]:
    """Which of the five driver models the settings are, and the values that make it (A35)."""
    if not settings.driver and not settings.toolkit:
        return "preinstalled driver and toolkit", ("driver.enabled=false", "toolkit.enabled=false")
    if not settings.driver:
        return "preinstalled driver", ("driver.enabled=false",)
    if settings.driver_resources:
        return "NVIDIADriver objects", ("driver.enabled=true", "driver.nvidiaDriverCRD.enabled=true")
    if settings.precompiled:
        branch = f"driver.version={settings.driver_version}"
        return "precompiled driver", ("driver.enabled=true", "driver.usePrecompiled=true", branch)
    return "operator-managed driver", ("driver.enabled=true",)


@ANSWERS.check("A35", "settings")
def _model(inquiry: Inquiry) -> Iterator[Finding]:
    model, values = driver_model(inquiry.settings)
    yield inquiry.finding("A35", Outcome.PASS, f"driver model: {model}", inquiry.set_to(*values))


ADMISSION_POLICIES: Final = ("kyverno", "gatekeeper")


@ANSWERS.check("A36", "namespaces", "webhooks", "settings")
def _privileges(inquiry: Inquiry) -> Iterator[Finding]:
    if not inquiry.settings.driver:
        yield switched_off(inquiry, "A36", "driver.enabled=false")
        return
    yield pod_security(inquiry, "A36")
    for webhook in inquiry.snapshot.webhooks:
        if any(policy in webhook.lower() for policy in ADMISSION_POLICIES):
            yield inquiry.finding(
                "A36",
                Outcome.WARN,
                "an admission policy may refuse privileged pods",
                Evidence("webhook configuration", webhook),
                fix=(f"exempt namespace {inquiry.snapshot.namespace} from policies against privileged pods",),
            )


@ANSWERS.check("A37", "nodes", "settings")
def _preinstalled(inquiry: Inquiry) -> Iterator[Finding]:
    if inquiry.settings.driver:
        yield switched_off(inquiry, "A37", "driver.enabled=true")
        return
    for node in inquiry.snapshot.gpu_nodes:
        if node.driver_version:
            version = of_node(node, f"{names.CUDA_DRIVER_VERSION}.full", node.driver_version)
            yield inquiry.judged("A37", inquiry.target.driver(node.driver_version), version, node=node.name)
        else:
            title = "whether the host has a driver is known on the node only"
            yield inquiry.finding("A37", Outcome.UNKNOWN, title, node=node.name, confirm="nvidia-smi")


@ANSWERS.check("A38", "nodes", "settings")
def _preinstalled_toolkit(inquiry: Inquiry) -> Iterator[Finding]:
    if inquiry.settings.toolkit:
        yield switched_off(inquiry, "A38", "toolkit.enabled=true")
        return
    for node in inquiry.snapshot.gpu_nodes:
        title = "whether the default runtime is nvidia, or CDI specs are present, is known on the node only"
        yield inquiry.finding("A38", Outcome.UNKNOWN, title, node=node.name, confirm="nvidia-ctk cdi list")


@ANSWERS.check("A39", "settings")
def _host_life(inquiry: Inquiry) -> Iterator[Finding]:
    if inquiry.settings.driver:
        yield switched_off(inquiry, "A39", "driver.enabled=true")
    else:
        yield inquiry.finding("A39", Outcome.PASS, "the host's driver lives and changes with the node image")


@ANSWERS.check("A40", "nodes", "settings")
def _precompiled(inquiry: Inquiry) -> Iterator[Finding]:
    if not (inquiry.settings.driver and any(driver.precompiled for driver in inquiry.drivers)):
        yield switched_off(inquiry, "A40", "no precompiled driver")
        return
    for node in inquiry.served:
        driver = inquiry.driver_of(node)
        if driver is not None and driver.precompiled:
            verdict = inquiry.target.precompiled(inquiry.snapshot.os_key(node), node.kernel, driver.version)
            kernel = of_node(node, "status.nodeInfo.kernelVersion", node.kernel)
            yield inquiry.judged("A40", verdict, kernel, node=node.name)


@ANSWERS.check("A41", "settings")
def _version_form(inquiry: Inquiry) -> Iterator[Finding]:
    """The form of each driver's version, and of a full version also whether it is listed and free of known faults."""
    if not inquiry.settings.driver:
        yield switched_off(inquiry, "A41", "driver.enabled=false")
        return
    for driver in inquiry.drivers:
        setting = Evidence(
            driver.source, f"usePrecompiled={_word(driver.precompiled)}, version={driver.version or '(default)'}"
        )
        form = inquiry.target.driver_form(driver.version, precompiled=driver.precompiled)
        yield inquiry.judged("A41", form, setting)
        if form.outcome is Outcome.PASS and not driver.precompiled and numbers(driver.version):
            yield inquiry.judged("A41", inquiry.target.driver(driver.version), setting)
            for fault in lookups.known_faults(inquiry.target.matrix, driver.version):
                yield inquiry.judged("A41", fault, setting)


def _word(value: bool) -> str:
    return "true" if value else "false"


@ANSWERS.check("A42", "nodes", "settings")
def _module_types(inquiry: Inquiry) -> Iterator[Finding]:
    """Module type and driver branch against each node's GPU; without labels of GPUs, against the drivers alone."""
    if not inquiry.settings.driver:
        yield switched_off(inquiry, "A42", "driver.enabled=false")
        return
    models = [(node, gpu) for node in inquiry.served if (gpu := inquiry.gpu_of(node)) is not None]
    if not models:
        for driver in inquiry.drivers:
            kind = lookups.module_type(inquiry.target.matrix, "", driver.module_type, inquiry.installed(driver))
            yield inquiry.judged("A42", kind, _module_setting(inquiry, driver))
    for node, gpu in models:
        product = of_node(node, names.GPU_PRODUCT, gpu.product or gpu.architecture)
        chosen = inquiry.driver_of(node)
        if chosen is None:
            yield no_driver(inquiry, "A42", node)
            continue
        for verdict in _gpu_verdicts(inquiry, gpu, chosen):
            yield inquiry.judged("A42", verdict, product, _module_setting(inquiry, chosen), node=node.name)


def _module_setting(inquiry: Inquiry, driver: DriverFacts) -> Evidence:
    return Evidence(driver.source, f"kernelModuleType={driver.module_type}, driver {inquiry.installed(driver) or '?'}")


def _gpu_verdicts(inquiry: Inquiry, gpu: Gpu, driver: DriverFacts) -> Iterator[Verdict]:
    matrix, version = inquiry.target.matrix, inquiry.installed(driver)
    yield lookups.module_type(matrix, gpu.architecture, driver.module_type, version)
    branch = lookups.driver_branch(matrix, gpu.architecture, version)
    pinned = inquiry.target.pin(gpu.architecture)
    if branch.outcome is Outcome.FAIL and pinned:
        branch = msgspec.structs.replace(branch, fix=(f"pin driver.version={pinned} for these nodes",))
    yield branch
    if minimum := lookups.driver_minimum(matrix, gpu, version):
        yield minimum


@ANSWERS.check("A43", "settings")
def _deprecated_field(inquiry: Inquiry) -> Iterator[Finding]:
    row = inquiry.target.matrix.gpu.kernel_module_type.deprecated_field
    using = [driver for driver in inquiry.drivers if driver.open_modules]
    if not using:
        yield inquiry.finding("A43", Outcome.PASS, f"{row['name']} is not used")
        return
    verdict = Verdict(
        outcome=Outcome.WARN,
        reason=f"{row['name']} is deprecated since {row['since']}: {row['effect']}",
        row="gpu.kernel_module_type.deprecated_field",
        fix=("set driver.kernelModuleType=open and remove driver.useOpenKernelModules",),
    )
    yield inquiry.judged("A43", verdict, *(Evidence(driver.source, "useOpenKernelModules=true") for driver in using))
