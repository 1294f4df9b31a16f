"""contracts/device-plugin-gfd.md 8.1: labels of MIG devices by strategy."""

import pytest
from node.features.feature_world import facts, gpu, inventory, labelled, mig, of, time_sliced

from groundplane.node.devices.model import Gpu, Profile
from groundplane.node.features.labels import SINGLE, remarks

ONE, TWO, THREE = Profile(1, 1, 5), Profile(2, 2, 10), Profile(3, 3, 20)
PART = Profile(1, 2, 10)
"""A compute instance that leaves half of its GPU instance: 1c.2g.10gb."""
MODEL = "NVIDIA-A100-SXM4-40GB"


def test_8_1_none_full_gpu_labels_only() -> None:
    found = labelled(gpu(0, "A100-SXM4-40GB", *[ONE] * 7), gpu(1, "A100-SXM4-40GB", TWO), sharing=time_sliced(4))
    gpus = of(found)
    assert gpus["product"] == MODEL
    assert (gpus["count"], gpus["replicas"], gpus["sharing-strategy"]) == ("2", "0", "none")
    assert (gpus["memory"], gpus["family"], gpus["compute.major"]) == ("40960", "ampere", "8")
    assert "nvidia.com/mig.strategy" not in found
    assert not of(found, "nvidia.com/mig-1g.5gb")


def test_8_1_single_without_mig_is_full_gpu_labels_and_the_strategy() -> None:
    plain, single = labelled(gpu(0), gpu(1)), labelled(gpu(0), gpu(1), mig_strategy="single")
    assert single == {**plain, "nvidia.com/mig.strategy": "single"}


def test_8_1_single_valid() -> None:
    devices = tuple(
        mig(
            slot,
            ONE,
            memory_mib=4864,
            multiprocessors=14,
            copy_engines=1,
            decoders=2,
            encoders=3,
            jpeg_engines=4,
            ofa_engines=5,
        )
        for slot in range(7)
    )
    found = labelled(*(gpu(index, mig=True, mig_devices=devices) for index in (0, 1)), mig_strategy="single")
    assert of(found) == {
        "product": f"{MODEL}-MIG-1g.5gb",
        "count": "14",
        "replicas": "1",
        "sharing-strategy": "none",
        "memory": "4864",
        "multiprocessors": "14",
        "slices.gi": "1",
        "slices.ci": "1",
        "engines.copy": "1",
        "engines.decoder": "2",
        "engines.encoder": "3",
        "engines.jpeg": "4",
        "engines.ofa": "5",
        "family": "ampere",
        "compute.major": "8",
        "compute.minor": "0",
        "mode": "compute",
        "machine": "unknown",
    }
    assert found["nvidia.com/mig.strategy"] == "single"


@pytest.mark.parametrize(
    ("renamed", "product"), [(False, f"{MODEL}-MIG-2g.10gb-SHARED"), (True, f"{MODEL}-MIG-2g.10gb")]
)
def test_8_1_single_shared(renamed: bool, product: str) -> None:
    sharing = time_sliced(5, renamed=renamed)
    found = of(labelled(gpu(0, "A100-SXM4-40GB", TWO, TWO), mig_strategy="single", sharing=sharing))
    assert (found["product"], found["count"]) == (product, "2")
    assert (found["replicas"], found["sharing-strategy"]) == ("5", "time-slicing")


@pytest.mark.parametrize(
    ("profile", "shown"),
    [
        (Profile(1, 1, 10, "+me"), "1g.10gb.me"),
        (Profile(1, 1, 24, "+me.all"), "1g.24gb.me.all"),
        (Profile(1, 1, 24, "+gfx"), "1g.24gb.gfx"),
        (Profile(1, 1, 24, "-me"), "1g.24gb-me"),
        (PART, "1c.2g.10gb"),
    ],
)
def test_8_1_single_profiles_as_values(profile: Profile, shown: str) -> None:
    found = of(labelled(gpu(0, "A100-SXM4-40GB", profile), mig_strategy="single"))
    assert found["product"] == f"{MODEL}-MIG-{shown}"


INVALID = {
    "a MIG GPU is empty": [gpu(0, "A100-SXM4-40GB", ONE), gpu(1, "A100-SXM4-40GB", mig=True)],
    "the only MIG GPU is empty": [gpu(0, "A100-SXM4-40GB", mig=True)],
    "MIG and non-MIG GPUs mixed": [gpu(0, "A100-SXM4-40GB"), gpu(1, "A100-SXM4-40GB", ONE)],
    "more than one profile name": [gpu(0, "A100-SXM4-40GB", ONE, ONE, TWO)],
    "one profile a GPU, but not the same": [gpu(0, "A100-SXM4-40GB", ONE), gpu(1, "A100-SXM4-40GB", THREE)],
    "the same GPU instance, other compute instances": [gpu(0, "A100-SXM4-40GB", TWO, PART)],
}


@pytest.mark.parametrize("case", INVALID)
def test_8_1_single_invalid(case: str) -> None:
    found = labelled(*INVALID[case], mig_strategy="single", sharing=time_sliced(4))
    assert of(found) == {
        "product": f"{MODEL}-MIG-INVALID",
        "count": "0",
        "replicas": "0",
        "memory": "0",
        "sharing-strategy": "",
        "family": "ampere",
        "compute.major": "8",
        "compute.minor": "0",
        "mode": "compute",
        "machine": "unknown",
    }
    assert found["nvidia.com/mig.strategy"] == "single"
    (remark,) = remarks(inventory(*INVALID[case]), facts(mig_strategy=SINGLE))
    assert remark.startswith("Invalid configuration detected for mig-strategy=single: ")


