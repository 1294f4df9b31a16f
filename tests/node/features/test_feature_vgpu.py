"""contracts/device-plugin-gfd.md 8: vGPU labels from PCI configuration space."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.node.features.labels import Vgpu
from groundplane.node.features.vgpu import host_driver, read, vgpu_capability
from groundplane.node.hostroot import HostRoot


def config(*capabilities: bytes, status: int = 0x10, first: int = 0x40) -> bytes:
    """Configuration space with a chain of capabilities, whose second byte is filled in."""
    space = bytearray(256)
    space[6] = status
    at = space[0x34] = first if capabilities else 0
    for number, capability in enumerate(capabilities):
        following = at + len(capability) if number < len(capabilities) - 1 else 0
        space[at : at + len(capability)] = capability[:1] + bytes([following]) + capability[2:]
        at = following
    return bytes(space)


def vendor(*records: bytes, signature: bytes = b"VF") -> bytes:
    content = signature + b"".join(records)
    return bytes([9, 0, 3 + len(content)]) + content


def host(version: str = "460.16", branch: str = "r460_00") -> bytes:
    return bytes([0, 22]) + version.encode().ljust(10, b"\0") + branch.encode().ljust(10, b"\0")


MSI = bytes([5, 0, 0x81, 0]) + bytes(10)
OTHER = bytes([1, 6]) + b"more"


@pytest.mark.parametrize(
    ("space", "present", "driver"),
    [
        (config(vendor(host())), True, ("460.16", "r460_00")),
        (config(MSI, vendor(host("535.161.05", "r535_00"))), True, ("535.161.05", "r535_00")),
        (config(vendor(OTHER, host())), True, ("460.16", "r460_00")),
        (config(MSI, vendor(signature=b"XX"), vendor(host())), True, ("460.16", "r460_00")),
        (config(vendor()), True, None),
        (config(vendor(OTHER)), True, None),
        (config(vendor(host()[:-1])), True, None),
        (config(vendor(bytes([1, 0]), host())), True, None),
        (config(vendor(host(), signature=b"FV")), False, None),
        (config(bytes([9, 0, 2, 0x56, 0x46])), False, None),
        (config(MSI), False, None),
        (config(), False, None),
        (config(vendor(host()), status=0), False, None),
        (config(bytes([0xFF, 0, 0]), vendor(host())), False, None),
    ],
)
def test_8_vgpu_parsing(space: bytes, present: bool, driver: tuple[str, str] | None) -> None:
    capability = vgpu_capability(space)
    assert (capability is not None) is present
    if capability is not None:
        assert host_driver(capability) == driver


def test_8_a_chain_that_loops_ends() -> None:
    space = bytearray(config(MSI, MSI))
    space[0x41] = 0x40
    assert vgpu_capability(bytes(space)) is None


@given(st.binary(min_size=256, max_size=256))
def test_8_any_configuration_space_can_be_read(space: bytes) -> None:
    capability = vgpu_capability(space)
    if capability is not None:
        found = host_driver(capability)
        assert found is None or all(len(text) <= 10 for text in found)


def node(folder: Path, **devices: tuple[str, bytes | None]) -> HostRoot:
    kernel = HostRoot(folder)
    for name, (vendor_id, space) in devices.items():
        kernel.write_atomic(f"/sys/bus/pci/devices/{name}/vendor", f"{vendor_id}\n")
        if space is not None:
            kernel.write_atomic(f"/sys/bus/pci/devices/{name}/config", space)
    return kernel


VGPU, PLAIN = config(vendor(host())), config(MSI)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ({"a": ("0x10de", VGPU)}, Vgpu(True, ("460.16", "r460_00"))),
        ({"a": ("0x10de", PLAIN), "b": ("0x10de", VGPU)}, Vgpu(True, ("460.16", "r460_00"))),
        ({"a": ("0x10de", PLAIN)}, Vgpu(False)),
        ({"a": ("0x10de", PLAIN + bytes(4096 - 256))}, Vgpu(False)),
        ({"a": ("0x8086", VGPU)}, Vgpu(False)),
        ({"a": ("0x8086", None)}, Vgpu(False)),
        ({"a": ("0x10de", PLAIN[:64])}, None),
        ({"a": ("0x10de", None)}, None),
        ({"a": ("0x10de", PLAIN[:64]), "b": ("0x10de", PLAIN)}, None),
    ],
)
def test_8_the_group_is_absent_where_configuration_space_cannot_be_read(
    tmp_path: Path, devices: dict[str, tuple[str, bytes | None]], expected: Vgpu | None
) -> None:
    assert read(node(tmp_path, **devices)) == expected


def test_8_no_pci_bus_is_no_group(tmp_path: Path) -> None:
    assert read(HostRoot(tmp_path)) is None
