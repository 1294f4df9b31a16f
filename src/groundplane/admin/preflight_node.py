"""Preflight of what only a node knows (A4, A8, A9, A12, A13, A15..A21, A23..A34, A37, A38, A47), as found on nodes.

Each function judges the nodes of ``Inquiry.node_facts``; of a fact that could not be read it says nothing, so that the
check stays ``unknown`` there. What a fact means is in ``diagnose.evidence.NODE_FACTS``. Fixes name the exact steps of
the node's operating system. Nothing here looks at a node.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from ..api import names
from ..diagnose import evidence
from ..diagnose.findings import Action, Evidence, Finding, Outcome, Severity
from ..diagnose.redact import redacted
from .inquiry import Answers, Inquiry, driver_owner, driver_pods
from .propose import has_driver, has_toolkit
from .snapshot import DriverFacts, NodeFacts
from .versions import numbers

ANSWERS: Final = Answers()
Seen = evidence.NodeFacts
Judge = Callable[[Inquiry, "_Node"], Iterator[Finding]]

DEBIAN: Final = frozenset({"ubuntu", "debian"})
SKEW_S: Final = 30.0
"""Seconds by which a clock may differ before certificates and tokens are in danger."""


class _Node:
    """What was found on a node, with the shape of facts checked once: a fact of another shape was not read."""

    def __init__(self, inquiry: Inquiry, number: str, seen: Seen) -> None:
        self._inquiry = inquiry
        self._number = number
        self.seen = seen
        self.name = seen.name

    def get(self, fact: str, kind: type[Any]) -> Any:
        """A fact, if it was read and is of a kind; else None."""
        value = self.seen.facts.get(fact)
        return value if isinstance(value, kind) else None

    def text(self, fact: str) -> str:
        """A fact that is a text; empty if it was not read."""
        return str(self.get(fact, str) or "")

    def list(self, fact: str) -> list[Any] | None:
        """A fact that is a list."""
        found = self.get(fact, list)
        return found if found is None else list(found)

    @property
    def object(self) -> NodeFacts | None:
        """What the API tells of it; None if it does not know the node."""
        return self._inquiry.snapshot.by_name.get(self.name)

    @property
    def driver(self) -> DriverFacts | None:
        """The driver that it gets from the operator: the policy's, or the NVIDIADriver's that selects it."""
        known = self.object
        return self._inquiry.driver_of(known) if known is not None else self._inquiry.policy_driver

    @property
    def precompiled(self) -> bool:
        """Whether that driver is precompiled."""
        return self.driver is not None and self.driver.precompiled

    @property
    def debian(self) -> bool:
        """Whether it is of the Debian family."""
        return self.text("os") in DEBIAN

    def says(self, outcome: Outcome, title: str, *facts: str, **more: Any) -> Finding:
        """A finding of this node, the named facts its evidence; secrets in what was found there are not shown."""
        shown = [self.evidence(fact) for fact in facts if fact in self.seen.facts]
        return self._inquiry.finding(self._number, outcome, redacted(title), *shown, node=self.name, **more)

    def evidence(self, fact: str) -> Evidence:
        """A fact as evidence."""
        value = self.seen.facts.get(fact)
        return Evidence(f"node/{self.name} {fact}", redacted(_shown(value)))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_shown(each)}" for key, each in value.items()) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(number: str) -> Callable[[Judge], Judge]:
    """Make a function that judges one node the check's."""

    def enter(judge: Judge) -> Judge:
        def of_all(inquiry: Inquiry) -> Iterator[Finding]:
            for seen in inquiry.node_facts.values():
                yield from judge(inquiry, _Node(inquiry, number, seen))

        ANSWERS.check(number)(of_all)
        return judge

    return enter


# --- hardware ---------------------------------------------------------------------------------------------------------

_HARDWARE: Final = (
    "check that the BIOS shows the slot and has above-4G decoding on",
    "virtual machine: assign the device (passthrough or vGPU) in the hypervisor and check its IOMMU group",
    "cloud: choose an instance type with a GPU",
    "bare metal: power off, reseat the card and its power cables",
)


