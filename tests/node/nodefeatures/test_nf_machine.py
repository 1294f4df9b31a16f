"""Labels of the machine itself (contracts/device-plugin-gfd.md 9)."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.node.hostroot import HostRoot
from groundplane.node.nodefeatures import machine
from groundplane.node.nodefeatures.labels import refusal
from groundplane.node.nodefeatures.machine import Machine, PciSettings

PREFIX = "feature.node.kubernetes.io/"
GPU = {"class": "0302", "vendor": "10de", "device": "2330", "subsystem_vendor": "10de", "subsystem_device": "16c1"}
NIC = {"class": "0207", "vendor": "15b3", "device": "1021", "subsystem_vendor": "15b3", "subsystem_device": "0040"}
ASPEED = {"class": "0300", "vendor": "1a03", "device": "2000"}
NVME = {"class": "0108", "vendor": "144d", "device": "a80a", "subsystem_vendor": "144d", "subsystem_device": "a801"}
UPSTREAM = PciSettings(("03", "0b40", "12"), ("class", "vendor"))


@pytest.mark.parametrize(
    ("settings", "devices", "expected"),
    [
        (PciSettings(), [GPU], {"pci-10de.present"}),
        (PciSettings(), [GPU, GPU, NIC, NVME], {"pci-10de.present", "pci-15b3.present"}),
        (PciSettings(), [GPU | {"sriov_totalvfs": "16"}], {"pci-10de.present", "pci-10de.sriov.capable"}),
        (UPSTREAM, [GPU, NIC, ASPEED], {"pci-0302_10de.present", "pci-0300_1a03.present"}),
        (UPSTREAM, [GPU | {"class": "0300"}], {"pci-0300_10de.present"}),
        (
            UPSTREAM,
            [GPU | {"class": "1200"}, GPU | {"class": "0b40"}],
            {"pci-1200_10de.present", "pci-0b40_10de.present"},
        ),
        (
            PciSettings(("03",), ("subsystem_device", "device", "vendor", "subsystem_vendor", "class")),
            [GPU],
            {"pci-0302_10de_2330_10de_16c1.present"},
        ),
        (PciSettings(("03",), ("vendor", "subsystem_vendor")), [ASPEED], set()),
        (PciSettings(()), [GPU], set()),
    ],
)
def test_section_9_pci_labels(settings: PciSettings, devices: list[dict[str, str]], expected: set[str]) -> None:
    assert machine.labels(Machine(pci=tuple(devices)), settings) == {PREFIX + key: "true" for key in expected}


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("6.8.0-45-generic\n", ("6.8.0-45-generic", "6", "8", "0")),
        ("5.14.0-427.42.1.el9_4.x86_64+rt\n", ("5.14.0-427.42.1.el9_4.x86_64_rt", "5", "14", "0")),
        ("6.1.0-25-cloud-amd64~deb12+", ("6.1.0-25-cloud-amd64_deb12", "6", "1", "0")),
        ("--5.4.-", ("5.4", "5", "4", None)),
        ("7", ("7", "7", None, None)),
        ("next-20260101", ("next-20260101", None, None, None)),
        ("\n", (None, None, None, None)),
    ],
)
def test_section_9_kernel_version(release: str, expected: tuple[str | None, ...]) -> None:
    parts = dict(zip(("full", "major", "minor", "revision"), expected, strict=True))
    wanted = {f"{PREFIX}kernel-version.{key}": value for key, value in parts.items() if value is not None}
    assert machine.labels(Machine(kernel=machine.kernel_version(release)), PciSettings()) == wanted


@given(st.text(max_size=63))
def test_section_9_any_kernel_release_makes_valid_labels(release: str) -> None:
    labels = machine.labels(Machine(kernel=machine.kernel_version(release)), PciSettings())
    assert {refusal(key, value) for key, value in labels.items()} <= {""}


UBUNTU = """PRETTY_NAME="Ubuntu 24.04.1 LTS"
NAME="Ubuntu"
VERSION_ID="24.04"
# a comment with an = sign
ID=ubuntu
ID_LIKE=debian
no assignment
"""
RHCOS = "ID='rhcos'\nVERSION_ID=4.16\nOSTREE_VERSION='416.94.202409121747-0'\nRHEL_VERSION=9.4\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (UBUNTU, {"ID": "ubuntu", "VERSION_ID": "24.04", "VERSION_ID.major": "24", "VERSION_ID.minor": "04"}),
        (
            RHCOS,
            {
                "ID": "rhcos",
                "VERSION_ID": "4.16",
                "VERSION_ID.major": "4",
                "VERSION_ID.minor": "16",
                "OSTREE_VERSION": "416.94.202409121747-0",
            },
        ),
        ('ID=debian\nVERSION_ID="12"\n', {"ID": "debian", "VERSION_ID": "12", "VERSION_ID.major": "12"}),
        ("ID=arch\nVERSION_ID=rolling.5\n", {"ID": "arch", "VERSION_ID": "rolling.5"}),
        ("ID=x\nVERSION_ID=9.beta\n", {"ID": "x", "VERSION_ID": "9.beta", "VERSION_ID.major": "9"}),
        (
            "ID=x\nVERSION_ID=9.1.2\n",
            {"ID": "x", "VERSION_ID": "9.1.2", "VERSION_ID.major": "9", "VERSION_ID.minor": "1"},
        ),
        ("", {}),
    ],
)
def test_section_9_os_release(text: str, expected: dict[str, str]) -> None:
    wanted = {f"{PREFIX}system-os_release.{key}": value for key, value in expected.items()}
    assert machine.labels(Machine(os=machine.os_release(text)), PciSettings()) == wanted


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (
            "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon\n"
            "processor\t: 1\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 1\n",
            {"vendor_id": "Intel", "family": "6", "id": "143"},
        ),
        ("vendor_id : AuthenticAMD\ncpu family : 25\nmodel : 17\n", {"vendor_id": "AMD", "family": "25", "id": "17"}),
        ("vendor_id : Other\n", {"vendor_id": "VendorUnknown"}),
        ("processor : 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", {"vendor_id": "ARM"}),
        ("CPU implementer : 0x4e\n", {"vendor_id": "NVIDIA"}),
        ("CPU implementer : 0x7f\n", {"vendor_id": "VendorUnknown"}),
        ("CPU implementer : ?\n", {}),
        ("", {}),
    ],
)
def test_section_9_cpu_model(cpuinfo: str, expected: dict[str, str]) -> None:
    wanted = {f"{PREFIX}cpu-model.{key}": value for key, value in expected.items()}
    assert machine.labels(Machine(cpu=machine.cpu_model(cpuinfo)), PciSettings()) == wanted


def pci(root: HostRoot, address: str, **attributes: str) -> None:
    """A device as sysfs has it: a link into the tree of devices."""
    for name, value in attributes.items():
        root.write_atomic(f"/sys/devices/pci0000:00/{address}/{name}", f"{value}\n")
    root.symlink(f"/sys/bus/pci/devices/{address}", f"../../../devices/pci0000:00/{address}")


def test_section_9_reading_a_machine(tmp_path: Path) -> None:
    root = HostRoot(tmp_path)
    pci(root, "0000:19:00.0", **{"class": "0x030200"}, vendor="0x10de", device="0x2330", sriov_totalvfs="16")
    pci(root, "0000:03:00.0", **{"class": "0x020700"}, vendor="0x15b3", device="0x1021")
    pci(root, "0000:ff:00.0", vendor="0x8086")
    root.write_atomic("/proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
    root.write_atomic("/proc/cpuinfo", "vendor_id : AuthenticAMD\n")
    file = root.write_atomic("/host-usr/lib/os-release", UBUNTU)
    pci(root, "0000:00:00.0", **{"class": "0x060400"}, vendor="0x8086", device="0x1")
    read = machine.read(root, [root.path("/host-etc/os-release"), file], PciSettings())
    assert read.pci == (
        {"class": "0207", "vendor": "15b3", "device": "1021"},
        {"class": "0302", "vendor": "10de", "device": "2330", "sriov_totalvfs": "16"},
    )
    assert (read.kernel["full"], read.os["ID"], read.cpu["vendor_id"]) == ("6.8.0-45-generic", "ubuntu", "AMD")
    assert sorted(read.attributes) == ["cpu.model", "kernel.version", "system.osrelease"]
    assert read.problems == ()


def test_a_machine_that_cannot_be_read_says_so_and_has_no_labels(tmp_path: Path) -> None:
    read = machine.read(HostRoot(tmp_path), [tmp_path / "host-etc/os-release"], PciSettings())
    assert machine.labels(read, PciSettings()) == {}
    assert [text.partition(tmp_path.name)[2] for text in read.problems[:2]] == [
        "/proc/sys/kernel/osrelease: No such file or directory",
        "/proc/cpuinfo: No such file or directory",
    ]
    assert "mount it there" in read.problems[2]
