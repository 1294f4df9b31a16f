"""The inspection of a node: whole documents of simulated hosts and of hand-made roots, and what bad files do to it."""

import gzip
import json
import os
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node.fakeprocess import FakeProcess

from groundplane.lab import nodes
from groundplane.lab.host import SimulatedHost
from groundplane.node.hostroot import HostRoot
from groundplane.node.inspect import commands, main, packages, reach, system
from groundplane.node.process import Completed

KERNEL = "6.8.0-60-generic"
Facts = dict[str, Any]


def write(root: Path, files: Mapping[str, str | bytes]) -> None:
    for path, content in files.items():
        real = root / path.lstrip("/")
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_bytes(content.encode() if isinstance(content, str) else content)


def a_node(tmp_path: Path, files: Mapping[str, str | bytes], *argv: str) -> FakeProcess:
    """A process in a pod that has a node's root at /host."""
    process = FakeProcess(tmp_path, ("groundplane-inspect", *argv), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    base = {
        "/etc/os-release": 'ID=ubuntu\nVERSION_ID="24.04"\n',
        "/etc/hostname": "gpu-1\n",
        "/proc/modules": "",
        "/proc/sys/kernel/osrelease": f"{KERNEL}\n",
        "/sys/bus/pci/devices/.keep": "",
    }
    write(process.root.base / "host", {**base, **files})
    return process


def commands_of(process: FakeProcess, table: Mapping[str, Completed]) -> None:
    """What the node's own programs say, by their name and first argument; others are not there."""

    def chroot(argv: Sequence[str], _env: Mapping[str, str], _stdin: str) -> Completed:
        name = argv[2].rpartition("/")[2]
        missing = Completed(127, "", f"chroot: failed to run command '{name}': No such file or directory\n")
        return table.get(f"{name} {argv[3] if len(argv) > 3 else ''}".strip(), missing)

    process.commands["chroot"] = chroot


async def inspected(process: FakeProcess) -> dict[str, Any]:
    assert await main.run(process) == 0
    assert len(process.stdout.splitlines()) == 1
    document = json.loads(process.stdout)
    assert isinstance(document, dict)
    return document


async def facts(tmp_path: Path, files: Mapping[str, str | bytes]) -> Facts:
    return dict((await inspected(a_node(tmp_path, files)))["facts"])


def gpu(address: str, kind: str = "0x030200", device: str = "0x2330") -> dict[str, str]:
    folder = f"/sys/bus/pci/devices/{address}"
    return {f"{folder}/vendor": "0x10de\n", f"{folder}/device": f"{device}\n", f"{folder}/class": f"{kind}\n"}


async def test_a_simulated_host_is_seen_as_it_is(tmp_path: Path) -> None:
    gpus = [{"model": "H100-SXM5-80GB", "count": 2}]
    described = {"nodes": [{"name": "gpu-a", "gpus": gpus, "hostDriver": "580.126.20"}]}
    (spec,) = nodes.parse(described, "the test")
    with tempfile.TemporaryDirectory(prefix="gp-") as folder:  # a short path: there are sockets below it
        host = SimulatedHost(HostRoot(folder), spec)
        process = FakeProcess(tmp_path, ("groundplane-inspect", "--root", "/"))
        process.root = process.kernel = host.root
        document = await inspected(process)
        kernel = host.kernel
    found = document["facts"]
    assert document["name"] == "gpu-a"
    assert [each["class"] for each in found["gpus"]] == ["0302", "0302"]
    assert found["driver_version"] == found["host_library_version"] == found["library_version"] == "580.126.20"
    assert found["host_tool"] == "/usr/bin/nvidia-smi"
    assert found["nouveau"] is False
    assert found["containerd"]["config_version"] == 3
    assert (found["os"], found["kernel"]) == ("ubuntu", kernel)


async def test_devices_of_the_bus_by_their_class(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        **gpu("0000:01:00.0"),
        **gpu("0000:02:00.0", "0x030000"),
        **gpu("0000:03:00.0", "0x068000", "0x22a3"),
        **gpu("0000:01:00.1", "0x040300", "0x22ba"),
        "/sys/bus/pci/devices/0000:01:00.0/current_link_width": "8\n",
        "/sys/bus/pci/devices/0000:01:00.0/max_link_width": "16\n",
        "/sys/bus/pci/devices/0000:02:00.0/physfn/x": "",
        "/sys/bus/pci/devices/0000:00:1f.0/vendor": "0x8086\n",
        "/sys/bus/pci/devices/0000:00:1f.0/device": "0x1234\n",
    }
    found = await facts(tmp_path, files)
    assert [each["address"] for each in found["gpus"]] == ["0000:01:00.0", "0000:02:00.0"]
    assert (found["gpus"][0]["link_width"], found["gpus"][0]["link_width_max"]) == ("8", "16")
    assert [each.get("virtual_function", False) for each in found["gpus"]] == [False, True]
    assert [each["device"] for each in found["nvswitches"]] == ["22a3"]
    assert "8086:1234" in found["pci"] and "10de:22ba" in found["pci"]


async def test_modules_driver_and_library(tmp_path: Path) -> None:
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release\nGCC version: 13\n"
    found = await facts(
        tmp_path,
        {
            "/proc/modules": "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 12 nvidia_uvm, Live 0x0\next4 1 1 - Live 0x0\n",
            "/proc/driver/nvidia/version": version,
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.126.20": "",
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "",
        },
    )
    assert found["modules"] == ["nvidia_uvm", "nvidia", "ext4"]
    assert found["module_uses"] == {"nvidia_uvm": 0, "nvidia": 12}
    assert (found["driver_version"], found["module_type"]) == ("580.95.05", "open")
    assert found["library_version"] == "580.126.20"


DPKG = """Package: linux-image-6.8.0-60-generic
Status: hold ok installed
Version: 6.8.0-60.63

Package: unattended-upgrades
Status: install ok installed
Version: 2.9

Package: nvidia-container-toolkit
Status: install ok installed
Version: 1.18.0-1

Package: linux-headers-6.8.0-60-generic
Status: deinstall ok config-files
Version: 6.8.0-60.63
"""


@pytest.mark.parametrize(
    ("files", "headers"),
    [
        ({f"/usr/src/linux-headers-{KERNEL}/Makefile": ""}, "installed"),
        ({"/var/lib/dpkg/status": DPKG.replace("deinstall ok config-files", "install ok installed")}, "installed"),
        ({"/var/lib/apt/lists/a_Packages": f"Package: x\n\nPackage: linux-headers-{KERNEL}\n"}, "available"),
        ({"/var/lib/apt/lists/a_Packages": f"Package: linux-headers-{KERNEL}-more\n"}, "absent"),
        ({"/var/lib/apt/lists/a_Packages": ""}, "absent"),
        ({"/var/lib/dpkg/status": DPKG}, "not installed"),
    ],
)
async def test_headers_of_a_debian_system(tmp_path: Path, files: dict[str, str | bytes], headers: str) -> None:
    assert (await facts(tmp_path, files))["headers"] == headers


RHEL = {"/etc/os-release": 'ID="rhel"\nVERSION_ID="9.4"\n', "/proc/sys/kernel/osrelease": "5.14.0-427.el9.x86_64\n"}
PRIMARY = (
    '<package type="rpm"><name>kernel-devel</name><arch>x86_64</arch>'
    '<version epoch="0" ver="5.14.0" rel="427.el9"/></package>'
)


@pytest.mark.parametrize(
    ("files", "headers"),
    [
        ({"/usr/src/kernels/5.14.0-427.el9.x86_64/Makefile": ""}, "installed"),
        ({"/var/cache/dnf/base/repodata/a-primary.xml.gz": gzip.compress(PRIMARY.encode())}, "available"),
        ({"/var/cache/dnf/base/repodata/a-primary.xml": PRIMARY.replace("427", "430")}, "absent"),
        ({}, "not installed"),
    ],
)
async def test_headers_of_a_rhel_system(tmp_path: Path, files: dict[str, str | bytes], headers: str) -> None:
    found = await facts(tmp_path, {**RHEL, **files})
    assert (found["headers"], found["headers_package"]) == (headers, "kernel-devel-5.14.0-427.el9.x86_64")


def rpm_header(**texts: str) -> bytes:
    tags = {"name": 1000, "version": 1001, "release": 1002, "arch": 1022}
    index, data = b"", b""
    for key, text in texts.items():
        index += struct.pack(">IIII", tags[key], 6, len(data), 1)
        data += text.encode() + b"\0"
    return struct.pack(">II", len(texts), len(data)) + index + data


async def test_rpms_database_is_read_without_rpm(tmp_path: Path) -> None:
    process = a_node(tmp_path, RHEL)
    file = process.root.base / "host/var/lib/rpm/rpmdb.sqlite"
    file.parent.mkdir(parents=True)
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY, blob BLOB)")
        for row in (
            rpm_header(name="kernel-devel", version="5.14.0", release="427.el9", arch="x86_64"),
            rpm_header(name="nvidia-container-toolkit", version="1.17.4", release="1", arch="x86_64"),
            rpm_header(name="bash", version="5", release="1", arch="x86_64"),
        ):
            database.execute("INSERT INTO Packages (blob) VALUES (?)", (row,))
    database.close()
    found = (await inspected(process))["facts"]
    assert found["headers"] == "installed"
    assert found["toolkit_version"] == "1.17.4-1.x86_64"


