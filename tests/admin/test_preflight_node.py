"""Preflight on nodes: each check with facts where it holds and facts where it does not; unread facts say nothing."""

from typing import Any

import msgspec
import pytest
from preflight_world import DRIVER_POD, driver, inquire, node

from groundplane.admin.checks import CHECKS
from groundplane.admin.inquiry import Inquiry
from groundplane.admin.preflight_node import ANSWERS
from groundplane.admin.snapshot import Settings
from groundplane.diagnose.evidence import NODE_FACTS, NodeFacts
from groundplane.diagnose.findings import Finding, Layer, Outcome

PASS, WARN, FAIL, SKIP = Outcome.PASS, Outcome.WARN, Outcome.FAIL, Outcome.SKIP
GPU = {"address": "0000:01:00.0", "device": "2330", "class": "0302"}
UBUNTU = {"os": "ubuntu", "kernel": "6.8.0-60-generic", "headers_package": "linux-headers-6.8.0-60-generic"}
RHEL = {"os": "rhel", "kernel": "5.14.0-427.el9.x86_64", "headers_package": "kernel-devel-5.14.0-427.el9.x86_64"}
HOST = Settings(driver=False)
BARE = Settings(driver=False, toolkit=False)
NRI = Settings(nri=True)
K0S = Settings(tree={"hostPaths": {"kubeletRootDir": "/var/lib/k0s/kubelet/"}})
HOST_DRIVER = {"modules": ["nvidia"], "driver_version": "580.1", "host_tool": "/usr/bin/nvidia-smi"}
PRECOMPILED = Settings(precompiled=True, driver_version="580")
ACTIVE = {"state": "active", "enabled": "enabled"}
NO = {"problem": "the name nvcr.io cannot be resolved"}


def judged(number: str, facts: dict[str, Any], planned: Settings | None = None, *, vgpu: bool = False) -> list[Finding]:
    assert facts.keys() <= NODE_FACTS.keys(), "facts that have names"
    seen = {"gpu-1": NodeFacts("gpu-1", facts)}
    cluster = inquire(pods=[DRIVER_POD]) if number == "A23" else inquire()
    inquiry: Inquiry = msgspec.structs.replace(cluster, node_facts=seen, planned=planned or Settings(), vgpu=vgpu)
    return list(ANSWERS[number](inquiry))


