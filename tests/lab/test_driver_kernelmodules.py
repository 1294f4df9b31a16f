"""Kernel modules of a simulated host: counts, who uses whom, parameters and secure boot (contracts/driver-lifecycle.md
5.5, 6.3, 6.5, 6.10)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.lab import driverfaults, nodes
from groundplane.lab.host import HostError, SimulatedHost
from groundplane.lab.kernelmodules import DISTRIBUTION, DRIVER_PARAMETERS, DRIVER_VERSION, NEEDS
from groundplane.node import modules
from groundplane.node.hostroot import HostRoot


@pytest.fixture
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedHost]:
    folder: Path = tmp_path_factory.mktemp("h")
    yield SimulatedHost(HostRoot(folder), nodes.NodeSpec("n", gpus=(nodes.GpuSpec("A100", 2),)))


def shown(host: SimulatedHost) -> dict[str, tuple[str, str]]:
    rows = (line.split() for line in host.root.read_text("/proc/modules").splitlines())
    return {name: (count, users) for name, _, count, users, *_ in rows}


def test_modules_keep_those_that_they_need(host: SimulatedHost) -> None:
    for module in ("nvidia", "nvidia_modeset", "nvidia_drm", "nvidia_uvm"):
        host.load_module(module, version="580.1.2")
    assert shown(host)["nvidia"] == ("2", "nvidia_modeset,nvidia_uvm,")
    assert shown(host)["nvidia_modeset"] == ("1", "nvidia_drm,")
    with pytest.raises(HostError, match="nvidia_modeset is in use"):
        host.unload_module("nvidia_modeset")  # 5.5: nvidia_drm is in nobody's list
    for module in ("nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia"):
        host.unload_module(module)
    assert host.modules() == []


def test_processes_with_gpus_hold_the_modules(host: SimulatedHost) -> None:
    for module in ("nvidia", "nvidia_uvm"):
        host.load_module(module)
    with host.gpus_in_use(host.gpus), host.gpus_in_use(host.gpus[:1]):
        assert shown(host) == {"nvidia": ("3", "nvidia_uvm,"), "nvidia_uvm": ("2", "-")}
    with host.gpus_in_use(()):
        assert shown(host) == {"nvidia": ("1", "nvidia_uvm,"), "nvidia_uvm": ("0", "-")}
    with host.gpus_in_use(host.gpus):
        host.boot()
        host.load_module("nvidia")
    assert shown(host) == {"nvidia": ("0", "-")}


@given(st.lists(st.sampled_from(["nvidia", *NEEDS]), unique=True))
def test_a_node_program_takes_modules_away_as_the_kernel_does(order: list[str]) -> None:
    """What `node/modules` leaves in the list is what the host itself would."""
    listed = "".join(
        f"{name} 16384 {len(users)} {''.join(f'{user},' for user in users) or '-'} Live 0x0\n"
        for name in order
        for users in [[user for user in order if NEEDS.get(user) == name]]
    )
    for name in order:
        rest, counts = modules.without(listed, name)
        assert name not in [line.split()[0] for line in rest.splitlines()]
        needed = NEEDS.get(name)
        assert set(counts) == ({needed} if needed in order else set())
        for line in rest.splitlines():
            _, _, count, users, *_ = line.split()
            assert int(count) == len([user for user in users.split(",") if user not in ("", "-")])


@pytest.mark.parametrize(
    ("is_open", "title"),
    [(True, "NVIDIA UNIX Open Kernel Module for x86_64"), (False, "NVIDIA UNIX x86_64 Kernel Module")],
)
def test_what_the_driver_shows_of_itself(host: SimulatedHost, is_open: bool, title: str) -> None:
    host.load_module("nvidia", version="580.1.2", open=is_open, parameters={"NVreg_Foo": "1"})
    host.load_module("nvidia_uvm", version="580.1.2", parameters={"uvm_debug": "2"})
    assert host.root.read_text(DRIVER_VERSION).startswith(f"NVRM version: {title}  580.1.2")
    assert host.root.read_text(DRIVER_PARAMETERS) == "Foo: 1\n"
    assert host.root.read_text("/sys/module/nvidia_uvm/parameters/uvm_debug") == "2\n"
    host.unload_module("nvidia_uvm")
    host.unload_module("nvidia")
    assert not host.root.exists(DRIVER_VERSION)


@pytest.mark.parametrize(
    ("kernel", "signer", "enrolled", "refusal"),
    [
        ("6.8.0-60-generic", DISTRIBUTION, "", ""),
        ("6.8.0-60-generic", "", "", "Key was rejected by service"),
        ("6.8.0-60-generic", "someone", "", "Key was rejected by service"),
        ("6.8.0-60-generic", "someone", "someone", ""),
        ("4.18.0-553.el8_10.x86_64", "", "someone", "Required key not available"),
    ],
)
def test_secure_boot(host: SimulatedHost, kernel: str, signer: str, enrolled: str, refusal: str) -> None:
    host.root.write_atomic("/proc/sys/kernel/osrelease", kernel + "\n")
    driverfaults.set_secure_boot(host, True)
    if enrolled:
        driverfaults.enroll(host, enrolled)
    if refusal:
        with pytest.raises(HostError, match=f"could not insert 'nvidia': {refusal}"):
            host.load_module("nvidia", signer=signer)
    else:
        host.load_module("nvidia", signer=signer)
    assert host.loaded("nvidia") is not bool(refusal)
    driverfaults.set_secure_boot(host, False)
    host.load_module("nvidia", signer="")
    assert host.loaded("nvidia")
