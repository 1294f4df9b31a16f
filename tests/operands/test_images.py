"""Image references and operating system tags: 1.6 of contracts/control-plane.md."""

import pytest
from operands import rendering

from groundplane.api.clusterpolicy import ImageSpec
from groundplane.api.release import Release
from groundplane.operands import images
from groundplane.operands.errors import RenderError

V3, V7 = Release.V26_3, Release.V26_7
DIGEST = "sha256:" + "0a" * 32


def section(repository=None, image=None, version=None):
    return ImageSpec(repository=repository, image=image, version=version)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("nvcr.io/nvidia", "driver", "580.1"), "nvcr.io/nvidia/driver:580.1"),
        (("nvcr.io/nvidia", "driver", DIGEST), f"nvcr.io/nvidia/driver@{DIGEST}"),
        ((None, "mirror.local/driver:580", None), "mirror.local/driver:580"),
        (("", "mirror.local/driver:580", ""), "mirror.local/driver:580"),
        ((None, None, None), "default/image:1"),
    ],
)
def test_resolution(given, expected):
    assert images.resolve(section(*given), "spec.x", "X_IMAGE", {"X_IMAGE": "default/image:1"}) == expected


@pytest.mark.parametrize(
    "given",
    [("r", None, None), (None, None, "v"), ("r", "i", None), (None, "i", "v"), ("r", "", "v"), ("r", "i", "")],
)
def test_incomplete_references_are_errors_in_both_releases(given):
    with pytest.raises(RenderError) as caught:
        images.resolve(section(*given), "spec.x", "X_IMAGE", {"X_IMAGE": "default/image:1"})
    for part in ("spec.x", *(repr(value or "") for value in given)):
        assert part in caught.value.message


@pytest.mark.parametrize("defaults", [{}, {"X_IMAGE": ""}])
def test_no_image_at_all_names_the_variable(defaults):
    with pytest.raises(RenderError, match="X_IMAGE"):
        images.resolve(section(), "spec.x", "X_IMAGE", defaults)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("r/driver:580", "r/driver:580-ubuntu24.04"),
        ("driver", "driver-ubuntu24.04"),
        (f"r/driver@{DIGEST}", f"r/driver@{DIGEST}"),
    ],
)
def test_operating_system_suffix(reference, expected):
    assert images.with_os(reference, "ubuntu24.04") == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("r", "driver", "580"), "r/driver:580-6.8.0-60-generic-ubuntu24.04"),
        ((None, "r/driver", None), "r/driver-6.8.0-60-generic-ubuntu24.04"),
    ],
)
def test_precompiled(given, expected):
    assert images.precompiled(section(*given), "spec.driver", "6.8.0-60-generic", "ubuntu24.04") == expected


@pytest.mark.parametrize(
    "given", [(None, None, None), ("r", None, "580"), ("r", "driver", DIGEST), (None, f"r/driver@{DIGEST}", None)]
)
def test_precompiled_needs_a_tagged_image(given):
    with pytest.raises(RenderError, match=r"spec\.driver"):
        images.precompiled(section(*given), "spec.driver", "6.8.0-60-generic", "ubuntu24.04")


@pytest.mark.parametrize(
    ("os_id", "version", "old", "new"),
    [
        ("ubuntu", "24.04", "ubuntu24.04", "ubuntu24.04"),
        ("rhel", "9.4", "rhel9.4", "rhel9"),
        ("rhel", "10.1", "rhel10", "rhel10"),
        ("rhel", "8", "rhel8", "rhel8"),
        ("rocky", "9.4", "rocky9", "rocky9"),
        ("ol", "9.3", "ol9.3", "ol9"),
        ("sles", "15-SP5", "sles15-SP5", "sles15-SP5"),
        ("sl-micro", "6.0", "sl-micro6.0", "sl-micro6.0"),
        ("talos", "v1.9.1", "talosv1.9.1", "talosv1.9.1"),
        ("arch", "rolling", "archrolling", "archrolling"),
        ("rhel", "odd.1", "rhelodd.1", "rhelodd"),
    ],
)
def test_os_tag(os_id, version, old, new):
    assert images.os_tag(os_id, version, V3) == old
    assert images.os_tag(os_id, version, V7) == new


@pytest.mark.parametrize(("missing", "label"), [("os_id", "os_release.ID"), ("os_version", "os_release.VERSION_ID")])
def test_a_node_without_its_labels_is_named(missing, label):
    with pytest.raises(RenderError, match="gpu-7") as caught:
        images.node_os_tag(rendering.node("gpu-7", **{missing: ""}), V7)
    assert label in caught.value.message


def test_the_cluster_has_the_tag_of_its_first_node():
    nodes = (rendering.node(os_id="rhel", os_version="9.4"), rendering.node())
    assert images.cluster_os_tag(rendering.facts(nodes=nodes)) == "rhel9"
    assert images.cluster_os_tag(rendering.facts(nodes=())) is None


SECTIONS = {
    "toolkit": "CONTAINER_TOOLKIT_IMAGE",
    "validator": "VALIDATOR_IMAGE",
    "devicePlugin": "DEVICE_PLUGIN_IMAGE",
    "dcgm": "DCGM_IMAGE",
    "dcgmExporter": "DCGM_EXPORTER_IMAGE",
    "gfd": "GFD_IMAGE",
    "migManager": "MIG_MANAGER_IMAGE",
    "nodeStatusExporter": "VALIDATOR_IMAGE",
}


@pytest.mark.parametrize(("name", "variable"), SECTIONS.items())
def test_each_section_falls_back_to_its_variable(name, variable):
    bare = {"enabled": True, "repository": None, "image": None, "version": None}
    error = rendering.error({name: bare})
    assert f"spec.{name}" in error.message and variable in error.message
    made = rendering.objects(changes={name: bare}, default_images={variable: "mirror/thing:1"})
    found = [
        container["image"]
        for (kind, _), each in made.items()
        if kind == "DaemonSet"
        for container in each["spec"]["template"]["spec"]["containers"]
    ]
    assert "mirror/thing:1" in found