CASES: list[tuple[str, dict[str, Any], Settings | None, Outcome, str]] = [
    ("A12", {"gpus": [GPU], "nvswitches": [GPU]}, None, PASS, "1 GPUs on the PCI bus, 1 NVSwitches"),
    ("A12", {"gpus": [GPU, {**GPU, "virtual_function": True}]}, None, PASS, "1 of them virtual functions"),
    ("A12", {"gpus": [], "pci": ["8086:1"]}, None, FAIL, "no GPU"),
    ("A13", {"gpus": [GPU]}, None, PASS, "hardware to go on with"),
    ("A13", {"gpus": []}, None, FAIL, "stop"),
    ("A4", {**UBUNTU, "headers": "installed"}, None, PASS, "is installed"),
    ("A4", {**UBUNTU, "headers": "absent"}, None, FAIL, "neither installed nor"),
    ("A4", {**UBUNTU, "headers": "absent"}, HOST, SKIP, "driver.enabled=false"),
    ("A4", {**UBUNTU, "headers": "absent"}, PRECOMPILED, SKIP, "need no headers"),
    ("A15", {**UBUNTU, "headers": "available"}, None, PASS, "in the node's repositories"),
    ("A15", {**UBUNTU, "headers": "not installed"}, None, WARN, "no package list"),
    ("A15", {**RHEL, "headers": "absent"}, None, SKIP, "Debian"),
    ("A16", {**RHEL, "headers": "installed"}, None, PASS, "kernel-devel-5.14.0-427.el9.x86_64"),
    ("A16", {**RHEL, "headers": "absent"}, None, FAIL, "cannot be built"),
    ("A16", {**UBUNTU, "headers": "absent"}, None, SKIP, "RHEL"),
    ("A17", {**UBUNTU, "headers": "available"}, None, PASS, "nothing to decide"),
    ("A17", {**UBUNTU, "headers": "absent"}, None, WARN, "choose"),
    ("A18", {"kernel_updates": [], "kernel_holds": []}, None, PASS, "nothing installs kernels"),
    ("A18", {"kernel_updates": ["unattended-upgrades"], "kernel_holds": ["linux-image"]}, None, PASS, "held"),
    ("A18", {**UBUNTU, "kernel_updates": ["unattended-upgrades"]}, None, WARN, "unattended-upgrades"),
    ("A19", {"newer_kernel": ""}, None, PASS, "newest"),
    ("A19", {"newer_kernel": "6.8.0-61-generic"}, None, WARN, "6.8.0-61-generic"),
    ("A20", {"modules": []}, None, PASS, "no driver module"),
    ("A20", {"modules": ["nvidia"], "driver_version": "580.1", "host_tool": "/x"}, None, PASS, "the host's driver"),
    ("A21", {"driver_version": "580.1", "library_version": "580.1"}, None, PASS, "both 580.1"),
    ("A21", {"driver_version": "580.1", "library_version": "580.2"}, None, FAIL, "mismatch"),
    ("A24", {"toolkit": []}, None, PASS, "no toolkit"),
    ("A24", {"toolkit": ["/usr/local/nvidia/toolkit/nvidia-ctk"]}, None, PASS, "no toolkit"),
    ("A24", {"toolkit": ["/usr/bin/nvidia-ctk"]}, None, WARN, "another"),
    ("A24", {"toolkit": ["/usr/bin/nvidia-ctk"]}, BARE, PASS, "has a toolkit"),
    ("A25", {"nouveau": False}, None, PASS, "not loaded"),
    ("A25", {"nouveau": True}, None, WARN, "will try to unload"),
    ("A26", {"nouveau_denied": ["/etc/modprobe.d/x.conf"]}, None, PASS, "denied"),
    ("A26", {"nouveau_denied": [], "nouveau_on_cmdline": True}, None, PASS, "command line"),
    ("A26", {"nouveau_denied": []}, None, WARN, "nowhere"),
    ("A26", {"nouveau_denied": ["/x"], "nouveau_denied_in_initramfs": False}, None, WARN, "not in the initramfs"),
    ("A27", {"secure_boot": False}, None, PASS, "off"),
    ("A27", {"secure_boot": True}, None, FAIL, "refuses modules"),
    ("A27", {"secure_boot": True}, PRECOMPILED, WARN, "enrolled"),
    ("A28", {"secure_boot": True}, HOST, PASS, "host's driver"),
    ("A28", {"secure_boot": True}, None, FAIL, "refuses modules"),
    ("A29", {"containerd": {"version": "1.7.28"}, "services": {"containerd": ACTIVE}}, None, PASS, "containerd 1.7.28"),
    ("A29", {"containerd": {}, "services": {"containerd": {"state": "failed"}}}, None, FAIL, "is failed"),
    ("A29", {"containerd": {}, "services": {"containerd": {**ACTIVE, "enabled": "disabled"}}}, None, WARN, "at boot"),
    ("A29", {"containerd": {"errors": ["/x: bad"]}}, None, FAIL, "/x: bad"),
    ("A29", {"containerd": {}, "inactive_dropins": ["/etc/containerd/conf.d/a.toml"]}, None, WARN, "drop-ins"),
    ("A29", {"sockets": ["/run/crio/crio.sock"]}, None, SKIP, "does not run containerd"),
    ("A30", {"crio": {"version": "1.34.0"}}, None, PASS, "crio 1.34.0"),
    ("A30", {"services": {"crio": {"state": "inactive"}}}, None, FAIL, "is inactive"),
    ("A31", {"kubelet_socket": True}, None, PASS, "takes device plugins"),
    ("A31", {"kubelet_socket": False, "kubelet_root": "/var/lib/kubelet"}, None, FAIL, "no kubelet.sock"),
    ("A31", {"services": {"kubelet": {"state": "failed"}}}, None, FAIL, "kubelet is failed"),
    ("A32", {"sockets": ["/run/containerd/containerd.sock"]}, None, PASS, "listens"),
    ("A32", {"sockets": []}, None, FAIL, "cannot mend"),
    ("A8", {"reach": {"https://nvcr.io": {"status": 200}}}, None, PASS, "all 1"),
    ("A8", {"reach": {"https://nvcr.io": NO}}, None, FAIL, "1 of 1"),
    ("A33", {"reach": {"https://a": {"status": 200}}, "pull": {"i": NO}}, None, FAIL, "1 of 2"),
    ("A33", {"pull": {"i": {"status": 200}}, "clock_skew_s": 400.0}, None, WARN, "400.0 s"),
    ("A33", {"pull": {"i": {"status": 200}}, "clock_skew_s": 1.0}, None, PASS, "all 1"),
    ("A34", {"reach": {"https://a": NO}}, None, WARN, "air-gapped"),
    ("A34", {"reach": {"https://a": NO, "https://b": {"status": 200}}}, None, PASS, "reaches"),
    ("A31", {"kubelet_socket": True, "kubelet_root": "/var/lib/k0s/kubelet"}, None, FAIL, "are told /var/lib/kubelet"),
    ("A31", {"kubelet_socket": True, "kubelet_root": "/var/lib/k0s/kubelet"}, K0S, PASS, "takes device plugins"),
    ("A31", {"kubelet_socket": True, "kubelet_root": "/var/lib/kubelet"}, K0S, FAIL, "are told /var/lib/k0s/kubelet"),
    ("A9", {"modules": []}, None, PASS, "no driver of its own and no toolkit"),
    ("A9", HOST_DRIVER, None, PASS, "the driver is the host's, which has no toolkit"),
    ("A23", HOST_DRIVER, None, FAIL, "two managers of one driver"),
    ("A47", {"containerd": {"version": "2.1.4", "cdi": True}}, NRI, PASS, "has CDI and NRI on"),
    ("A47", {"containerd": {"version": "1.7.30", "cdi": True}, "nri_socket": True}, NRI, PASS, "has CDI and NRI on"),
    ("A47", {"containerd": {"version": "1.7.30"}}, NRI, FAIL, "has CDI and NRI switched off"),
    ("A47", {"crio": {"version": "1.34.0", "nri": False}}, NRI, FAIL, "has NRI switched off"),
    ("A37", {"modules": ["nvidia"], "driver_version": "580.173.02"}, HOST, PASS, "580.173.02 is listed"),
    ("A37", {"modules": ["nvidia"], "driver_version": "470.1"}, HOST, WARN, "470.1 is not listed"),
    ("A37", {"modules": []}, HOST, FAIL, "no driver loaded"),
    ("A37", {"modules": []}, None, SKIP, "driver.enabled=true"),
    ("A38", {"cdi_specs": [], "containerd": {"default_runtime": "nvidia"}}, BARE, PASS, "can give"),
    ("A38", {"cdi_specs": [{"path": "/x"}]}, BARE, PASS, "can give"),
    ("A38", {"cdi_specs": []}, BARE, FAIL, "no CDI specs"),
]


