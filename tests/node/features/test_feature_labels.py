"""contracts/device-plugin-gfd.md 8: every label, its value and the order of their merge."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node.features.feature_world import GPU, facts, gpu, inventory, labelled, of, shared, time_sliced

from groundplane.api.release import Release
from groundplane.node.devices.model import Fabric, Gpu, Inventory, Profile
from groundplane.node.devices.models import DISPLAY_ONLY, MODELS
from groundplane.node.features.labels import Facts, LabelError, Vgpu, family, labels, remarks, sanitise

COMPUTE, GRAPHICS = "0x030200", "0x030000"
CLUSTER = "6e8b7a52-3c6f-4c0e-9a58-4b8f0d2b1c11"

# model: product, memory in MiB, family, compute capability, mode
MODEL_LABELS = {
    "C1060": ("Tesla-C1060", "4096", "tesla", "1", "3", "compute"),
    "M2090": ("Tesla-M2090", "5375", "fermi", "2", "0", "compute"),
    "K20": ("Tesla-K20m", "4743", "kepler", "3", "5", "compute"),
    "K40": ("Tesla-K40m", "11441", "kepler", "3", "5", "compute"),
    "K80": ("Tesla-K80", "11441", "kepler", "3", "7", "compute"),
    "M10": ("Tesla-M10", "8129", "maxwell", "5", "0", "compute"),
    "M40": ("Tesla-M40", "11448", "maxwell", "5", "2", "compute"),
    "M60": ("Tesla-M60", "8129", "maxwell", "5", "2", "compute"),
    "P4": ("Tesla-P4", "7611", "pascal", "6", "1", "compute"),
    "P40": ("Tesla-P40", "22919", "pascal", "6", "1", "compute"),
    "P100-PCIE-16GB": ("Tesla-P100-PCIE-16GB", "16276", "pascal", "6", "0", "compute"),
    "P100-SXM2-16GB": ("Tesla-P100-SXM2-16GB", "16276", "pascal", "6", "0", "compute"),
    "TITAN-X-PASCAL": ("NVIDIA-TITAN-X-Pascal", "12288", "pascal", "6", "1", "graphics"),
    "V100-PCIE-16GB": ("Tesla-V100-PCIE-16GB", "16384", "volta", "7", "0", "compute"),
    "V100-PCIE-32GB": ("Tesla-V100-PCIE-32GB", "32768", "volta", "7", "0", "compute"),
    "V100-SXM2-16GB": ("Tesla-V100-SXM2-16GB", "16384", "volta", "7", "0", "compute"),
    "V100-SXM2-32GB": ("Tesla-V100-SXM2-32GB", "32768", "volta", "7", "0", "compute"),
    "V100-SXM3-32GB": ("Tesla-V100-SXM3-32GB", "32768", "volta", "7", "0", "compute"),
    "T4": ("Tesla-T4", "15360", "turing", "7", "5", "compute"),
    "RTX-8000": ("Quadro-RTX-8000", "49152", "turing", "7", "5", "graphics"),
    "A2": ("NVIDIA-A2", "15356", "ampere", "8", "6", "compute"),
    "A10": ("NVIDIA-A10", "23028", "ampere", "8", "6", "compute"),
    "A10G": ("NVIDIA-A10G", "23028", "ampere", "8", "6", "compute"),
    "A16": ("NVIDIA-A16", "15356", "ampere", "8", "6", "compute"),
    "A30": ("NVIDIA-A30", "24576", "ampere", "8", "0", "compute"),
    "A40": ("NVIDIA-A40", "46068", "ampere", "8", "6", "compute"),
    "A100-SXM4-40GB": ("NVIDIA-A100-SXM4-40GB", "40960", "ampere", "8", "0", "compute"),
    "A100-SXM4-80GB": ("NVIDIA-A100-SXM4-80GB", "81920", "ampere", "8", "0", "compute"),
    "A100-PCIE-40GB": ("NVIDIA-A100-PCIE-40GB", "40960", "ampere", "8", "0", "compute"),
    "A100-PCIE-80GB": ("NVIDIA-A100-80GB-PCIe", "81920", "ampere", "8", "0", "compute"),
    "A800-SXM4-80GB": ("NVIDIA-A800-SXM4-80GB", "81920", "ampere", "8", "0", "compute"),
    "A800-PCIE-80GB": ("NVIDIA-A800-80GB-PCIe", "81920", "ampere", "8", "0", "compute"),
    "RTX-A6000": ("NVIDIA-RTX-A6000", "49140", "ampere", "8", "6", "graphics"),
    "L4": ("NVIDIA-L4", "23034", "ada-lovelace", "8", "9", "compute"),
    "L20": ("NVIDIA-L20", "46068", "ada-lovelace", "8", "9", "compute"),
    "L40": ("NVIDIA-L40", "46068", "ada-lovelace", "8", "9", "compute"),
    "L40S": ("NVIDIA-L40S", "46068", "ada-lovelace", "8", "9", "compute"),
    "RTX-6000-ADA": ("NVIDIA-RTX-6000-Ada-Generation", "49140", "ada-lovelace", "8", "9", "graphics"),
    "RTX-4090": ("NVIDIA-GeForce-RTX-4090", "24564", "ada-lovelace", "8", "9", "graphics"),
    "H20": ("NVIDIA-H20", "97871", "hopper", "9", "0", "compute"),
    "H100-SXM5-80GB": ("NVIDIA-H100-80GB-HBM3", "81559", "hopper", "9", "0", "compute"),
    "H100-PCIE-80GB": ("NVIDIA-H100-PCIe", "81559", "hopper", "9", "0", "compute"),
    "H100-NVL": ("NVIDIA-H100-NVL", "95830", "hopper", "9", "0", "compute"),
    "H800-SXM5-80GB": ("NVIDIA-H800", "81559", "hopper", "9", "0", "compute"),
    "H800-PCIE-80GB": ("NVIDIA-H800-PCIe", "81559", "hopper", "9", "0", "compute"),
    "H200-SXM5-141GB": ("NVIDIA-H200", "143771", "hopper", "9", "0", "compute"),
    "H200-NVL": ("NVIDIA-H200-NVL", "143771", "hopper", "9", "0", "compute"),
    "GH200-480GB": ("NVIDIA-GH200-480GB", "97871", "hopper", "9", "0", "compute"),
    "GH200-144GB": ("NVIDIA-GH200-144G-HBM3e", "147096", "hopper", "9", "0", "compute"),
    "B200": ("NVIDIA-B200", "183359", "blackwell", "10", "0", "compute"),
    "GB200": ("NVIDIA-GB200", "189471", "blackwell", "10", "0", "compute"),
    "B300": ("NVIDIA-B300-SXM6-AC", "275040", "blackwell", "10", "3", "compute"),
    "GB300": ("NVIDIA-GB300", "284208", "blackwell", "10", "3", "compute"),
    "RTX-PRO-6000": (*("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "97887", "blackwell", "12", "0", "compute"),),
    "RTX-PRO-5000": ("NVIDIA-RTX-PRO-5000-Blackwell", "48935", "blackwell", "12", "0", "graphics"),
    "RTX-PRO-4500": (*("NVIDIA-RTX-PRO-4500-Blackwell-Server-Edition", "32623", "blackwell", "12", "0", "compute"),),
    "RTX-5090": ("NVIDIA-GeForce-RTX-5090", "32607", "blackwell", "12", "0", "graphics"),
    "GB10": ("NVIDIA-GB10", None, "blackwell", "12", "1", "compute"),
    "VR200": ("NVIDIA-VR200", "294912", "rubin", "13", "0", "compute"),
}


def test_8_the_table_has_every_model() -> None:
    assert set(MODEL_LABELS) == {name for name, model in MODELS.items() if model.product not in DISPLAY_ONLY}


@pytest.mark.parametrize("model", MODEL_LABELS)
def test_8_every_model_has_its_labels(model: str) -> None:
    product, memory, kind, major, minor, mode = MODEL_LABELS[model]
    found = labelled(gpu(0, model), gpu(1, model), pci_classes=(MODELS[model].pci_class,) * 2)
    expected = {
        "product": product,
        "count": "2",
        "replicas": "1",
        "sharing-strategy": "none",
        "memory": memory,
        "family": kind,
        "compute.major": major,
        "compute.minor": minor,
        "mode": mode,
        "machine": "unknown",
    }
    assert of(found) == {key: value for key, value in expected.items() if value is not None}


def test_8_all_labels_of_a_node() -> None:
    node = [gpu(index, "H100-SXM5-80GB", fabric=Fabric(CLUSTER.upper(), 7, True, True)) for index in range(8)]
    found = labelled(*node, timestamp=1700000000, machine="DGXH100", vgpu=Vgpu(present=False))
    assert found == {
        "nvidia.com/gfd.timestamp": "1700000000",
        "nvidia.com/gpu.machine": "DGXH100",
        "nvidia.com/cuda.driver-version.major": "580",
        "nvidia.com/cuda.driver-version.minor": "95",
        "nvidia.com/cuda.driver-version.revision": "05",
        "nvidia.com/cuda.driver-version.full": "580.95.05",
        "nvidia.com/cuda.driver.major": "580",
        "nvidia.com/cuda.driver.minor": "95",
        "nvidia.com/cuda.driver.rev": "05",
        "nvidia.com/cuda.runtime-version.major": "13",
        "nvidia.com/cuda.runtime-version.minor": "0",
        "nvidia.com/cuda.runtime-version.full": "13.0",
        "nvidia.com/cuda.runtime.major": "13",
        "nvidia.com/cuda.runtime.minor": "0",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mps.capable": "false",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/gpu.clique": f"{CLUSTER}.7",
        "nvidia.com/vgpu.present": "false",
    }


@pytest.mark.parametrize(
    ("timestamp", "vgpu", "expected"),
    [
        (None, None, {}),
        (12, None, {"nvidia.com/gfd.timestamp": "12"}),
        (12, Vgpu(False), {"nvidia.com/gfd.timestamp": "12", "nvidia.com/vgpu.present": "false"}),
        (
            None,
            Vgpu(True, ("460.16", "r460_00")),
            {
                "nvidia.com/vgpu.present": "true",
                "nvidia.com/vgpu.host-driver-version": "460.16",
                "nvidia.com/vgpu.host-driver-branch": "r460_00",
            },
        ),
    ],
)
@pytest.mark.parametrize("strategy", ["none", "single", "mixed", "nonsense"])
def test_8_without_gpus_only_timestamp_and_vgpu(
    timestamp: int | None, vgpu: Vgpu | None, expected: dict[str, str], strategy: str
) -> None:
    given = Facts(timestamp=timestamp, vgpu=vgpu, machine="box", mig_strategy=strategy, sharing=shared("mps", 4))
    assert labels(Inventory("", 0), given) == expected


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        ("580.95.05", ("580", "95", "05")),
        ("535.01", ("535", "01", "")),
        ("470.223.02", ("470", "223", "02")),
        ("unknown.unknown.unknown", ("unknown", "unknown", "unknown")),
    ],
)
def test_8_driver_version(driver: str, expected: tuple[str, str, str]) -> None:
    found = labels(inventory(gpu(), driver=driver), facts([gpu()]))
    new, old = of(found, "nvidia.com/cuda.driver-version"), of(found, "nvidia.com/cuda.driver")
    assert (new["major"], new["minor"], new["revision"]) == expected
    assert new["full"] == driver
    assert (old["major"], old["minor"], old["rev"]) == expected


@pytest.mark.parametrize("driver", ["", "580", "1.2.3.4"])
def test_8_other_driver_versions_are_fatal(driver: str) -> None:
    with pytest.raises(LabelError, match="driver version"):
        labels(inventory(gpu(), driver=driver), facts([gpu()]))


@pytest.mark.parametrize(
    ("version", "major", "minor"), [(13000, "13", "0"), (12040, "12", "4"), (0, "0", "0"), (11080, "11", "8")]
)
def test_8_runtime_version(version: int, major: str, minor: str) -> None:
    found = labels(inventory(gpu(), cuda=version), facts([gpu()]))
    assert of(found, "nvidia.com/cuda.runtime-version") == {"major": major, "minor": minor, "full": f"{major}.{minor}"}
    assert of(found, "nvidia.com/cuda.runtime") == {"major": major, "minor": minor}


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ([gpu(0, "T4")], "false"),
        ([gpu(0, "A30")], "true"),
        ([gpu(0, "A30", Profile(1, 1, 6))], "true"),
        ([gpu(0, "T4"), gpu(1, "A30")], "true"),
    ],
)
def test_8_mig_capable(gpus: list[Gpu], expected: str) -> None:
    assert labelled(*gpus)["nvidia.com/mig.capable"] == expected


def test_8_mps_capable_only_with_mps() -> None:
    assert labelled(gpu())["nvidia.com/mps.capable"] == "false"
    assert labelled(gpu(), sharing=time_sliced(4))["nvidia.com/mps.capable"] == "false"
    found = labelled(gpu(), sharing=shared("mps", 4))
    assert found["nvidia.com/mps.capable"] == "true"
    assert of(found)["sharing-strategy"] == "mps"
    assert of(found)["replicas"] == "4"


@pytest.mark.parametrize("strategy", ["none", "single", "mixed"])
def test_6_mps_with_mig_is_fatal(strategy: str) -> None:
    with pytest.raises(LabelError, match="MIG mode is enabled on GPU-1"):
        labelled(gpu(0), gpu(1, "A30", Profile(1, 1, 6)), sharing=shared("mps", 4), mig_strategy=strategy)


@pytest.mark.parametrize(
    ("sharing", "product", "replicas", "strategy"),
    [
        (time_sliced(4), "Tesla-T4-SHARED", "4", "time-slicing"),
        (time_sliced(4, renamed=True), "Tesla-T4", "4", "time-slicing"),
        (shared("mps", 2), "Tesla-T4-SHARED", "2", "mps"),
        (shared("mps", 2, renamed=True), "Tesla-T4", "2", "mps"),
        (time_sliced(4, "nvidia.com/mig-1g.5gb"), "Tesla-T4", "1", "none"),
    ],
)
def test_8_sharing(sharing: Any, product: str, replicas: str, strategy: str) -> None:
    found = of(labelled(gpu(0, "T4"), gpu(1, "T4"), sharing=sharing))
    assert (found["product"], found["replicas"], found["sharing-strategy"]) == (product, replicas, strategy)
    assert found["count"] == "2"


@pytest.mark.parametrize(
    ("memory", "expected"), [(0, None), (1, None), ((1 << 20) - 1, None), (1 << 20, "1"), ((5 << 20) + 77, "5")]
)
def test_8_memory_is_whole_mebibytes_or_left_out(memory: int, expected: str | None) -> None:
    assert of(labelled(gpu(memory_bytes=memory))).get("memory") == expected


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        *(((1, 0), "tesla"), ((2, 1), "fermi"), ((3, 7), "kepler"), ((4, 0), "undefined"), ((5, 3), "maxwell")),
        *(((6, 2), "pascal"), ((7, 0), "volta"), ((7, 2), "volta"), ((7, 4), "volta"), ((7, 5), "turing")),
        *(((8, 0), "ampere"), ((8, 7), "ampere"), ((8, 8), "ampere"), ((8, 9), "ada-lovelace")),
        *(((9, 0), "hopper"), ((10, 0), "blackwell"), ((10, 3), "blackwell"), ((11, 0), "undefined")),
        *(((12, 0), "blackwell"), ((12, 1), "blackwell"), ((14, 0), "undefined"), ((-1, -1), "undefined")),
    ],
)
@pytest.mark.parametrize("release", [Release.V26_3, Release.V26_7])
def test_8_family(compute: tuple[int, int], expected: str, release: Release) -> None:
    assert family(compute, release) == expected
    assert of(labelled(gpu(compute=compute), release=release))["family"] == expected


@pytest.mark.parametrize(("release", "expected"), [(Release.V26_3, "undefined"), (Release.V26_7, "rubin")])
def test_13_rubin_only_in_0_20(release: Release, expected: str) -> None:
    assert of(labelled(gpu(0, "VR200"), release=release))["family"] == expected


def test_8_without_compute_capability_no_family() -> None:
    found = of(labelled(gpu(compute=(0, 0))))
    assert not {"family", "compute.major", "compute.minor"} & found.keys()


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ((COMPUTE, COMPUTE), "compute"),
        ((GRAPHICS, GRAPHICS), "graphics"),
        ((COMPUTE, GRAPHICS), "unknown"),
        (("0x030100", "0x030100"), "unknown"),
        ((COMPUTE, None), "unknown"),
        ((None, None), "unknown"),
        ((), "unknown"),
    ],
)
def test_8_mode(classes: tuple[str | None, ...], expected: str) -> None:
    assert of(labelled(gpu(0), gpu(1), pci_classes=classes))["mode"] == expected


OTHER = "00000000-0000-0000-0000-000000000001"
NOWHERE = "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("fabrics", "expected"),
    [
        ([Fabric(CLUSTER, 1, True, True)] * 2, f"{CLUSTER}.1"),
        ([Fabric(CLUSTER, 0, True, True)], f"{CLUSTER}.0"),
        ([Fabric(CLUSTER, 4294967295, True, True)], f"{CLUSTER}.4294967295"),
        ([Fabric(CLUSTER, 1, True, True), None], f"{CLUSTER}.1"),
        ([Fabric(CLUSTER, 1, True, True), Fabric(NOWHERE, 0, True, True)], f"{CLUSTER}.1"),
        ([Fabric(CLUSTER, 1, True, True), Fabric(CLUSTER, 2, False, True)], f"{CLUSTER}.1"),
        ([Fabric(CLUSTER, 1, True, True), Fabric(CLUSTER, 2, True, True)], None),
        ([Fabric(CLUSTER, 1, True, True), Fabric(OTHER, 1, True, True)], None),
        ([Fabric(CLUSTER, 1, False, True)], None),
        ([Fabric(CLUSTER, 1, True, False)], None),
        ([Fabric(NOWHERE, 1, True, True)], None),
        ([None], None),
    ],
)
def test_8_clique(fabrics: list[Fabric | None], expected: str | None) -> None:
    found = labelled(*(gpu(index, fabric=fabric) for index, fabric in enumerate(fabrics)))
    assert found.get("nvidia.com/gpu.clique") == expected
    assert not any("imex-domain" in key for key in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVIDIA TITAN X (Pascal)", "NVIDIA-TITAN-X-Pascal"),
        ("Standard PC (Q35 + ICH9, 2009)", "Standard-PC-Q35-ICH9-2009"),
        ("DGXH100", "DGXH100"),
        ("  two   blanks\n", "two-blanks"),
        ("a_b.c-d", "a_b.c-d"),
        ("PowerEdge R750/XA", "PowerEdge-R750XA"),
        ("Gerät №1", "Gert-1"),
        ("()", ""),
    ],
)
def test_8_sanitise(text: str, expected: str) -> None:
    assert sanitise(text) == expected


@given(st.text())
def test_8_sanitised_has_only_characters_of_label_values(text: str) -> None:
    found = sanitise(text)
    assert all(char.isascii() and (char.isalnum() or char in "-_.") for char in found)
    assert sanitise(found) == found


# --- several models ---------------------------------------------------------------------------------------------------


def test_8_several_models_all_labels_are_of_the_one_with_most_gpus() -> None:
    found = of(labelled(gpu(0, "T4"), gpu(1, "L4"), gpu(2, "L4")))
    assert found["product"] == "NVIDIA-L4"
    assert found["count"] == "2"
    assert found["memory"] == "23034"
    assert found["family"] == "ada-lovelace"
    assert (found["compute.major"], found["compute.minor"]) == ("8", "9")


def test_8_several_models_as_many_of_each_the_first_by_name() -> None:
    assert of(labelled(gpu(0, "T4"), gpu(1, "L4")))["product"] == "NVIDIA-L4"


def test_8_a_model_with_full_gpus_goes_before_one_with_mig_only() -> None:
    found = of(labelled(gpu(0, "T4"), *(gpu(index, "A30", Profile(1, 1, 6)) for index in (1, 2, 3))))
    assert (found["product"], found["count"], found["replicas"]) == ("Tesla-T4", "1", "1")


def test_8_full_gpus_override_those_with_mig_of_the_same_model() -> None:
    sharing = time_sliced(3)
    found = of(labelled(gpu(0, "A30", Profile(1, 1, 6)), gpu(1, "A30"), gpu(2, "A30", mig=True), sharing=sharing))
    assert found["product"] == "NVIDIA-A30-SHARED"
    assert found["count"] == "3"
    assert found["replicas"] == "3"
    assert found["sharing-strategy"] == "time-slicing"


def test_several_models_are_remarked() -> None:
    mixture = inventory(gpu(0, "T4"), gpu(1, "L4"))
    (remark,) = remarks(mixture, facts())
    assert "NVIDIA L4, Tesla T4" in remark
    assert remark.endswith("NVIDIA L4")
    assert remarks(inventory(gpu(0), gpu(1)), facts()) == []


PROFILES = [Profile(1, 1, 5), Profile(2, 2, 10), Profile(1, 2, 10), Profile(1, 1, 5, "+me")]


@st.composite
def nodes(draw: st.DrawFn) -> list[Gpu]:
    count = draw(st.integers(1, 5))
    return [
        gpu(
            index,
            draw(st.sampled_from(["A30", "T4", "A100-SXM4-40GB", "GB10"])),
            *draw(st.lists(st.sampled_from(PROFILES), max_size=3)),
        )
        for index in range(count)
    ]


@given(nodes(), st.sampled_from(["none", "single", "mixed"]), st.randoms(use_true_random=False))
def test_labels_do_not_depend_on_the_order_of_gpus(node: list[Gpu], strategy: str, random: Any) -> None:
    given = facts(node, mig_strategy=strategy, sharing=time_sliced(2), timestamp=1)
    shuffled = list(node)
    random.shuffle(shuffled)
    assert labels(inventory(*node), given) == labels(inventory(*shuffled), given)


@given(nodes(), st.sampled_from(["none", "single", "mixed"]))
def test_labels_are_texts_under_nvidia_s_domain(node: list[Gpu], strategy: str) -> None:
    found = labels(inventory(*node), facts(node, mig_strategy=strategy, timestamp=1))
    assert all(isinstance(value, str) for value in found.values())
    assert all(key.startswith("nvidia.com/") and "+" not in key for key in found)
    assert found["nvidia.com/gpu.product"].startswith(("NVIDIA-", "Tesla-"))


@pytest.mark.parametrize("strategy", ["", "both", "Single"])
def test_1_6_an_unknown_mig_strategy_is_fatal(strategy: str) -> None:
    with pytest.raises(LabelError, match=f"^unknown strategy: {strategy}$"):
        labelled(gpu(), mig_strategy=strategy)


def test_the_stem_of_gpus_is_the_resource() -> None:
    assert f"{GPU}.product" in labelled(gpu())