async def test_kernels_updates_and_holds(tmp_path: Path) -> None:
    found = await facts(
        tmp_path,
        {
            **{f"/boot/vmlinuz-{each}": "" for each in (KERNEL, "6.8.0-100-generic", "6.8.0-200-aws")},
            "/var/lib/dpkg/status": DPKG,
            "/etc/apt/apt.conf.d/20auto-upgrades": 'APT::Periodic::Unattended-Upgrade "1";\n',
            "/etc/apt/apt.conf.d/50unattended-upgrades": 'Unattended-Upgrade::Package-Blacklist {\n  "linux-";\n};\n',
            "/run/reboot-required": "",
        },
    )
    assert found["kernels"][0] == KERNEL and found["newer_kernel"] == "6.8.0-100-generic"
    assert found["reboot_required"] is True
    assert found["kernel_updates"] == ["unattended-upgrades (/etc/apt/apt.conf.d/20auto-upgrades)"]
    assert found["kernel_holds"] == ["linux-image-6.8.0-60-generic", "unattended-upgrades leaves linux-"]
    assert found["toolkit_version"] == "1.18.0-1"


@pytest.mark.parametrize(
    ("line", "on"), [('APT::Periodic::Unattended-Upgrade "0";', False), ("# nothing", False), ("", False)]
)
async def test_updates_that_are_off(tmp_path: Path, line: str, on: bool) -> None:
    found = await facts(
        tmp_path, {"/etc/apt/apt.conf.d/20auto-upgrades": line, "/etc/dnf/automatic.conf": "apply_updates = yes\n"}
    )
    assert bool(found["kernel_updates"]) is on