@pytest.mark.parametrize(("number", "facts", "planned", "outcome", "words"), CASES)
def test_each_check(number: str, facts: dict[str, Any], planned: Settings | None, outcome: Outcome, words: str) -> None:
    (finding,) = judged(number, facts, planned)
    assert (finding.id, finding.node, finding.outcome) == (number, "gpu-1", outcome)
    assert words in finding.title
    if outcome is FAIL:
        assert finding.fix or finding.confirm
    assert finding.layer is CHECKS[number].layer


@pytest.mark.parametrize("number", sorted(ANSWERS))
def test_each_check_has_both_cases_and_says_nothing_of_what_was_not_read(number: str) -> None:
    outcomes = {outcome for each, _, _, outcome, _ in CASES if each == number}
    assert PASS in outcomes or number == "A23", "of A23, the API tells that all is well"
    assert outcomes & {WARN, FAIL} or number in ("A9", "A20"), "these tell only what there is"
    assert [each for each in judged(number, {}) if each.outcome is not SKIP] == []
    wrong = dict.fromkeys(NODE_FACTS, 7)
    assert [each for each in judged(number, wrong) if each.outcome in (FAIL, WARN)] == []


def test_the_lowest_layer_stops_all() -> None:
    (finding,) = judged("A13", {"gpus": []})
    assert finding.layer is Layer.HARDWARE
    assert any("instance type" in step for step in finding.fix) and any("BIOS" in step for step in finding.fix)


