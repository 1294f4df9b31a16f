"""Preflight of GPUs, Kubernetes, operating systems, runtimes and kernels (A1..A19), as far as the API tells."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ..api import names
from ..diagnose.findings import Action, Evidence, Finding, Outcome
from . import images, lookups
from .inquiry import Answers, Inquiry, driver_owner, no_driver, of_node, pod_security, switched_off
from .snapshot import NodeFacts, Snapshot

ANSWERS: Final = Answers()


@ANSWERS.check("A1", "nodes")
def _gpu_models(inquiry: Inquiry) -> Iterator[Finding]:
    snapshot = inquiry.snapshot
    if not snapshot.gpu_nodes:
        yield _no_gpu_seen(inquiry)
    for node in snapshot.gpu_nodes:
        gpu = inquiry.gpu_of(node)
        if gpu is None:
            seen = of_node(node, "labels", "NVIDIA PCI device")
            title = "a GPU is on PCI, its model is known once GPU feature discovery runs"
            yield inquiry.finding("A1", Outcome.UNKNOWN, title, seen, node=node.name, confirm="lspci -nn -d 10de:")
        else:
            product = of_node(node, "GPU", gpu.product or gpu.architecture)
            verdict = (
                lookups.product_listed(inquiry.target.matrix, gpu) if gpu.product else _by_architecture(inquiry, gpu)
            )
            yield inquiry.judged("A1", verdict, product, node=node.name)


def _by_architecture(inquiry: Inquiry, gpu: lookups.Gpu) -> lookups.Verdict:
    """What is known of a GPU whose product is not, by its PCI id."""
    row = inquiry.target.matrix.gpu.architectures.get(gpu.architecture)
    listed = row is not None and bool(row.products)
    title = f"a GPU of architecture {gpu.architecture}" + (
        "" if listed else ", of which no product is listed: not validated"
    )
    outcome = Outcome.PASS if listed else Outcome.WARN
    return lookups.Verdict(outcome=outcome, reason=title, row=f"gpu.architectures.{gpu.architecture}")


def _no_gpu_seen(inquiry: Inquiry) -> Finding:
    if any(node.has_features for node in inquiry.snapshot.nodes):
        return inquiry.finding(
            "A1",
            Outcome.WARN,
            "no node shows an NVIDIA device on PCI",
            cause="no GPU, not passed through, or another instance type",
            confirm="lspci -nn -d 10de:",
            fix=("check BIOS, passthrough, the hypervisor's assignment, instance type and seating",),
        )
    title = "no label tells whether nodes have GPUs: node feature discovery has not run"
    return inquiry.finding("A1", Outcome.UNKNOWN, title, confirm="lspci -nn -d 10de:")


@ANSWERS.check("A2", "nodes")
def _kubernetes(inquiry: Inquiry) -> Iterator[Finding]:
    snapshot = inquiry.snapshot
    server = Evidence("API server gitVersion", snapshot.version)
    if not snapshot.nodes:
        yield inquiry.judged("A2", inquiry.target.kubernetes(snapshot.version), server)
    for node in snapshot.candidates:
        version, seen = snapshot.version, server
        if not version and node.kubelet:  # a node that is looked at alone, or a server that may not be asked
            version, seen = node.kubelet, of_node(node, "kubelet, as the server's version is unknown", node.kubelet)
        verdict = inquiry.target.kubernetes(version, snapshot.os_key(node), _column(inquiry, node))
        yield inquiry.judged("A2", verdict, seen, node=node.name, confirm="kubectl version")


def _column(inquiry: Inquiry, node: NodeFacts) -> str:
    return "openshift" if inquiry.snapshot.openshift else node.distribution


@ANSWERS.check("A3", "nodes")
def _operating_systems(inquiry: Inquiry) -> Iterator[Finding]:
    for node in inquiry.snapshot.candidates:
        verdict = inquiry.target.operating_system(
            inquiry.snapshot.os_key(node), node.arch or "amd64", cloud=node.distribution, vgpu=inquiry.vgpu
        )
        image = of_node(node, "status.nodeInfo.osImage", node.os_image)
        yield inquiry.judged("A3", verdict, image, node=node.name, confirm="kubectl get nodes -o wide")


@ANSWERS.check("A4", "nodes", "settings")
def _headers(inquiry: Inquiry) -> Iterator[Finding]:
    if not inquiry.settings.driver:
        yield switched_off(inquiry, "A4", "driver.enabled=false")
        return
    for node in inquiry.served:
        driver = inquiry.driver_of(node)
        kernel = of_node(node, "status.nodeInfo.kernelVersion", node.kernel)
        if driver is None:
            yield no_driver(inquiry, "A4", node)
        elif driver.precompiled:
            verdict = inquiry.target.precompiled(inquiry.snapshot.os_key(node), node.kernel, driver.version)
            yield inquiry.judged("A4", verdict, kernel, node=node.name)
        else:
            title = f"whether headers of kernel {node.kernel or '?'} are in reach is known on the node only"
            yield inquiry.finding("A4", Outcome.UNKNOWN, title, kernel, node=node.name, confirm="uname -r")


@ANSWERS.check("A5", "nodes")
def _runtimes(inquiry: Inquiry) -> Iterator[Finding]:
    for node in inquiry.snapshot.candidates:
        verdict = inquiry.target.runtime(node.runtime, inquiry.snapshot.os_key(node))
        seen = of_node(node, "status.nodeInfo.containerRuntimeVersion", node.runtime)
        yield inquiry.judged("A5", verdict, seen, node=node.name, confirm="kubectl get nodes -o wide")


_CLOUDS: Final = {"aws": "AWS", "gce": "Google Cloud", "azure": "Azure", "oci": "Oracle Cloud", "ibm": "IBM Cloud"}


@ANSWERS.check("A6", "nodes", "settings")
def _deployment(inquiry: Inquiry) -> Iterator[Finding]:
    """vGPU is told by ``--vgpu`` or by labels; bare metal and passthrough are alike to the operator."""
    labelled = [node for node in inquiry.snapshot.gpu_nodes if node.labels.get(names.VGPU_PRESENT) == "true"]
    for node in labelled if not inquiry.vgpu else ():
        yield inquiry.finding(
            "A6",
            Outcome.WARN,
            "the node has vGPUs, and preflight was not told so",
            of_node(node, names.VGPU_PRESENT, "true"),
            node=node.name,
            fix=("run preflight with --vgpu",),
        )
    if inquiry.vgpu:
        yield from _vgpu(inquiry)
        return
    for node in inquiry.snapshot.candidates:
        cloud = _CLOUDS.get(node.provider, "")
        title = "taken for bare metal or passthrough, which are alike to the operator (--vgpu for NVIDIA vGPU)"
        if node not in labelled:
            title = f"a machine of {cloud}, with the GPU passed through" if cloud else title
            yield inquiry.finding("A6", Outcome.PASS, title, node=node.name)


def _vgpu(inquiry: Inquiry) -> Iterator[Finding]:
    """Guest drivers for vGPU are in no public registry, and they need a licence server."""
    settings = inquiry.settings
    driver = settings.tree.get("driver") or {}
    if not settings.driver:
        yield inquiry.finding(
            "A6", Outcome.PASS, "vGPU: the guest driver is the host's", inquiry.set_to("driver.enabled=false")
        )
        return
    licence = driver.get("licensingConfig") or {}
    lacking = {
        "driver.repository": bool(driver.get("repository")) and "nvcr.io/nvidia" not in str(driver.get("repository")),
        "driver.licensingConfig": bool(licence.get("secretName") or licence.get("configMapName")),
    }
    unset = [name for name, there in lacking.items() if not there]
    if not unset:
        yield inquiry.finding(
            "A6", Outcome.PASS, "vGPU: guest driver image and licence are set", inquiry.set_to(*lacking)
        )
        return
    yield inquiry.finding(
        "A6",
        Outcome.FAIL,
        f"vGPU: {' and '.join(unset)} must be set",
        inquiry.set_to(*(f"{name} not set" for name in unset)),
        cause="guest drivers for vGPU (12.0 or newer) are in no public registry, and run unlicensed at low speed",
        fix=(
            "build the vGPU guest driver image, and set driver.repository, driver.image and driver.version to it",
            "make a Secret with the client configuration token, and set driver.licensingConfig.secretName to it",
        ),
        action=Action.CHANGE_CONFIG,
    )


@ANSWERS.check("A7", "namespaces")
def _gates(inquiry: Inquiry) -> Iterator[Finding]:
    yield pod_security(inquiry, "A7")
    selinux = f"{names.NFD_PREFIX}kernel-selinux.enabled"
    for node in inquiry.snapshot.candidates:
        if selinux in node.labels:
            on = node.labels[selinux] == "true"
            label = of_node(node, selinux, node.labels[selinux])
            yield inquiry.finding("A7", Outcome.PASS, f"SELinux is {'on' if on else 'off'}", label, node=node.name)


@ANSWERS.check("A9", "nodes", "pods")
def _owners(inquiry: Inquiry) -> Iterator[Finding]:
    for node in inquiry.snapshot.gpu_nodes:
        owner = driver_owner(inquiry.snapshot, node)
        outcome = Outcome.PASS if owner else Outcome.UNKNOWN
        title = (
            f"the driver is {owner}" if owner else "whether the host has a driver of its own is known on the node only"
        )
        yield inquiry.finding("A9", outcome, title, node=node.name, confirm="lsmod | grep '^nvidia'")


INVENTORY_COLUMNS: Final = ("NAME", "OS", "KERNEL", "RUNTIME", "ARCH", "KUBELET", "GPUS", "TAINTS")


def inventory(snapshot: Snapshot) -> list[tuple[str, ...]]:
    """The table of A10, a row a node, columns as :data:`INVENTORY_COLUMNS`."""
    return [
        (
            node.name,
            node.os_image,
            node.kernel,
            node.runtime,
            node.arch,
            node.kubelet,
            node.capacity.get(names.GPU_RESOURCE, "0"),
            ",".join(node.taints) or "-",
        )
        for node in snapshot.nodes
    ]


@ANSWERS.check("A10", "nodes")
def _inventory(inquiry: Inquiry) -> Iterator[Finding]:
    rows = inventory(inquiry.snapshot)
    evidence = (Evidence(f"node/{row[0]}", " ".join(row[1:])) for row in rows)
    title = f"{len(rows)} nodes, {len(inquiry.snapshot.gpu_nodes)} with GPUs"
    yield inquiry.finding("A10", Outcome.PASS, title, *evidence)


@ANSWERS.check("A11", "nodes", "settings")
def _one_system(inquiry: Inquiry) -> Iterator[Finding]:
    settings, snapshot = inquiry.settings, inquiry.snapshot
    if not settings.driver or settings.driver_resources:
        yield switched_off(inquiry, "A11", "driver.enabled=false" if not settings.driver else "NVIDIADriver objects")
        return
    systems = _by((node for node in inquiry.served if node.has_gpu), snapshot.os_key)
    listed = ", ".join(sorted(key or "unknown" for key in systems))
    evidence = [
        Evidence(f"nodes with {key or 'an unknown system'}", ", ".join(node.name for node in nodes))
        for key, nodes in sorted(systems.items())
    ]
    if len(systems) <= 1:
        yield inquiry.finding(
            "A11", Outcome.PASS, f"GPU nodes run one operating system: {listed or 'none seen'}", *evidence
        )
        return
    yield inquiry.finding(
        "A11",
        Outcome.FAIL,
        f"GPU nodes run several operating systems under one ClusterPolicy: {listed}",
        *evidence,
        cause="the ClusterPolicy's driver has one image for all nodes",
        fix=("bring GPU nodes to one version", "or use an NVIDIADriver object per pool", "or driver.enabled=false"),
        action=Action.CHANGE_CONFIG,
    )


def _by(nodes: Iterable[NodeFacts], key: Callable[[NodeFacts], str]) -> dict[str, list[NodeFacts]]:
    groups: dict[str, list[NodeFacts]] = defaultdict(list)
    for node in nodes:
        groups[key(node)].append(node)
    return groups


LOOK_FOR_GPU: Final = (
    "check that the firmware (BIOS) shows the device, and that large BARs (above 4G decoding) are on",
    "in a virtual machine: check passthrough and the hypervisor's assignment; in a cloud: the instance type",
    "check seating and power of the card",
)


@ANSWERS.check("A12", "nodes")
def _hardware(inquiry: Inquiry) -> Iterator[Finding]:
    for node in inquiry.snapshot.gpu_nodes:
        seen = [of_node(node, label, node.labels[label]) for label in names.PCI_GPU_LABELS if label in node.labels]
        yield inquiry.finding("A12", Outcome.PASS, "an NVIDIA device is on PCI", *seen, node=node.name)
    if not inquiry.snapshot.gpu_nodes:
        ran = any(node.has_features for node in inquiry.snapshot.nodes)
        title = "no node shows an NVIDIA device" if ran else "no label tells whether a node has an NVIDIA device"
        outcome = Outcome.WARN if ran else Outcome.UNKNOWN
        yield inquiry.finding("A12", outcome, title, confirm="lspci -nn -d 10de:")


@ANSWERS.check("A13", "nodes")
def _stop(inquiry: Inquiry) -> Iterator[Finding]:
    """Without a device, nothing above can be right or wrong: preflight says no more of those layers."""
    nodes = inquiry.snapshot.nodes
    if inquiry.snapshot.gpu_nodes:
        yield inquiry.finding("A13", Outcome.PASS, "there are GPU nodes to go on with")
    elif any(node.has_features for node in nodes):
        yield inquiry.finding(
            "A13",
            Outcome.FAIL,
            "no node has a GPU that can be seen: stop here",
            *(of_node(node, "labels", "no NVIDIA device on PCI") for node in nodes if node.has_features),
            confirm="lspci -nn -d 10de:",
            fix=LOOK_FOR_GPU,
            action=Action.HARDWARE_INSPECTION,
        )
    else:
        title = "whether nodes have GPUs is not known: node feature discovery has not run"
        yield inquiry.finding("A13", Outcome.UNKNOWN, title, confirm="lspci -nn -d 10de:")


@ANSWERS.check("A34", "nodes", "settings")
def _needed(inquiry: Inquiry) -> Iterator[Finding]:
    """What has to be in reach or mirrored; whether it is in reach, only nodes know."""
    wanted = needed(inquiry)
    images = (Evidence(f"image of {each.component}", each.reference) for each in wanted.images)
    packages = (Evidence("package", each) for each in wanted.packages)
    title = (
        f"release v{inquiry.target.version} needs {len(wanted.images)} images of {', '.join(wanted.registries)} and "
        f"{len(wanted.packages)} packages of the system's repositories (--images lists them)"
    )
    yield inquiry.finding("A34", Outcome.PASS, title, *images, *packages)
    for node in inquiry.snapshot.candidates:
        title = "whether the registries can be reached is known on the node only"
        yield inquiry.finding("A34", Outcome.UNKNOWN, title, node=node.name)


def needed(inquiry: Inquiry) -> images.Needed:
    """The images and packages of the release on this cluster, under its settings."""
    systems: dict[tuple[str, str], int] = defaultdict(int)
    for node in inquiry.served:
        systems[inquiry.snapshot.os_key(node), node.kernel] += 1
    found = [images.System(key, kernel, count) for (key, kernel), count in sorted(systems.items())]
    return images.needed(inquiry.target, inquiry.settings.tree, found)


# --- Kernel -----------------------------------------------------------------------------------------------------------


@ANSWERS.check("A14", "nodes")
def _kernels(inquiry: Inquiry) -> Iterator[Finding]:
    """Nodes of one operating system and GPU are a pool, whose kernels should not differ."""
    snapshot = inquiry.snapshot
    pools = _by(
        snapshot.candidates, lambda node: f"{snapshot.os_key(node)} {node.labels.get(names.GPU_PRODUCT, '')}".strip()
    )
    for pool, nodes in sorted(pools.items()):
        kernels = sorted({node.kernel for node in nodes})
        evidence = [of_node(node, "status.nodeInfo.kernelVersion", node.kernel) for node in nodes]
        if len(kernels) == 1:
            title = f"nodes of pool {pool or '(unknown)'} run kernel {kernels[0] or '?'}"
            yield inquiry.finding("A14", Outcome.PASS if kernels[0] else Outcome.UNKNOWN, title, *evidence)
            continue
        yield inquiry.finding(
            "A14",
            Outcome.WARN,
            f"nodes of pool {pool or '(unknown)'} run several kernels: {', '.join(kernels)}",
            *evidence,
            confirm="uname -r",
            fix=("bring the pool to one kernel and hold it",),
        )


REBOOT_ANNOTATIONS: Final = (
    "weave.works/kured-reboot-in-progress",
    "weave.works/kured-most-recent-reboot-needed",
    "kured.dev/reboot-in-progress",
    "kured.dev/most-recent-reboot-needed",
)
"""Annotations in which reboot daemons say that a node waits for its reboot."""


@ANSWERS.check("A19", "nodes")
def _pending_kernels(inquiry: Inquiry) -> Iterator[Finding]:
    for node in inquiry.snapshot.candidates:
        told = next((name for name in REBOOT_ANNOTATIONS if name in node.annotations), "")
        if told:
            yield inquiry.finding(
                "A19",
                Outcome.WARN,
                "a reboot is pending: it may bring another kernel under the driver",
                of_node(node, f"annotation {told}", node.annotations[told]),
                node=node.name,
                fix=("reboot the node before the driver is installed",),
                action=Action.DRAIN_AND_REBOOT,
            )
        else:
            title = "whether a newer kernel waits for a reboot is known on the node only"
            yield inquiry.finding("A19", Outcome.UNKNOWN, title, node=node.name)