def test_8_1_single_invalid_is_about_the_first_mig_gpu() -> None:
    node = [gpu(0, "T4"), gpu(1, "T4"), gpu(2, "H100-SXM5-80GB", ONE), gpu(3, "A30", ONE)]
    found = of(labelled(*node, mig_strategy="single"))
    assert found["product"] == "NVIDIA-H100-80GB-HBM3-MIG-INVALID"
    assert (found["family"], found["compute.major"]) == ("hopper", "9")


def test_8_1_single_with_two_models_is_about_one_of_them() -> None:
    node = [gpu(0, "A100-SXM4-40GB", ONE), gpu(1, "A100-PCIE-40GB", ONE, ONE), gpu(2, "A100-PCIE-40GB", ONE)]
    found = of(labelled(*node, mig_strategy="single"))
    assert (found["product"], found["count"]) == ("NVIDIA-A100-PCIE-40GB-MIG-1g.5gb", "3")


def test_8_1_mixed() -> None:
    node = [
        gpu(0, "A100-SXM4-40GB"),
        gpu(1, "A100-SXM4-40GB", *[ONE] * 3, TWO, PART),
        gpu(2, "A100-SXM4-40GB", TWO),
        gpu(3, "A100-SXM4-40GB", mig=True),
    ]
    found = labelled(*node, mig_strategy="mixed")
    assert of(found)["product"] == MODEL
    assert (of(found)["count"], of(found)["replicas"]) == ("4", "1")
    assert found["nvidia.com/mig.strategy"] == "mixed"
    assert of(found, "nvidia.com/mig-1g.5gb") == {
        "product": f"{MODEL}-MIG-1g.5gb",
        "count": "3",
        "replicas": "1",
        "sharing-strategy": "none",
        "memory": "5000",
        "multiprocessors": "14",
        "slices.gi": "1",
        "slices.ci": "1",
        "engines.copy": "0",
        "engines.decoder": "0",
        "engines.encoder": "0",
        "engines.jpeg": "0",
        "engines.ofa": "0",
    }
    assert of(found, "nvidia.com/mig-2g.10gb")["count"] == "2"
    part = of(found, "nvidia.com/mig-1c.2g.10gb")
    assert (part["product"], part["slices.gi"], part["slices.ci"]) == (f"{MODEL}-MIG-1c.2g.10gb", "2", "1")


def test_8_1_mixed_without_mig_and_with_empty_gpus_only() -> None:
    plain = labelled(gpu(0), gpu(1))
    assert labelled(gpu(0), gpu(1), mig_strategy="mixed") == {**plain, "nvidia.com/mig.strategy": "mixed"}
    found = labelled(gpu(0, "A100-SXM4-40GB", mig=True), mig_strategy="mixed")
    assert (of(found)["count"], of(found)["replicas"]) == ("1", "0")
    assert not [key for key in found if key.startswith("nvidia.com/mig-")]


@pytest.mark.parametrize(
    ("profile", "stem"),
    [
        (Profile(1, 1, 5), "nvidia.com/mig-1g.5gb"),
        (Profile(1, 1, 10, "+me"), "nvidia.com/mig-1g.10gb.me"),
        (Profile(1, 1, 24, "+me.all"), "nvidia.com/mig-1g.24gb.me.all"),
        (Profile(1, 1, 24, "+gfx"), "nvidia.com/mig-1g.24gb.gfx"),
        (Profile(1, 1, 24, "-me"), "nvidia.com/mig-1g.24gb-me"),
    ],
)
def test_8_1_mixed_stems(profile: Profile, stem: str) -> None:
    found = labelled(gpu(0, "A100-SXM4-40GB", profile), mig_strategy="mixed")
    assert of(found, stem)["count"] == "1"


def test_8_1_mixed_sharing_is_by_profile() -> None:
    sharing = time_sliced(6, "nvidia.com/mig-1g.5gb")
    found = labelled(gpu(0, "A100-SXM4-40GB", ONE, TWO), gpu(1), mig_strategy="mixed", sharing=sharing)
    one, two = of(found, "nvidia.com/mig-1g.5gb"), of(found, "nvidia.com/mig-2g.10gb")
    assert (one["product"], one["replicas"]) == (f"{MODEL}-MIG-1g.5gb-SHARED", "6")
    assert one["sharing-strategy"] == "time-slicing"
    assert (two["product"], two["replicas"], two["sharing-strategy"]) == (f"{MODEL}-MIG-2g.10gb", "1", "none")
    assert of(found)["product"] == MODEL


def test_8_1_mixed_one_profile_of_two_models_is_about_the_one_with_most_devices() -> None:
    node: list[Gpu] = [gpu(0, "A100-PCIE-40GB", ONE), gpu(1, "A100-SXM4-40GB", ONE, ONE)]
    found = of(labelled(*node, mig_strategy="mixed"), "nvidia.com/mig-1g.5gb")
    assert (found["product"], found["count"]) == (f"{MODEL}-MIG-1g.5gb", "2")