async def test_dnf_automatic_counts_with_its_timer(tmp_path: Path) -> None:
    wants = "/etc/systemd/system/timers.target.wants/"
    files = {**RHEL, "/etc/dnf/automatic.conf": "apply_updates = yes\n", "/etc/dnf/dnf.conf": "exclude=kernel*\n"}
    found = await facts(tmp_path, {**files, f"{wants}dnf-automatic.timer": ""})
    assert found["kernel_updates"] == ["dnf-automatic (dnf-automatic.timer)"]
    assert found["kernel_holds"] == ["/etc/dnf/dnf.conf: exclude=kernel*"]


def cpio(name: str, text: str) -> bytes:
    head = b"070701" + b"0" * 104
    return head + name.encode() + b"\0" + text.encode() + head + b"TRAILER!!!" + b"\0" * 64


DENY = "blacklist nouveau\noptions nouveau modeset=0\n"


@pytest.mark.parametrize(
    ("image", "denied"),
    [
        (gzip.compress(cpio("etc/modprobe.d/x.conf", DENY)), True),
        (gzip.compress(cpio("etc/modprobe.d/x.conf", "")), False),
        (cpio("kernel/x86/microcode", "m") + gzip.compress(cpio("etc/modprobe.d/x.conf", DENY)), True),
        (cpio("kernel/x86/microcode", "m") + b"\x28\xb5\x2f\xfd packed otherwise", None),
        (b"\x1f\x8b broken", None),
    ],
    ids=["denied", "not-denied", "after-microcode", "packed-otherwise", "broken"],
)
async def test_nouveau_denied_on_disk_and_in_the_initramfs(tmp_path: Path, image: bytes, denied: bool | None) -> None:
    process = a_node(tmp_path, {"/etc/modprobe.d/x.conf": DENY, f"/boot/initrd.img-{KERNEL}": image})
    document = await inspected(process)
    assert document["facts"]["nouveau_denied"] == ["/etc/modprobe.d/x.conf"]
    assert document["facts"].get("nouveau_denied_in_initramfs") == denied
    told = [each for each in document["missing"] if each.startswith("nouveau_denied_in_initramfs")]
    assert bool(told) is (denied is None)