@pytest.mark.parametrize(("system", "step"), [("ubuntu", "update-initramfs -u"), ("rhel", "dracut --force")])
def test_the_steps_against_nouveau_are_those_of_the_system(system: str, step: str) -> None:
    (finding,) = judged("A26", {"os": system, "nouveau_denied": []})
    assert finding.fix[0].endswith("/etc/modprobe.d/blacklist-nouveau.conf")
    assert finding.fix[1:] == (step, "drain the node and reboot it: systemctl reboot")


def test_the_driver_that_selects_the_node_counts() -> None:
    """With NVIDIADriver objects, a node's own driver says whether it is built there."""
    drivers = [
        {"metadata": {"name": "a"}, "spec": {"usePrecompiled": True, "version": "580", "nodeSelector": {"pool": "a"}}},
        {"metadata": {"name": "b"}, "spec": {"nodeSelector": {"pool": "b"}}},
    ]
    nodes = [node("gpu-1", labels={"pool": "a"}), node("gpu-2", labels={"pool": "b"})]
    seen = {name: NodeFacts(name, {"secure_boot": True, **UBUNTU, "headers": "absent"}) for name in ("gpu-1", "gpu-2")}
    cluster = inquire(nodes=nodes, drivers=drivers, policies=driver(useNvidiaDriverCRD=True))
    inquiry = msgspec.structs.replace(cluster, node_facts=seen)
    assert [each.outcome for each in ANSWERS["A28"](inquiry)] == [WARN, FAIL]
    assert [each.outcome for each in ANSWERS["A15"](inquiry)] == [SKIP, FAIL]


PLANTED = "hunter2-very-secret"


@pytest.mark.parametrize(
    ("number", "facts"),
    [
        ("A29", {"containerd": {"errors": [f"/x: https://me:{PLANTED}@mirror is no table"]}}),
        ("A33", {"pull": {"i": {"problem": f"get https://me:{PLANTED}@mirror/v2/: refused"}}}),
        ("A8", {"reach": {f"https://me:{PLANTED}@mirror": NO}}),
        ("A34", {"reach": {f"https://me:{PLANTED}@mirror": NO}}),
        ("A20", {"modules": ["nvidia"], "driver_version": f"580 token={PLANTED}"}),
    ],
)
def test_no_secret_of_a_node_is_shown(number: str, facts: dict[str, Any]) -> None:
    found = judged(number, facts)
    assert found and PLANTED not in str(msgspec.json.encode(found))


def test_nouveau_fails_for_vgpu() -> None:
    assert judged("A25", {"nouveau": True}, vgpu=True)[0].outcome is FAIL


@pytest.mark.parametrize(
    ("facts", "words"), [(UBUNTU, "apt-get install -y linux-headers-6"), (RHEL, "dnf install -y kernel-devel-5")]
)
def test_the_package_to_install_is_named(facts: dict[str, Any], words: str) -> None:
    (finding,) = judged("A4", {**facts, "headers": "absent"})
    assert words in finding.fix[0]
