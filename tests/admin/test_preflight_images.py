"""Every image and package of a release: what an air-gapped site mirrors."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from preflight_world import HOST, inquire, node, policy

from groundplane.admin import images, preflight_platform, trees
from groundplane.admin.images import SECTIONS, System, needed
from groundplane.admin.lookups import Target
from groundplane.admin.matrix import shipped

DATA = Path(__file__).parent.parent / "data" / "nvidia-values"
NOBLE, RHEL = System("ubuntu24.04", "6.8.0-60-generic"), System("rhel9.6", "5.14.0-570.el9.x86_64")


def of(release: str, values: dict[str, Any] | None = None, *systems: System) -> images.Needed:
    return needed(Target.of(shipped(), release), values or {}, systems or (NOBLE,))


def references(found: images.Needed) -> set[str]:
    return {each.reference for each in found.images}


@pytest.mark.parametrize("release", ["26.3.3", "26.7.0"])
def test_images_are_those_of_nvidias_chart(release: str) -> None:
    """Repository, name and version of every section, against the defaults of NVIDIA's chart."""
    facts = yaml.safe_load((DATA / f"{release}.yaml").read_text())
    flat = facts if "toolkit.image" in facts else next(each for each in facts.values() if "toolkit.image" in each)
    target = Target.of(shipped(), release)
    on = {section.enabled: True for section in SECTIONS}
    values: dict[str, Any] = {}
    for path in on:
        values = trees.put(values, trees.parse(path), True)
    found = references(needed(target, values, (NOBLE,)))
    for section in SECTIONS:
        version = flat.get(f"{section.name}.version") or f"v{release}"
        reference = f"{flat[f'{section.name}.repository']}/{flat[f'{section.name}.image']}:{version}"
        assert {reference, f"{reference}-ubuntu24.04"} & found, section.name
    assert f"{flat['driver.repository']}/driver:{flat['driver.version']}-ubuntu24.04" in found


def test_driver_images_differ_by_system_and_kernel() -> None:
    assert {"nvcr.io/nvidia/driver:580.126.20-rhel9.6"} <= references(of("26.3.3", {}, RHEL))
    assert {"nvcr.io/nvidia/driver:595.91.07-rhel9"} <= references(of("26.7.0", {}, RHEL))
    precompiled = {"driver": {"usePrecompiled": True, "version": "580"}}
    found = of("26.7.0", precompiled)
    assert "nvcr.io/nvidia/driver:580-6.8.0-60-generic-ubuntu24.04" in references(found)
    assert found.packages == ()
    assert of("26.7.0", {}, NOBLE, RHEL).packages == (
        "kernel-devel-5.14.0-570.el9.x86_64",
        "kernel-headers-5.14.0-570.el9.x86_64",
        "linux-headers-6.8.0-60-generic",
    )


def test_values_say_where_images_come_from_and_which_are_needed() -> None:
    values = {
        "driver": {"enabled": False},
        "nfd": {"enabled": False},
        "toolkit": {"repository": "mirror.example/gpu", "version": "sha256:" + "0" * 64},
        "devicePlugin": {"image": "mirror.example/plugin:v1"},
        "migManager": {"enabled": False},
    }
    found = of("26.7.0", values)
    assert not [each for each in references(found) if "driver" in each or "mig" in each]
    assert f"mirror.example/gpu/container-toolkit@sha256:{'0' * 64}" in references(found)
    assert "mirror.example/plugin:v1" in references(found)
    assert found.registries == ("mirror.example", "nvcr.io")
    assert found.packages == ()


def test_old_releases_have_a_validator_of_their_own() -> None:
    assert "nvcr.io/nvidia/cloud-native/gpu-operator-validator:v25.3.4" in references(of("25.3.4"))
    assert "nvcr.io/nvidia/gpu-operator:v25.10.1" in references(of("25.10.1"))
    assert any("<version>" in each for each in references(of("27.1.0")))


def test_hosts_with_a_driver_need_none() -> None:
    found = preflight_platform.needed(inquire(nodes=[node(labels=HOST)]))
    assert not [each for each in found.images if each.component == "driver"] and not found.packages
    set_already = inquire(policies=[policy(driver={"version": "580.173.02"})])
    assert "nvcr.io/nvidia/driver:580.173.02-ubuntu24.04" in references(preflight_platform.needed(set_already))