async def test_an_initramfs_older_than_the_denial_does_not_deny(tmp_path: Path) -> None:
    process = a_node(tmp_path, {"/etc/modprobe.d/x.conf": DENY, f"/boot/initrd.img-{KERNEL}": b"\x28\xb5\x2f\xfd"})
    os.utime(process.root.base / f"host/boot/initrd.img-{KERNEL}", (1, 1))
    assert (await inspected(process))["facts"]["nouveau_denied_in_initramfs"] is False


@pytest.mark.parametrize(
    ("files", "secure"),
    [
        ({system.SECURE_BOOT: b"\x06\x00\x00\x00\x01"}, True),
        ({system.SECURE_BOOT: b"\x06\x00\x00\x00\x00"}, False),
        ({}, False),
        ({"/sys/firmware/efi/x": ""}, None),
        ({system.SECURE_BOOT: b"\x06"}, None),
    ],
)
async def test_secure_boot_of_the_firmwares_variable(
    tmp_path: Path, files: dict[str, str | bytes], secure: bool | None
) -> None:
    document = await inspected(a_node(tmp_path, files))
    assert document["facts"].get("secure_boot") is secure
    assert any(each.startswith("secure_boot") for each in document["missing"]) is (secure is None)


CONTAINERD = """version = 2
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins."io.containerd.grpc.v1.cri"]
  enable_cdi = false
"""
DROP_IN = """version = 3
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/opt/cdi"]
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "nvidia"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
  BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
"""


async def test_containerd_as_it_is_in_force(tmp_path: Path) -> None:
    found = await facts(
        tmp_path, {"/etc/containerd/config.toml": CONTAINERD, "/etc/containerd/conf.d/99-nvidia.toml": DROP_IN}
    )
    runtime = found["containerd"]
    assert (runtime["config_version"], runtime["cdi"], runtime["nri"]) == (2, True, False)
    assert runtime["cdi_spec_dirs"] == ["/etc/cdi", "/opt/cdi"]
    assert runtime["default_runtime"] == "nvidia"
    assert runtime["handlers"] == {"nvidia": "/usr/local/nvidia/toolkit/nvidia-container-runtime"}
    assert runtime["imported"] == ["/etc/containerd/conf.d/99-nvidia.toml"]
    assert found["inactive_dropins"] == []


async def test_drop_ins_that_nobody_imports_and_files_that_are_no_toml(tmp_path: Path) -> None:
    found = await facts(
        tmp_path,
        {
            "/etc/containerd/config.toml": 'version = 2\nimports = ["/etc/containerd/config.d/*.toml"]\n',
            "/etc/containerd/config.d/bad.toml": "this is = = not",
            "/etc/containerd/conf.d/99-nvidia.toml": DROP_IN,
        },
    )
    assert found["inactive_dropins"] == ["/etc/containerd/conf.d/99-nvidia.toml"]
    assert found["containerd"]["errors"][0].startswith("/etc/containerd/config.d/bad.toml: ")
    assert "handlers" not in found["containerd"]


async def test_crio_with_its_drop_ins(tmp_path: Path) -> None:
    found = await facts(
        tmp_path,
        {
            "/etc/crio/crio.conf": '[crio.runtime]\ndefault_runtime = "crun"\n',
            "/etc/crio/crio.conf.d/99-nvidia.conf": '[crio.runtime.runtimes.nvidia]\nruntime_path = "/x"\n',
            "/run/crio/crio.sock": "",
        },
    )
    assert found["crio"]["handlers"] == {"nvidia": "/x"}
    assert found["sockets"] == ["/run/crio/crio.sock"]
    assert "containerd" not in found and "inactive_dropins" not in found


