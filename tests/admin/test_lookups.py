"""What the support matrix means (contracts/admin-workflow.md 4), on the shipped file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.admin import lookups
from groundplane.admin.lookups import Gpu, Target, Verdict, gpu_of
from groundplane.admin.matrix import shipped
from groundplane.admin.versions import Minors, Patterns, distribution, kernel_flavour, minor, numbers, os_key, runtime
from groundplane.api import names
from groundplane.diagnose.findings import Outcome


def target(version: str = "26.3.3") -> Target:
    return Target.of(shipped(), version)


def says(verdict: Verdict, outcome: str, row: str) -> None:
    assert (verdict.outcome, verdict.row) == (Outcome(outcome), row), verdict.reason


# --- Strings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v1.33.4-gke.1172000", (1, 33)),
        ("v1.32.6+rke2r1", (1, 32)),
        ("v1.31.5-eks-5d632ec", (1, 31)),
        ("1.36", (1, 36)),
        ("v1", None),
        ("", None),
    ],
)
def test_kubernetes_versions(text: str, expected: tuple[int, int] | None) -> None:
    assert minor(text) == expected


@pytest.mark.parametrize(
    ("text", "kind", "version"),
    [
        ("containerd://1.7.28", "containerd", (1, 7, 28)),
        ("containerd://2.0.5-k3s1", "containerd", (2, 0, 5)),
        ("containerd://1.7.27~ds1", "containerd", (1, 7, 27)),
        ("containerd://1.7.12-0ubuntu1", "containerd", (1, 7, 12)),
        ("cri-o://1.34.1-3.rhaos4.21", "cri-o", (1, 34, 1)),
        ("docker://27.1", "docker", (27, 1)),
        ("containerd://Unknown", "containerd", ()),
    ],
)
def test_runtime_strings(text: str, kind: str, version: tuple[int, ...]) -> None:
    found = runtime(text)
    assert found is not None
    assert (found.kind, found.version) == (kind, version)


def test_what_is_no_runtime() -> None:
    assert runtime("1.7.28") is None
    assert runtime("") is None


@pytest.mark.parametrize(
    ("image", "openshift", "key"),
    [
        ("Ubuntu 24.04.1 LTS", False, "ubuntu24.04"),
        ("Red Hat Enterprise Linux 9.6 (Plow)", False, "rhel9.6"),
        ("Red Hat Enterprise Linux CoreOS 418.94.202501-0 (Plow)", True, "rhcos"),
        ("Red Hat Enterprise Linux CoreOS 9.6.20250701-0 (Plow)", False, "rhcos"),
        ("Rocky Linux 9.7 (Blue Onyx)", False, "rocky9.7"),
        ("SUSE Linux Enterprise Server 15 SP6", False, "sles15"),
        ("Debian GNU/Linux 12 (bookworm)", False, "debian12"),
        ("Container-Optimized OS from Google", False, "cos"),
        ("Something else", False, ""),
    ],
)
def test_operating_systems_by_image(image: str, openshift: bool, key: str) -> None:
    assert os_key({}, image, openshift=openshift) == key


@pytest.mark.parametrize(
    ("os_id", "version", "openshift", "key"),
    [
        ("ubuntu", "22.04", False, "ubuntu22.04"),
        ("rhel", "9.6", False, "rhel9.6"),
        ("rhel", "9.6", True, "rhcos"),
        ("rhcos", "4.18", False, "rhcos"),
        ("rhel", "", False, "ubuntu24.04"),
    ],
)
def test_operating_systems_by_label(os_id: str, version: str, openshift: bool, key: str) -> None:
    labels = {names.OS_RELEASE_ID: os_id, names.OS_RELEASE_VERSION_ID: version}
    assert os_key(labels, "Ubuntu 24.04.3 LTS", openshift=openshift) == key


@pytest.mark.parametrize(
    ("kubelet", "labels", "expected"),
    [
        ("v1.33.1+k3s1", {}, "k3s"),
        ("v1.32.6+rke2r1", {}, "rke2"),
        ("v1.33.1+k0s", {}, "k0s"),
        ("v1.33.4-gke.1172000", {}, "gke"),
        ("v1.31.5-eks-5d632ec", {}, "eks"),
        ("v1.33.1", {"microk8s.io/cluster": "true"}, "microk8s"),
        ("v1.31.1", {"node.openshift.io/os_id": "rhel"}, "openshift"),
        ("v1.33.1", {}, "k8s"),
    ],
)
def test_distributions(kubelet: str, labels: dict[str, str], expected: str) -> None:
    assert distribution(kubelet, labels) == expected


@pytest.mark.parametrize(
    ("kernel", "flavour"),
    [
        ("6.8.0-60-generic", "generic"),
        ("6.8.0-1021-azure-fde", "azure-fde"),
        ("5.14.0-570.el9.x86_64", ""),
    ],
)
def test_kernel_flavours(kernel: str, flavour: str) -> None:
    assert kernel_flavour(kernel) == flavour


@given(st.tuples(st.integers(0, 9), st.integers(0, 99)), st.integers(0, 20))
def test_ranges_round_trip(low: tuple[int, int], more: int) -> None:
    text = f"{low[0]}.{low[1]}-{low[0]}.{low[1] + more}" if more else f"{low[0]}.{low[1]}"
    found = Minors.parse(text)
    assert str(found) == text
    assert low in found
    assert (low[0], low[1] + more + 1) not in found


@given(st.lists(st.integers(0, 999), min_size=1, max_size=4), st.sampled_from(["", "v"]), st.sampled_from(["", "-x.1"]))
def test_numbers_of_any_version(parts: list[int], before: str, after: str) -> None:
    assert numbers(before + ".".join(map(str, parts)) + after) == tuple(parts)


def test_patterns() -> None:
    assert (2, 1, 0) in Patterns.parse("2.1.*")
    assert (2, 2, 0) not in Patterns.parse("2.1.*")
    assert (1, 7, 29) not in Patterns.parse(">=1.7.30,<1.8")


# --- Releases --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version", "outcome"),
    [
        ("v26.3.3", "26.3.3", "pass"),
        ("26.3", "26.3.3", "pass"),
        ("26.3.9", "26.3.9", "warn"),
        ("27.1", "27.1.0", "warn"),
    ],
)
def test_releases(text: str, version: str, outcome: str) -> None:
    assert target(text).version == version
    assert target(text).listed().outcome == outcome


def test_what_is_no_release() -> None:
    with pytest.raises(ValueError, match=r"'latest' is no release of the GPU Operator; give one such as v26\.3\.3"):
        target("latest")


@pytest.mark.parametrize(
    ("version", "outcome", "words"),
    [
        ("26.7.0", "pass", "supported"),
        ("26.3.3", "warn", "deprecated"),
        ("25.10.1", "warn", "end of support"),
        ("24.9.2", "warn", "end of support"),
        ("27.1.0", "warn", "not in the matrix of 2026-08-21"),
    ],
)
def test_lifecycle_by_position(version: str, outcome: str, words: str) -> None:
    verdict = target(version).lifecycle()
    assert verdict.outcome == outcome
    assert words in verdict.reason


def test_lifecycle_agrees_with_the_page() -> None:
    words = {"supported": "pass", "deprecated": "warn", "end_of_support": "warn"}
    assert all(target(family).lifecycle().outcome == words[word] for family, word in shipped().lifecycle.items())


# --- Kubernetes and systems ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "version", "key", "distro", "outcome", "row"),
    [
        ("26.3.3", "v1.36.0", "ubuntu24.04", "k8s", "pass", "platforms.26.3.os.ubuntu24.04.k8s"),
        ("26.3.2", "v1.36.0", "ubuntu24.04", "k8s", "pass", "platforms.26.3.os.ubuntu24.04.k8s"),
        ("26.3.1", "v1.36.0", "ubuntu24.04", "k8s", "warn", "platforms.26.3.kubernetes.max_by_patch.26.3.1"),
        ("26.3.1", "v1.35.0", "ubuntu24.04", "k8s", "pass", "platforms.26.3.os.ubuntu24.04.k8s"),
        ("25.10.0", "v1.35.0", "ubuntu24.04", "k8s", "warn", "platforms.25.10.kubernetes.max_by_patch.25.10.0"),
        ("26.3.9", "v1.36.0", "ubuntu24.04", "k8s", "pass", "platforms.26.3.os.ubuntu24.04.k8s"),
        ("26.3.3", "v1.31.9", "ubuntu24.04", "k8s", "warn", "platforms.26.3.os.ubuntu24.04.k8s"),
        ("26.7.0", "v1.32.1", "ubuntu24.04", "k8s", "pass", "platforms.26.7.os.ubuntu24.04.k8s"),
        ("26.7.0", "v1.32.1", "ubuntu22.04", "k8s", "warn", "platforms.26.7.os.ubuntu22.04.k8s"),
        ("26.3.3", "v1.32.6+rke2r1", "rhel9.6", "rke2", "pass", "platforms.26.3.os.rhel9.6.rke2"),
        ("26.3.3", "v1.32.6+k3s1", "rhel9.6", "k3s", "warn", "platforms.26.3.os.rhel9.6.k3s"),
        ("26.3.3", "v1.33.4-gke.1172000", "ubuntu22.04", "gke", "pass", "platforms.26.3.csp.gke"),
        ("26.3.3", "v1.33.4", "ubuntu22.04", "aks", "warn", "platforms.26.3.csp.aks"),
        ("26.3.3", "v1.31.5", "rhcos", "openshift", "pass", "platforms.26.3.os.rhcos.openshift"),
        ("26.7.0", "v1.30.5", "rhcos", "openshift", "warn", "platforms.26.7.os.rhcos.openshift"),
        ("26.3.3", "v1.34.5", "debian12", "k8s", "pass", "platforms.26.3.kubernetes"),
        ("27.1.0", "v1.34.5", "ubuntu24.04", "k8s", "warn", "releases"),
    ],
)  # fmt: skip
def test_kubernetes(release: str, version: str, key: str, distro: str, outcome: str, row: str) -> None:
    says(target(release).kubernetes(version, key, distro), outcome, row)


def test_a_patch_that_reaches_further_is_named() -> None:
    assert target("26.3.0").kubernetes("1.36", "ubuntu24.04").fix == ("use v26.3.2 or newer",)


def test_kubernetes_unread_is_unknown() -> None:
    assert target().kubernetes("", "ubuntu24.04").outcome == "unknown"


@pytest.mark.parametrize(
    ("release", "key", "options", "outcome", "row"),
    [
        ("26.3.3", "ubuntu24.04", {}, "pass", "platforms.26.3.os.ubuntu24.04"),
        ("26.3.1", "ubuntu20.04", {}, "pass", "platforms.26.3.os.ubuntu20.04"),
        ("26.3.2", "ubuntu20.04", {}, "warn", "platforms.26.3.os.ubuntu20.04"),
        ("25.3.0", "rhel9.4", {}, "warn", "platforms.25.3.os.rhel9.4"),
        ("25.3.1", "rhel9.4", {}, "pass", "platforms.25.3.os.rhel9.4"),
        ("26.3.3", "rhel9.6", {"arch": "arm64"}, "warn", "platforms.26.3.os.rhel9.6"),
        ("26.3.3", "debian12", {}, "warn", "platforms.26.3.os"),
        ("26.7.0", "sles15", {}, "pass", "platforms.26.7.partner_validated.sles"),
        ("24.9.2", "rhel8.6-8.9", {"vgpu": True}, "pass", "platforms.24.9.vgpu_os_extra.rhel8.6-8.9"),
        ("26.3.3", "", {}, "unknown", ""),
    ],
)  # fmt: skip
def test_operating_systems(release: str, key: str, options: dict[str, bool], outcome: str, row: str) -> None:
    says(target(release).operating_system(key, **options), outcome, row)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("release", "text", "key", "outcome", "row"),
    [
        ("26.3.3", "containerd://1.7.28-k3s1", "ubuntu24.04", "pass", "platforms.26.3.containerd_os"),
        ("26.3.3", "containerd://2.3.0", "ubuntu24.04", "warn", "platforms.26.3.containerd"),
        ("26.7.0", "containerd://2.3.0", "ubuntu24.04", "pass", "platforms.26.7.containerd_os"),
        ("26.7.0", "containerd://1.7.2", "rhel9.6", "pass", "platforms.26.7.containerd_os"),
        ("26.7.0", "containerd://1.7.2", "rhel10.1", "warn", "platforms.26.7.containerd_os"),
        ("26.7.0", "cri-o://1.34.1", "rhcos", "pass", "platforms.26.7.crio_os"),
        ("26.7.0", "cri-o://1.34.1", "ubuntu26.04", "warn", "platforms.26.7.crio_os"),
        ("26.7.0", "docker://27.1.1", "ubuntu24.04", "fail", "platforms.26.7.containerd"),
        ("26.7.0", "rkt://1.0", "ubuntu24.04", "warn", "platforms.26.7.containerd"),
        ("26.7.0", "", "ubuntu24.04", "unknown", ""),
    ],
)
def test_runtimes(release: str, text: str, key: str, outcome: str, row: str) -> None:
    says(target(release).runtime(text, key), outcome, row)


@pytest.mark.parametrize(
    ("release", "text", "outcome", "row"),
    [
        ("26.3.3", "containerd://1.7.30", "pass", "platforms.26.3.nri.containerd"),
        ("26.3.3", "containerd://1.7.29", "warn", "platforms.26.3.nri.containerd"),
        ("26.3.3", "containerd://2.0.5", "warn", "platforms.26.3.nri.containerd"),
        ("26.3.3", "containerd://2.3.0", "warn", "platforms.26.3.nri.containerd"),
        ("26.7.0", "containerd://2.3.0", "pass", "platforms.26.7.nri.containerd"),
        ("26.3.1", "cri-o://1.34.0", "warn", "platforms.26.3.nri.crio"),
        ("26.3.2", "cri-o://1.34.0", "pass", "platforms.26.3.nri.crio"),
        ("26.7.0", "cri-o://1.33.9", "warn", "platforms.26.7.nri.crio.min"),
        ("25.10.1", "containerd://2.1.0", "warn", "platforms.25.10.nri"),
    ],
)
def test_nri(release: str, text: str, outcome: str, row: str) -> None:
    verdict = target(release).nri(text)
    says(verdict, outcome, row)
    assert verdict.blocks is (outcome == "warn")


def test_nri_needs_cdi_and_the_toolkit() -> None:
    says(target("26.3.3").nri("containerd://2.1.0", cdi=False), "fail", "platforms.26.3.nri.requires_cdi")
    says(target("26.7.0").nri("containerd://2.1.0", toolkit=False), "fail", "platforms.26.7.nri.requires_toolkit")
    assert target("26.3.3").nri("containerd://2.1.0", toolkit=False).outcome == "pass"


K3S = {
    "CONTAINERD_CONFIG": "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "CONTAINERD_SOCKET": "/run/k3s/containerd/containerd.sock",
}


@pytest.mark.parametrize(
    ("release", "distro", "env", "outcome", "row"),
    [
        ("26.3.3", "k3s", K3S, "pass", "runtime_paths.k3s"),
        ("26.3.3", "k3s", {}, "warn", "runtime_paths.k3s"),
        ("26.3.3", "rke2", K3S, "warn", "runtime_paths.rke2"),
        ("26.3.3", "k8s", {}, "pass", "runtime_paths.default"),
        ("26.3.3", "k8s", {"CONTAINERD_CONFIG": "/etc/own.toml"}, "pass", "runtime_paths.default"),
        ("26.3.3", "k8s", K3S, "warn", "runtime_paths.k3s"),
        ("26.3.3", "k0s", {}, "warn", "runtime_paths"),
        ("25.10.0", "gke", {}, "warn", "runtime_paths.gke"),
        ("26.3.3", "gke", {}, "pass", "runtime_paths.default"),
    ],
)
def test_toolkit_env(release: str, distro: str, env: dict[str, str], outcome: str, row: str) -> None:
    says(target(release).toolkit_env(distro, env), outcome, row)


def test_toolkit_env_is_proposed() -> None:
    assert target().toolkit_env("k3s", {}).fix == tuple(
        f"set {name}={value} in toolkit.env" for name, value in K3S.items()
    )


# --- Drivers and GPUs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "version", "outcome"),
    [("26.3.3", "580.126.20", "pass"), ("26.3.3", "580.178.04", "pass"), ("26.3.3", "550.1.1", "warn"),
     ("26.3.9", "580.126.20", "warn")],
)  # fmt: skip
def test_drivers(release: str, version: str, outcome: str) -> None:
    assert target(release).driver(version).outcome == outcome


@pytest.mark.parametrize(
    ("version", "precompiled", "outcome"),
    [("580", True, "pass"), ("580.126.20", True, "fail"), ("", True, "fail"), ("580.126.20", False, "pass"),
     ("", False, "pass"), ("580", False, "fail"), ("sha256:ab", False, "pass")],
)  # fmt: skip
def test_form_of_the_driver_version(version: str, precompiled: bool, outcome: str) -> None:
    assert target().driver_form(version, precompiled=precompiled).outcome == outcome


@pytest.mark.parametrize(
    ("release", "key", "kernel", "branch", "outcome"),
    [
        ("26.3.3", "ubuntu24.04", "6.8.0-60-generic", "570", "pass"),
        ("26.7.0", "ubuntu24.04", "6.8.0-60-generic", "570", "warn"),
        ("26.7.0", "ubuntu26.04", "7.0.0-10-generic", "595", "pass"),
        ("26.7.0", "ubuntu26.04", "7.0.0-10-generic", "580", "warn"),
        ("26.3.3", "ubuntu24.04", "6.8.0-1021-azure-fde", "580", "warn"),
        ("26.7.0", "ubuntu24.04", "6.8.0-1021-azure-fde", "580", "pass"),
        ("26.7.0", "ubuntu24.04", "6.11.0-29-generic", "580", "warn"),
        ("26.7.0", "ubuntu24.04", "6.8.0-60-lowlatency", "580", "warn"),
        ("26.7.0", "rhel9.6", "5.14.0-570.el9.x86_64", "580", "warn"),
    ],
)
def test_precompiled(release: str, key: str, kernel: str, branch: str, outcome: str) -> None:
    assert target(release).precompiled(key, kernel, branch).outcome == outcome


def test_precompiled_names_the_tag() -> None:
    assert (
        "580-6.8.0-60-generic-ubuntu24.04"
        in target("26.7").precompiled("ubuntu24.04", "6.8.0-60-generic", "580").reason
    )


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [("rhel9.6", "rhel9.6", "rhel9"), ("rocky9.7", "rocky9", "rocky9"), ("ubuntu24.04", "ubuntu24.04", "ubuntu24.04")],
)
def test_image_tags_of_the_operating_system(key: str, before: str, after: str) -> None:
    old, new = target("26.3.3"), target("26.7.0")
    assert (old.image_os_tag(key), new.image_os_tag(key), target("24.9.2").image_os_tag(key)) == (before, after, before)
    assert new.image_tag_change(old, key).outcome == ("pass" if before == after else "warn")


@pytest.mark.parametrize(
    ("release", "architecture", "driver"),
    [("26.7.0", "volta", "580.173.02"), ("26.7.0", "ampere", ""), ("26.3.3", "volta", ""), ("26.7.0", "?", "")],
)
def test_drivers_to_pin(release: str, architecture: str, driver: str) -> None:
    assert target(release).pin(architecture) == driver


@pytest.mark.parametrize(
    ("architecture", "driver", "outcome"),
    [("volta", "580.126.20", "pass"), ("volta", "590.48.01", "fail"), ("pascal", "595", "fail"),
     ("maxwell", "610.57.04", "fail"), ("ampere", "610.57.04", "pass"), ("", "580", "unknown"),
     ("volta", "", "unknown")],
)  # fmt: skip
def test_driver_branches_by_architecture(architecture: str, driver: str, outcome: str) -> None:
    assert lookups.driver_branch(shipped(), architecture, driver).outcome == outcome


@pytest.mark.parametrize(
    ("product", "driver", "outcome"),
    [
        ("NVIDIA-B200", "570.124.06", "warn"),
        ("NVIDIA-B200", "570.133.20", "pass"),
        ("NVIDIA-B200", "570", "pass"),
        ("NVIDIA-B200", "550", "warn"),
        ("NVIDIA-GB200", "575.57.08", "warn"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "580.126.20", "pass"),
        ("NVIDIA-A100-SXM4-40GB", "470.1", None),
        ("NVIDIA-B200", "", None),
    ],
)
def test_drivers_that_products_need(product: str, driver: str, outcome: str | None) -> None:
    verdict = lookups.driver_minimum(shipped(), Gpu("blackwell", product), driver)
    assert (verdict and verdict.outcome) == outcome


@pytest.mark.parametrize(
    ("architecture", "kind", "driver", "outcome"),
    [
        ("ampere", "auto", "580.126.20", "pass"),
        ("ampere", "auto", "535.309.01", "fail"),
        ("ampere", "auto", "550", "fail"),
        ("ampere", "auto", "570.86.15", "pass"),
        ("ampere", "auto", "570.86.16", "warn"),
        ("ampere", "auto", "570.124.06", "pass"),
        ("ampere", "auto", "565.57.01", "warn"),
        ("ampere", "auto", "570", "pass"),
        ("ampere", "auto", "", "pass"),
        ("ampere", "open", "535", "pass"),
        ("ampere", "proprietary", "580", "pass"),
        ("volta", "open", "580", "fail"),
        ("pascal", "proprietary", "580", "pass"),
        ("blackwell", "proprietary", "580", "fail"),
        ("grace_hopper", "proprietary", "580", "fail"),
        ("grace_hopper", "open", "580", "pass"),
        ("", "open", "580", "unknown"),
        ("ampere", "closed", "580", "fail"),
    ],
)
def test_kernel_module_types(architecture: str, kind: str, driver: str, outcome: str) -> None:
    assert lookups.module_type(shipped(), architecture, kind, driver).outcome == outcome


@pytest.mark.parametrize(
    ("product", "family", "architecture", "outcome"),
    [
        ("NVIDIA-A100-SXM4-40GB", "ampere", "ampere", "pass"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "ampere", "ampere", "pass"),
        ("Tesla-T4-SHARED", "turing", "turing", "pass"),
        ("NVIDIA-L40S", "ada-lovelace", "ada", "pass"),
        ("NVIDIA-H100-80GB-HBM3", "hopper", "hopper", "pass"),
        ("NVIDIA-GH200-480GB", "hopper", "grace_hopper", "pass"),
        ("NVIDIA-RTX-A5000", "ampere", "ampere", "pass"),
        ("NVIDIA-RTX-A2000", "ampere", "ampere", "warn"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "blackwell", "blackwell", "pass"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition", "blackwell", "blackwell", "warn"),
        ("NVIDIA-B200", "blackwell", "blackwell", "pass"),
    ],
)
def test_products(product: str, family: str, architecture: str, outcome: str) -> None:
    gpu = gpu_of({names.GPU_PRODUCT: product, "nvidia.com/gpu.family": family})
    assert gpu is not None
    assert gpu.architecture == architecture
    assert lookups.product_listed(shipped(), gpu).outcome == outcome


def test_no_labels_no_gpu() -> None:
    assert gpu_of({}) is None
    assert gpu_of({"nvidia.com/gpu.family": "volta"}) == Gpu("volta", "")


@pytest.mark.parametrize(
    ("driver", "number"),
    [("570.148.08", 1), ("570.172.08", 0), ("525.60.13", 1), ("525.105.17", 0), ("525", 0)],
)
def test_known_faults(driver: str, number: int) -> None:
    assert len(lookups.known_faults(shipped(), driver)) == number


def test_nothing_unlisted_fails() -> None:
    nobody = target("99.9.9")
    verdicts = (
        nobody.listed(), nobody.lifecycle(), nobody.operating_system("plan9"), nobody.kubernetes("9.9", "plan9"),
        nobody.runtime("containerd://9.9"), nobody.nri("containerd://9.9"), nobody.driver("999.1"),
        nobody.precompiled("plan9", "1.0.0-1-generic", "999"),
    )  # fmt: skip
    assert {verdict.outcome for verdict in verdicts} == {Outcome.WARN}


WORDS = st.one_of(
    st.text(max_size=12),
    st.from_regex(
        r"(v|containerd://|cri-o://|rhel|ubuntu)?\d{1,3}(\.\d{1,3}){0,3}([-+~][a-z0-9.]{0,8})?", fullmatch=True
    ),
)


@given(WORDS, WORDS, WORDS, st.sampled_from(["24.9.2", "25.10.0", "26.3.1", "26.7.0", "30.1.0"]))
def test_any_text_is_judged_and_what_is_not_known_never_fails(one: str, two: str, three: str, release: str) -> None:
    asked = target(release)
    verdicts = [
        asked.operating_system(one, two, cloud=three),
        asked.kubernetes(one, two, three),
        asked.runtime(one, two),
        asked.nri(one),
        asked.driver(one),
        asked.precompiled(one, two, three),
        lookups.product_listed(shipped(), Gpu(one, two)),
    ]
    assert all(verdict.outcome is not Outcome.FAIL and verdict.reason for verdict in verdicts)
    assert os_key({names.OS_RELEASE_ID: one, names.OS_RELEASE_VERSION_ID: two}, three) is not None
    assert asked.image_os_tag(one) is not None
    assert asked.toolkit_env(one, {two: three}).reason
    assert lookups.driver_branch(shipped(), one, two).reason
    assert lookups.module_type(shipped(), one, "auto", two).reason
