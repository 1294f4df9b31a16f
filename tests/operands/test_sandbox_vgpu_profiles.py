"""The table of vGPU layouts and the file made from it."""

import pytest
import yaml

from groundplane.api.release import Release
from groundplane.operands import vgpu_profiles

COUNTS = {Release.V26_3: (666, 54), Release.V26_7: (710, 56)}


@pytest.mark.parametrize("release", COUNTS)
def test_file(release):
    document = yaml.safe_load(vgpu_profiles.config_yaml(release))
    assert list(document) == ["version", "vgpu-configs"]
    layouts = document["vgpu-configs"]
    default = layouts.pop("default")
    assert (len(layouts), len(default)) == COUNTS[release]
    for name, count in vgpu_profiles.types(release).items():
        assert layouts[name] == [{"devices": "all", "vgpu-devices": {name: count}}]
    assert default == [
        {"device-filter": pci, "devices": "all", "vgpu-devices": {name: count}}
        for pci, name, count in vgpu_profiles.defaults(release)
    ]


@pytest.mark.parametrize("release", COUNTS)
def test_default_layout_uses_known_types_and_nvidia_devices(release):
    types = vgpu_profiles.types(release)
    for pci, name, count in vgpu_profiles.defaults(release):
        assert pci.startswith("0x") and pci.endswith("10DE")
        assert int(pci, 16) > 0
        assert 0 < count <= types[name]


@pytest.mark.parametrize(
    ("name", "release", "count"),
    [
        ("A10-24Q", Release.V26_3, 1),
        ("A100-1-5CME", Release.V26_3, 1),
        ("RTX6000-Ada-24Q", Release.V26_3, 2),
        ("B300X-1-34C", Release.V26_7, 7),
        ("B300X-1-34C", Release.V26_3, None),
    ],
)
def test_samples(name, release, count):
    assert vgpu_profiles.types(release).get(name) == count