async def test_cdi_specs_plugin_sockets_and_validations(tmp_path: Path) -> None:
    spec = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: all, containerEdits: {env: [A=b]}}]\n"
    found = await facts(
        tmp_path,
        {
            "/etc/cdi/nvidia.yaml": spec,
            "/var/run/cdi/broken.json": "{",
            "/var/lib/kubelet/device-plugins/kubelet.sock": "",
            "/var/lib/kubelet/device-plugins/nvidia-gpu.sock": "",
            "/run/nvidia/validations/driver-ready": "",
            "/run/nvidia/validations/.driver-ctr-ready": "",
            "/usr/bin/nvidia-ctk": "",
        },
    )
    assert found["cdi_specs"] == [{"path": "/etc/cdi/nvidia.yaml", "kind": "nvidia.com/gpu", "devices": ["all"]}]
    assert any("broken.json" in each for each in found["cdi_errors"])
    assert (found["plugin_socket"], found["kubelet_socket"], found["driver_container"]) == (True, True, True)
    assert found["validations"] == ["driver-ready"]
    assert found["toolkit"] == ["/usr/bin/nvidia-ctk"]


SYSTEMD = """Id=containerd.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled

Id=crio.service
LoadState=not-found
ActiveState=inactive
UnitFileState=

Id=nvidia-fabricmanager.service
LoadState=loaded
ActiveState=failed
UnitFileState=enabled
"""
QUERY = """==============NVSMI LOG==============

Driver Version                            : 580.126.20
CUDA Version                              : 13.0

Attached GPUs                             : 2
GPU 00000000:01:00.0
    Product Name                          : NVIDIA H100
    GPU UUID                              : GPU-1
    Fabric
        State                             : Completed
        Status                            : Success
GPU 00000000:02:00.0
    Product Name                          : NVIDIA H100
    GPU UUID                              : GPU-2
    Fabric
        State                             : In Progress
        Status                            : N/A
"""


async def test_what_the_nodes_own_programs_say(tmp_path: Path) -> None:
    process = a_node(tmp_path, {"/usr/bin/nvidia-smi": "x", "/etc/containerd/config.toml": "version = 2\n"})
    commands_of(
        process,
        {
            "nvidia-smi": Completed(14, "a table\n", "WARNING: infoROM is corrupted\n"),
            "nvidia-smi -q": Completed(0, QUERY, ""),
            "systemctl show": Completed(0, SYSTEMD, ""),
            "containerd --version": Completed(0, "containerd github.com/containerd/containerd v1.7.28 abc\n", ""),
            "nv-fabricmanager --version": Completed(0, "Fabric Manager version is : 580.126.20\n", ""),
        },
    )
    document = await inspected(process)
    found = document["facts"]
    assert document["commands"]["nvidia-smi"] == {"out": "a table\nWARNING: infoROM is corrupted\n", "rc": 14}
    assert (found["nvidia_smi_rc"], found["fabric_state"], found["driver_gpus"]) == (14, "In Progress", 2)
    assert (found["cuda_version"], found["gpu_uuids"]) == ("13.0", ["GPU-1", "GPU-2"])
    assert found["services"]["containerd"] == {"state": "active", "enabled": "enabled"}
    assert "crio" not in found["services"]
    assert (found["fabric_manager"], found["fabric_manager_version"]) == ("failed", "580.126.20")
    assert found["containerd"]["version"] == "1.7.28"


async def test_services_without_their_manager_are_told_by_their_control_groups(tmp_path: Path) -> None:
    document = await inspected(a_node(tmp_path, {"/sys/fs/cgroup/system.slice/kubelet.service/cgroup.procs": "1\n"}))
    assert document["facts"]["services"] == {"kubelet": {"state": "active"}}
    assert any(each.startswith("systemctl show") for each in document["missing"])


async def test_the_kernels_log_keeps_what_matters(tmp_path: Path) -> None:
    log = (
        "6,1,2500000,-;usb 1-1: new device\n4,2,3000000,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus\n"
    )
    document = await inspected(a_node(tmp_path, {"/dev/kmsg": log}))
    told = document["commands"]["dmesg"]["out"]
    assert told == "[3.000000] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus"