@_check("A12")
def _visible(_inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    gpus = node.list("gpus")
    if gpus is None:
        return
    if gpus:
        virtual = sum(bool(isinstance(each, Mapping) and each.get("virtual_function")) for each in gpus)
        more = f", {virtual} of them virtual functions" if virtual else ""
        switches = len(node.list("nvswitches") or ())
        more += f", {switches} NVSwitches" if switches else ""
        yield node.says(Outcome.PASS, f"{len(gpus)} GPUs on the PCI bus{more}", "gpus")
    else:
        yield node.says(Outcome.FAIL, "no GPU of NVIDIA's on the PCI bus", "pci", confirm="lspci -nn -d 10de:")


@_check("A13")
def _stop(_inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    gpus = node.list("gpus")
    if gpus is None:
        return
    if gpus:
        yield node.says(Outcome.PASS, "there is hardware to go on with")
        return
    yield node.says(
        Outcome.FAIL,
        "stop: without a PCI device nothing above it can work, and nothing in the operator helps",
        "pci",
        confirm="lspci -nn -d 10de:",
        fix=_HARDWARE,
        action=Action.HARDWARE_INSPECTION,
    )


# --- kernel -----------------------------------------------------------------------------------------------------------


def _headers(inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    state, package = node.text("headers"), node.text("headers_package") or f"headers of {node.text('kernel')}"
    if not state:
        return
    if not inquiry.settings.driver:
        yield node.says(Outcome.SKIP, "the operator builds no driver: driver.enabled=false", "headers")
    elif node.precompiled:
        yield node.says(Outcome.SKIP, "precompiled drivers need no headers", "headers")
    elif state == "installed":
        yield node.says(Outcome.PASS, f"{package} is installed", "headers", "kernel")
    elif state == "available":
        yield node.says(Outcome.PASS, f"{package} is in the node's repositories", "headers", "kernel")
    elif state == "absent":
        yield node.says(
            Outcome.FAIL,
            f"{package} is neither installed nor in the node's repositories: the driver cannot be built",
            "headers",
            "kernel",
            fix=_headers_fix(node, package),
            action=Action.CHANGE_CONFIG,
        )
    else:
        yield node.says(
            Outcome.WARN,
            f"{package} is not installed, and no package list says whether it can be had",
            "headers",
            "kernel",
            fix=_headers_fix(node, package),
        )


def _headers_fix(node: _Node, package: str) -> tuple[str, ...]:
    install = f"apt-get update && apt-get install -y {package}" if node.debian else f"dnf install -y {package}"
    mirror = "or give the driver a repository that has it: driver.repoConfig.configMapName (air-gapped: a mirror)"
    return (
        install,
        mirror,
        "or boot a kernel with a precompiled driver: driver.usePrecompiled=true, driver.version=BRANCH",
    )


@_check("A4")
def _kernel_has_headers(inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    yield from _headers(inquiry, node)


@_check("A15")
def _headers_ubuntu(inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    if node.debian:
        yield from _headers(inquiry, node)
    elif node.text("os"):
        yield node.says(Outcome.SKIP, "no system of the Debian family", "os")


@_check("A16")
def _headers_rhel(inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    if node.text("os") and not node.debian:
        yield from _headers(inquiry, node)
    elif node.debian:
        yield node.says(Outcome.SKIP, "no system of the RHEL family", "os")


@_check("A17")
def _missing_headers(inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    state = node.text("headers")
    if state in ("installed", "available"):
        yield node.says(Outcome.PASS, "headers can be had: nothing to decide", "headers")
    elif state:
        package = node.text("headers_package")
        title = "headers are missing: choose a repository, a mirror or a precompiled driver"
        outcome = Outcome.SKIP if node.precompiled or not inquiry.settings.driver else Outcome.WARN
        yield node.says(outcome, title, "headers", fix=_headers_fix(node, package) if outcome is Outcome.WARN else ())


@_check("A18")
def _updates(_inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    updates = node.list("kernel_updates")
    if updates is None:
        return
    held = node.list("kernel_holds") or []
    if not updates or held:
        title = "kernels are held" if updates else "nothing installs kernels by itself"
        yield node.says(Outcome.PASS, title, "kernel_updates", "kernel_holds")
        return
    apt = 'add "linux-" to Unattended-Upgrade::Package-Blacklist in /etc/apt/apt.conf.d/50unattended-upgrades'
    steps = ("apt-mark hold linux-image-$(uname -r) linux-headers-$(uname -r)", apt)
    if not node.debian:
        steps = ("add exclude=kernel* to /etc/dnf/dnf.conf", "or: systemctl disable --now dnf-automatic.timer")
    yield node.says(
        Outcome.WARN, f"kernels may be updated by {_shown(updates)}", "kernel_updates", "kernel_holds", fix=steps,
        action=Action.CHANGE_CONFIG,
    )  # fmt: skip


@_check("A19")
def _reboot_pending(_inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    newer = node.get("newer_kernel", str)
    if newer is None:
        return
    if not newer:
        yield node.says(Outcome.PASS, "the newest installed kernel runs", "kernel", "kernels")
        return
    yield node.says(
        Outcome.WARN,
        f"kernel {newer} is installed and not running: the next reboot changes the kernel under the driver",
        "kernel",
        "newer_kernel",
        fix=("drain the node and reboot it before the driver is installed", "or remove the newer kernel"),
        action=Action.DRAIN_AND_REBOOT,
    )


# --- drivers ----------------------------------------------------------------------------------------------------------


@_check("A20")
def _module(_inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    if node.list("modules") is None:
        return
    version = node.text("driver_version")
    loaded = "nvidia" in (node.list("modules") or [])
    if not loaded:
        yield node.says(Outcome.PASS, "no driver module is loaded", "module_uses")
        return
    whose = "the host's" if node.text("host_tool") else "the operator's" if node.get("driver_container", bool) else "a"
    yield node.says(
        Outcome.PASS,
        f"{whose} driver module {version or 'of unknown version'} is loaded",
        "driver_version",
        "module_uses",
    )


@_check("A21")
def _userspace(_inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    module, library = node.text("driver_version"), node.text("library_version")
    if not module or not library:
        if node.get("host_tool", str) == "" and not library:
            yield node.says(Outcome.PASS, "the host has no driver userspace of its own", "host_tool")
        return
    if module == library:
        yield node.says(Outcome.PASS, f"module and libraries are both {module}", "driver_version", "library_version")
        return
    yield node.says(
        Outcome.FAIL,
        f"the kernel has module {module}, the libraries are {library}: Driver/library version mismatch",
        "driver_version",
        "library_version",
        confirm="cat /proc/driver/nvidia/version; nvidia-smi",
        fix=("drain the node and reboot it, so that the module of the libraries' version is loaded",
             "and let one manager only update the driver"),
        action=Action.DRAIN_AND_REBOOT,
    )  # fmt: skip


@_check("A9")
def _owner(inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    known = node.object
    if node.list("modules") is None or known is None or driver_owner(inquiry.snapshot, known):
        return
    tools = "a toolkit" if has_toolkit(node.seen) else "no toolkit"
    whose = f"the driver is the host's, which has {tools}"
    if not has_driver(known, node.seen):
        whose = f"the host has no driver of its own and {tools}"
    yield node.says(Outcome.PASS, whose, "driver_version", "host_tool", "toolkit")


@_check("A23")
def _two_managers(inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    known = node.object
    host = node.text("host_library_version") or node.text("host_tool")
    if known is None or known.host_driver or not host:
        return  # the API tells
    pods = driver_pods(inquiry.snapshot, known)
    if pods:
        yield node.says(
            Outcome.FAIL,
            f"the host has a driver of its own ({host}), and a driver pod runs: two managers of one driver",
            "driver_version",
            "host_tool",
            "host_library_version",
            confirm=f"kubectl get pod -n {pods[0].namespace} {pods[0].name} -o wide",
            fix=(
                f"keep the operator's driver off the node: kubectl label node {node.name} {names.DEPLOY_DRIVER}=false",
                "or remove the host's driver, and reboot the node",
            ),
            action=Action.CHANGE_CONFIG,
        )


def _host_toolkit(node: _Node) -> list[str] | None:
    found = node.list("toolkit")
    return None if found is None else [str(each) for each in found if not str(each).startswith("/usr/local/nvidia/")]


@_check("A24")
def _toolkit(inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    found = _host_toolkit(node)
    if found is None:
        return
    if found and inquiry.settings.toolkit:
        yield node.says(
            Outcome.WARN,
            "the host has a container toolkit, and the operator is to install another",
            "toolkit",
            "toolkit_version",
            fix=("set toolkit.enabled=false, or remove the host's nvidia-container-toolkit",),
            action=Action.CHANGE_CONFIG,
        )
    else:
        yield node.says(Outcome.PASS, "the host has a toolkit" if found else "the host has no toolkit", "toolkit")


@_check("A37")
def _preinstalled(inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    if inquiry.settings.driver:
        yield node.says(Outcome.SKIP, "the operator manages the driver: driver.enabled=true")
    elif node.list("modules") is None:
        return
    elif version := node.text("driver_version"):
        yield inquiry.judged("A37", inquiry.target.driver(version), node.evidence("driver_version"), node=node.name)
    else:
        yield node.says(
            Outcome.FAIL,
            "driver.enabled=false, and the node has no driver loaded",
            "module_uses",
            confirm="nvidia-smi",
            fix=("install the driver on the node (node image), or set driver.enabled=true",),
        )


@_check("A38")
def _preinstalled_toolkit(inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    if inquiry.settings.driver or inquiry.settings.toolkit:
        yield node.says(Outcome.SKIP, "driver or toolkit is the operator's")
        return
    specs = node.list("cdi_specs")
    if specs is None:
        return
    runtime = _runtime(node)
    if (runtime or {}).get("default_runtime") == "nvidia" or specs:
        yield node.says(Outcome.PASS, "the runtime can give GPUs to containers", "cdi_specs", "containerd", "crio")
        return
    yield node.says(
        Outcome.FAIL,
        "toolkit.enabled=false, but nvidia is not the default runtime and there are no CDI specs",
        "cdi_specs",
        "containerd",
        "crio",
        fix=("nvidia-ctk runtime configure --runtime=containerd --set-as-default && systemctl restart containerd",
             "or: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
    )  # fmt: skip


# --- nouveau and Secure Boot ------------------------------------------------------------------------------------------

_INITRAMFS: Final = {True: "update-initramfs -u", False: "dracut --force"}
_DENY: Final = "printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' > /etc/modprobe.d/blacklist-nouveau.conf"


def _deny_steps(node: _Node) -> tuple[str, ...]:
    if node.text("os") == "rhcos":
        return ("apply a MachineConfig with the kernel arguments modprobe.blacklist=nouveau and nouveau.modeset=0",)
    return (_DENY, _INITRAMFS[node.debian], "drain the node and reboot it: systemctl reboot")


@_check("A25")
def _nouveau(inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    loaded = node.get("nouveau", bool)
    if loaded is None:
        return
    if not loaded:
        yield node.says(Outcome.PASS, "nouveau is not loaded", "nouveau")
        return
    outcome = Outcome.FAIL if inquiry.vgpu else Outcome.WARN
    title = "nouveau is loaded" + ("" if inquiry.vgpu else ": the driver manager will try to unload it")
    yield node.says(
        outcome, title, "nouveau", "module_uses", confirm="lsmod | grep nouveau", fix=_deny_steps(node),
        action=Action.DRAIN_AND_REBOOT,
    )  # fmt: skip


@_check("A26")
def _denied(_inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    files = node.list("nouveau_denied")
    if files is None:
        return
    if node.get("nouveau_on_cmdline", bool):
        yield node.says(Outcome.PASS, "the kernel's command line denies nouveau", "nouveau_on_cmdline")
    elif files and node.get("nouveau_denied_in_initramfs", bool) is False:
        yield node.says(
            Outcome.WARN,
            "nouveau is denied on disk but not in the initramfs: it is loaded before the file is read",
            "nouveau_denied",
            "nouveau_denied_in_initramfs",
            fix=_deny_steps(node)[1:] or _deny_steps(node),
            action=Action.DRAIN_AND_REBOOT,
        )
    elif files:
        yield node.says(Outcome.PASS, "nouveau is denied", "nouveau_denied", "nouveau_denied_in_initramfs")
    elif node.get("nouveau", bool) is False and "nvidia" in (node.list("modules") or []):
        yield node.says(Outcome.PASS, "nouveau is not denied, but NVIDIA's driver has the devices", "modules")
    else:
        yield node.says(Outcome.WARN, "nouveau is denied nowhere", "nouveau_denied", fix=_deny_steps(node))


def _secure_boot(inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    on = node.get("secure_boot", bool)
    if on is None:
        return
    facts = ("secure_boot", "firmware", "lockdown")
    if not on:
        yield node.says(Outcome.PASS, "Secure Boot is off", *facts)
    elif not inquiry.settings.driver:
        yield node.says(Outcome.PASS, "Secure Boot is on; the host's driver is signed by its own means", *facts)
    elif node.precompiled:
        yield node.says(
            Outcome.WARN,
            "Secure Boot is on: precompiled modules load only if their signer's key is enrolled",
            *facts,
            confirm="mokutil --list-enrolled",
            fix=("enrol the signer's key with mokutil --import, or switch Secure Boot off",),
        )
    else:
        yield node.says(
            Outcome.FAIL,
            "Secure Boot is on: the kernel refuses modules that the operator builds",
            *facts,
            severity=Severity.CRITICAL,
            confirm="mokutil --sb-state",
            fix=("switch Secure Boot off in the firmware", "or use precompiled signed modules with an enrolled key"),
        )


@_check("A27")
def _secure_boot_state(inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    yield from _secure_boot(inquiry, node)


@_check("A28")
def _secure_boot_gate(inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    yield from _secure_boot(inquiry, node)


# --- runtime and kubelet ----------------------------------------------------------------------------------------------


def _runtime(node: _Node) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = node.get("containerd", dict) or node.get("crio", dict)
    return found


def _service(node: _Node, *names: str) -> tuple[str, Mapping[str, Any]] | None:
    """The first of some services that is installed."""
    services = node.get("services", dict) or {}
    return next(((name, services[name]) for name in names if isinstance(services.get(name), Mapping)), None)


def _judge_runtime(node: _Node, fact: str, *services: str) -> Iterator[Finding]:
    runtime, service = node.get(fact, dict), _service(node, *services)
    if runtime is None and service is None:
        if node.list("sockets") is not None:
            yield node.says(Outcome.SKIP, f"the node does not run {fact}", "sockets")
        return
    errors = (runtime or {}).get("errors") or []
    facts = (fact, "services", "inactive_dropins")
    if errors:
        yield node.says(Outcome.FAIL, f"its configuration cannot be read: {_shown(errors)}", *facts,
                        fix=("correct the file before the runtime is restarted",))  # fmt: skip
    elif service is not None and service[1].get("state") not in (None, "", "active"):
        name, state = service[0], service[1].get("state")
        yield node.says(Outcome.FAIL, f"service {name} is {state}", *facts, confirm=f"systemctl status {name}",
                        fix=(f"systemctl enable --now {name}",))  # fmt: skip
    elif service is not None and service[1].get("enabled") == "disabled":
        yield node.says(Outcome.WARN, f"service {service[0]} is not enabled: it does not start at boot", *facts,
                        fix=(f"systemctl enable {service[0]}",))  # fmt: skip
    elif node.list("inactive_dropins") and fact == "containerd":
        yield node.says(Outcome.WARN, "there are drop-ins that the configuration does not import", *facts,
                        fix=('add imports = ["/etc/containerd/conf.d/*.toml"] to the main file',))  # fmt: skip
    else:
        version = (runtime or {}).get("version", "")
        yield node.says(Outcome.PASS, f"{fact} {version} is configured".replace("  ", " "), *facts)


@_check("A29")
def _containerd(_inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    yield from _judge_runtime(node, "containerd", "containerd", "k3s", "k3s-agent", "rke2-server", "rke2-agent")


@_check("A30")
def _crio(_inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    yield from _judge_runtime(node, "crio", "crio")


@_check("A31")
def _kubelet(inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    there = node.get("kubelet_socket", bool)
    service = _service(node, "kubelet")
    if service is not None and service[1].get("state") not in (None, "", "active"):
        yield node.says(Outcome.FAIL, f"service kubelet is {service[1].get('state')}", "services",
                        confirm="systemctl status kubelet", fix=("journalctl -u kubelet -n 100 says why",))  # fmt: skip
    elif there is False:
        title = f"no kubelet.sock in {node.text('kubelet_root')}/device-plugins: no plugin can register"
        yield node.says(Outcome.FAIL, title, "kubelet_root", "device_plugins",
                        fix=("set hostPaths.kubeletRootDir to the kubelet's --root-dir (26.7)",))  # fmt: skip
    elif there:
        yield _kubelet_root(inquiry, node)


def _kubelet_root(inquiry: Inquiry, node: _Node) -> Finding:
    """Whether operands look for the kubelet where it is."""
    root = node.text("kubelet_root") or names.KUBELET_ROOT
    paths = inquiry.settings.tree.get("hostPaths")
    can_be_told = numbers(inquiry.target.family) >= KUBELET_ROOT_SINCE
    told = str((paths if isinstance(paths, Mapping) and can_be_told else {}).get("kubeletRootDir") or "")
    wanted = told.rstrip("/") or names.KUBELET_ROOT
    if root == wanted:
        return node.says(Outcome.PASS, "the kubelet takes device plugins", "kubelet_root", "kubelet_socket")
    setting = f"set hostPaths.kubeletRootDir={root}"
    link = f"link {names.KUBELET_ROOT} to {root} on the node; releases from 26.7 have hostPaths.kubeletRootDir"
    return node.says(
        Outcome.FAIL,
        f"the kubelet's folder is {root}, and operands are told {wanted}: no plugin will register",
        "kubelet_root",
        "device_plugins",
        fix=(setting if can_be_told else link,),
        action=Action.CHANGE_CONFIG,
    )


KUBELET_ROOT_SINCE: Final = (26, 7)
"""First family that can be told the kubelet's folder."""


@_check("A32")
def _socket(_inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    sockets = node.list("sockets")
    if sockets is None:
        return
    if sockets:
        yield node.says(Outcome.PASS, f"the runtime listens at {_shown(sockets)}", "sockets")
        return
    yield node.says(Outcome.FAIL, "no runtime's socket is at any known path: the operator cannot mend that", "sockets",
                    confirm="crictl info",
                    fix=("start the container runtime, or set CONTAINERD_SOCKET in toolkit.env",))  # fmt: skip


def _switched_off(node: _Node) -> list[str]:
    """What of CDI and NRI the runtime has not got on: containerd before 2.0 unless it is told, others if told so."""
    runtime = _runtime(node) or {}
    version = numbers(str(runtime.get("version") or "")) if node.get("containerd", dict) is not None else ()
    old = bool(version) and version < (2,)
    off = [name for name in ("cdi", "nri") if runtime.get(name) is False or (old and runtime.get(name) is None)]
    return [name for name in off if name != "nri" or not node.get("nri_socket", bool)]


@_check("A47")
def _nri(inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    if not inquiry.settings.nri:
        return  # the API tells
    if _runtime(node) is None:
        return
    facts = ("containerd", "crio", "nri_socket")
    off = " and ".join(name.upper() for name in _switched_off(node))
    if not off:
        yield node.says(Outcome.PASS, "the runtime has CDI and NRI on", *facts)
        return
    yield node.says(
        Outcome.FAIL,
        f"the runtime has {off} switched off, and NRI is to be used",
        *facts,
        fix=(f"switch {off} on in the runtime's configuration and restart it", "or set cdi.nriPluginEnabled=false"),
        action=Action.CHANGE_CONFIG,
    )


# --- network ----------------------------------------------------------------------------------------------------------


def _tried(node: _Node, *facts: str) -> dict[str, Mapping[str, Any]]:
    groups = [node.get(fact, dict) or {} for fact in facts]
    return {str(what): told for group in groups for what, told in group.items() if isinstance(told, Mapping)}


def _network(node: _Node, *facts: str) -> Iterator[Finding]:
    tried = _tried(node, *facts)
    if not tried:
        return
    failed = {what: told for what, told in tried.items() if told.get("problem")}
    skew = node.get("clock_skew_s", (int, float))  # type: ignore[arg-type]
    if failed:
        lines = [
            Evidence(redacted(f"node/{node.name} {what}"), redacted(str(told["problem"])))
            for what, told in failed.items()
        ]
        finding = node.says(
            Outcome.FAIL,
            f"{len(failed)} of {len(tried)} addresses and images cannot be had from the node",
            fix=(
                "open egress, set a proxy for the runtime, or mirror the images and packages",
                "give pull secrets where one asks",
            ),
            action=Action.CHANGE_CONFIG,
        )
        yield msgspec.structs.replace(finding, evidence=(*finding.evidence, *lines))
    elif skew is not None and abs(skew) > SKEW_S:
        yield node.says(Outcome.WARN, f"the node's clock differs by {skew} s", "clock_skew_s", "clock_service",
                        fix=("start chronyd or systemd-timesyncd",))  # fmt: skip
    else:
        yield node.says(Outcome.PASS, f"all {len(tried)} addresses and images are reached", *facts, "clock_skew_s")


@_check("A8")
def _reachable(_inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    yield from _network(node, "reach")


@_check("A33")
def _access(_inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    yield from _network(node, "reach", "pull")


@_check("A34")
def _air_gap(_inquiry: Inquiry, node: _Node) -> Iterator[Finding]:
    tried = _tried(node, "reach", "pull")
    if not tried:
        return
    if all(told.get("problem") and not told.get("status") for told in tried.values()):
        yield node.says(
            Outcome.WARN,
            "nothing outside is reached: the cluster is air-gapped and needs mirrors from the start",
            "reach",
            fix=(
                "mirror every image and package of A33 first; set repository, driver.repoConfig and driver.certConfig",
            ),
        )
    else:
        yield node.says(Outcome.PASS, "the node reaches the outside", "reach")