async def test_without_the_nodes_root_only_the_kernel_is_told(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path, ("groundplane-inspect", "--name", "n"), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    write(process.kernel.base, {"/proc/modules": "nouveau 1 0 - Live 0x0\n", **gpu("0000:01:00.0")})
    document = await inspected(process)
    assert document["name"] == "n"
    assert document["facts"]["nouveau"] is True and len(document["facts"]["gpus"]) == 1
    assert not document["facts"].keys() & {"os", "headers", "containerd", "nouveau_denied", "host_tool"}
    assert any("root is not mounted" in each for each in document["missing"])


NASTY: list[tuple[str, Callable[[Path], None]]] = [
    ("binary", lambda path: path.write_bytes(bytes(range(256)) * 5000)),
    ("huge", lambda path: path.write_text("x" * 3_000_000)),
    ("folder", lambda path: path.mkdir()),
    ("pipe", os.mkfifo),
    ("loop", lambda path: path.symlink_to(path.name)),
    ("NULs", lambda path: path.write_bytes(b"\0" * 1000)),
]
READ = (
    *("etc/os-release", "proc/modules", "proc/driver/nvidia/version", "var/lib/dpkg/status"),
    *("etc/containerd/config.toml", "etc/docker/daemon.json", "etc/cdi/a.yaml", "dev/kmsg"),
    *("sys/bus/pci/devices/0000:01:00.0/class", "etc/modprobe.d/a.conf", "var/lib/kubelet/device-plugins"),
    *("var/lib/apt/lists/a_Packages", "proc/cmdline", "run/nvidia/validations", "var/lib/rpm/rpmdb.sqlite"),
)


@pytest.mark.parametrize("make", [row[1] for row in NASTY], ids=[row[0] for row in NASTY])
async def test_bad_files_end_nothing(tmp_path: Path, make: Callable[[Path], None]) -> None:
    process = a_node(tmp_path, {"/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n"})
    for path in READ:
        real = process.root.base / "host" / path
        real.unlink(missing_ok=True)
        real.parent.mkdir(parents=True, exist_ok=True)
        make(real)
    document = await inspected(process)
    assert document["facts"]["kernel"] == KERNEL
    assert len(process.stdout) < 2_100_000


def test_the_document_is_bounded_and_says_what_is_left_out() -> None:
    document = main.Document("n", "", {"a": "x" * 500, "b": 1}, {"c": commands.Command(out="y" * 900)})
    data = main.encoded(document, 300)
    assert len(data) < 300
    assert json.loads(data)["missing"] == ["c: left out, as it has 920 bytes", "a: left out, as it has 502 bytes"]


async def test_wrong_options_are_refused(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path, ("groundplane-inspect", "--nonsense"))
    assert await main.run(process) != 0
    assert "nonsense" in process.stderr and not process.stdout


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("nginx", "https://registry-1.docker.io/v2/library/nginx/manifests/latest"),
        ("nvcr.io/nvidia/driver:580-ubuntu24.04", "https://nvcr.io/v2/nvidia/driver/manifests/580-ubuntu24.04"),
        ("localhost:5000/a/b@sha256:ab", "http://localhost:5000/v2/a/b/manifests/sha256:ab"),
        ("registry.k8s.io:443/nfd/x", "https://registry.k8s.io:443/v2/nfd/x/manifests/latest"),
    ],
)
def test_references_of_images(text: str, url: str) -> None:
    assert reach.Reference.parse(text).url == url


def test_kernels_are_ordered_by_number_and_told_apart_by_flavour() -> None:
    releases = ["6.8.0-100-generic", "6.8.0-60-generic", "6.11.0-9-generic"]
    assert sorted(releases, key=system.version_key) == [releases[1], releases[0], releases[2]]
    assert system.flavour("6.8.0-60-generic") == "generic"
    assert system.flavour("5.14.0-427.13.1.el9_4.x86_64") == system.flavour("5.14.0-503.el9_5.x86_64") == "x86_64"


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=200))
def test_any_text_of_a_package_database_is_read(text: str) -> None:
    assert all(packages.KEPT.match(each.name) for each in packages._of_dpkg(text))


@settings(max_examples=40, deadline=None)
@given(st.text(), st.integers(2, 50))
def test_texts_are_bounded_and_short_ones_whole(text: str, limit: int) -> None:
    found = commands.bounded(text, limit)
    assert found == text if len(text) <= limit else f"{len(text) - 2 * (limit // 2)} characters left out" in found
