"""Giving GPUs to virtual machines and taking them back: node/vfio.py and `vfio-manage`, over a sysfs of files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node import vfio
from groundplane.node.cdi.roots import NULL_DEVICES
from groundplane.node.driver import vfiomanage
from groundplane.node.process import Completed

GPU, CARD, SOUND, SWITCH, OTHER = (f"0000:{bus:02x}:00.0" for bus in range(1, 6))
KERNEL = "6.8.0-60-generic"
ALIASES = """\
alias pci:v000010DEd*sv*sd*bc03sc*i* nouveau
alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci
alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci
alias vfio_pci:v000010DEd*sv*sd*bc*sc*i* some_other
broken line
"""


class Machine(FakeProcess):
    """A machine with some devices; what the kernel is told stays in the files of its sysfs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.write_kernel("/proc/sys/kernel/osrelease", f"{KERNEL}\n")
        self.add(GPU, "10de", "030200", "2330", "nvidia")
        self.add(CARD, "10de", "030000", "2204", "nvidia")
        self.add(SOUND, "10de", "040300", "1aef", "snd_hda_intel")
        self.add(SWITCH, "10de", "068000", "22a3")
        self.add(OTHER, "15b3", "020000", "1021", "mlx5_core")
        self.kernel.symlink(f"{vfio.DEVICES}/{CARD}/consumer:pci:{SOUND}", "elsewhere")
        self.commands["modprobe"] = self.commands["chroot"] = self._modprobe

    def add(self, address: str, vendor: str, kind: str, device: str, driver: str = "") -> None:
        folder = f"{vfio.DEVICES}/{address}"
        text = f"pci:v0000{vendor.upper()}d0000{device.upper()}sv0sd0bc{kind[:2]}sc{kind[2:4]}i{kind[4:]}"
        for name, value in (("vendor", f"0x{vendor}"), ("class", f"0x{kind}"), ("modalias", text)):
            self.write_kernel(f"{folder}/{name}", f"{value}\n")
        self.write_kernel(f"{folder}/driver_override", "(null)\n")
        self.drive(address, driver)

    def drive(self, address: str, driver: str) -> None:
        self.kernel.remove(f"{vfio.DEVICES}/{address}/driver")
        if driver:
            self.kernel.mkdir(f"{vfio.DRIVERS}/{driver}")
            self.kernel.symlink(f"{vfio.DEVICES}/{address}/driver", f"../../../bus/pci/drivers/{driver}")

    def _modprobe(self, argv: Sequence[str], env: Mapping[str, str], stdin: str) -> Completed:
        self.kernel.mkdir(f"{vfio.DRIVERS}/{argv[-1].replace('_', '-')}")
        return Completed(0, "", "")

    def said(self, path: str) -> str:
        return self.kernel.read_text(path) if self.kernel.exists(path) else ""

    def bound(self, address: str) -> bool:
        """Whether the kernel was told to give the device to vfio-pci, and it is to stay so."""
        override = self.said(f"{vfio.DEVICES}/{address}/driver_override")
        return override == "vfio-pci" and address in self.orders

    @property
    def orders(self) -> list[str]:
        return self.said(f"{vfio.DRIVERS}/vfio-pci/bind").split()

    async def manage(self, *arguments: str, **env: str) -> int:
        self.argv, self.env = ("vfio-manage", *arguments), env
        return await vfiomanage.run(self)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_devices(machine: Machine) -> None:
    found = {each.address: each for each in vfio.devices(machine.kernel)}
    assert sorted(found) == [GPU, CARD, SOUND, SWITCH]
    assert [address for address, each in found.items() if each.gpu] == [GPU, CARD]
    assert [address for address, each in found.items() if each.switch] == [SWITCH]
    assert found[GPU].driver == "nvidia" and found[SWITCH].driver == ""
    assert vfio.companion(machine.kernel, found[CARD]) == SOUND
    assert vfio.companion(machine.kernel, found[GPU]) == ""
    assert vfio.device(machine.kernel, "0000:ff:00.0") is None


UNBOUND = [("vfio-pci", True), ("nvgrace_gpu_vfio_pci", True), ("nvidia", False), ("", False)]


@pytest.mark.parametrize(("driver", "freed"), UNBOUND)
def test_unbind_takes_from_drivers_for_virtual_machines_alone(machine: Machine, driver: str, freed: bool) -> None:
    machine.drive(GPU, driver)
    override = "vfio-pci" if freed else "(null)"
    machine.write_kernel(f"{vfio.DEVICES}/{GPU}/driver_override", f"{override}\n")
    assert vfio.unbind_all(machine) == ([GPU] if freed else [])
    assert machine.said(f"{vfio.DRIVERS}/{driver}/unbind") == (GPU if freed else "")
    assert machine.said(f"{vfio.DEVICES}/{GPU}/driver_override") == ("\n" if freed else "(null)\n")


def test_unbind_takes_the_companion_and_names_all_that_fail(machine: Machine) -> None:
    for address in (GPU, CARD, SOUND):
        machine.drive(address, "vfio-pci")
    assert vfio.unbind_all(machine) == [GPU, CARD]
    assert machine.said(f"{vfio.DRIVERS}/vfio-pci/unbind") == SOUND  # the last that was written
    machine.kernel.remove(f"{vfio.DRIVERS}/vfio-pci/unbind")
    machine.kernel.mkdir(f"{vfio.DRIVERS}/vfio-pci/unbind")
    with pytest.raises(vfio.VfioError) as caught:
        vfio.unbind_all(machine)
    assert f"{GPU} cannot be taken from vfio-pci" in str(caught.value) and f"; {CARD} cannot" in str(caught.value)


def test_unbind_of_switches(machine: Machine) -> None:
    machine.drive(SWITCH, "vfio-pci")
    assert vfio.unbind_all(machine) == []
    assert vfio.unbind_all(machine, switches=True) == [SWITCH]


BEST = [
    # PCI device id: module
    ("2342", "nvgrace_gpu_vfio_pci"),
    ("2330", "some_other"),
]


@pytest.mark.parametrize(("device", "module"), BEST)
def test_the_alias_with_the_fewest_wildcards_counts(machine: Machine, device: str, module: str) -> None:
    machine.write(f"/lib/modules/{KERNEL}/modules.alias", ALIASES)
    machine.add(GPU, "10de", "030200", device)
    found = vfio.device(machine.kernel, GPU)
    assert found is not None and vfiomanage.best(machine, found) == module


def test_without_aliases_it_is_vfio_pci(machine: Machine) -> None:
    found = vfio.device(machine.kernel, GPU)
    assert found is not None and vfiomanage.best(machine, found) == "vfio-pci"
    machine.write(f"/lib/modules/{KERNEL}/modules.alias", "alias usb:x y\n")
    assert vfiomanage.best(machine, found) == "vfio-pci"


async def test_bind_one(machine: Machine) -> None:
    assert await machine.manage("bind", f"--device-id={GPU}", HOST_ROOT="/host") == 0
    assert machine.executed == [("chroot", "/host", "modprobe", "vfio-pci")]
    assert machine.bound(GPU)
    assert machine.said(f"{vfio.DRIVERS}/nvidia/unbind") == GPU
    machine.drive(GPU, "vfio-pci")
    machine.executed.clear()
    machine.kernel.remove(f"{vfio.DRIVERS}/vfio-pci/bind")
    assert await machine.manage("bind", f"--device-id={GPU}") == 0  # nothing left to do
    assert not machine.orders and not machine.executed


async def test_bind_all_with_companions(machine: Machine) -> None:
    assert await machine.manage("bind", "--all") == 0
    assert machine.executed == [("modprobe", "vfio-pci")]
    for address in (GPU, CARD, SOUND):
        assert machine.said(f"{vfio.DEVICES}/{address}/driver_override") == "vfio-pci"
    assert machine.said(f"{vfio.DEVICES}/{SWITCH}/driver_override") == "(null)\n"
    assert await machine.manage("bind", "-a", BIND_NVSWITCHES="true") == 0
    assert machine.bound(SWITCH)


async def test_unbind(machine: Machine) -> None:
    machine.drive(GPU, "vfio-pci")
    assert await machine.manage("unbind", "--all") == 0
    assert machine.said(f"{vfio.DRIVERS}/vfio-pci/unbind") == GPU
    assert f"{GPU}: taken from vfio-pci" in machine.stderr and f"{CARD}: no VM driver has it" in machine.stderr


async def test_one_that_fails_does_not_keep_the_others(machine: Machine) -> None:
    machine.kernel.mkdir(f"{vfio.DRIVERS}/vfio-pci")
    machine.kernel.remove(f"{vfio.DEVICES}/{GPU}/driver_override")
    machine.kernel.mkdir(f"{vfio.DEVICES}/{GPU}/driver_override")
    assert await machine.manage("bind", "--all") == 1
    assert f"{GPU}: cannot bind it" in machine.stderr
    assert machine.said(f"{vfio.DEVICES}/{CARD}/driver_override") == "vfio-pci"


async def test_a_module_that_cannot_be_loaded(machine: Machine) -> None:
    machine.commands["modprobe"] = lambda argv, env, stdin: Completed(1, "", "FATAL: Module vfio-pci not found.")
    assert await machine.manage("bind", "--all") == 1
    assert "module vfio-pci cannot be loaded: FATAL" in machine.stderr
    machine.commands["modprobe"] = lambda argv, env, stdin: Completed(0, "", "")
    assert await machine.manage("bind", "--all") == 1
    assert "there is no such driver" in machine.stderr


async def test_on_a_simulated_machine_the_links_change(machine: Machine) -> None:
    simulated = {NULL_DEVICES: "true"}
    assert await machine.manage("bind", "--all", **simulated) == 0
    drivers = {each.address: each.driver for each in vfio.devices(machine.kernel)}
    assert drivers == {GPU: "vfio-pci", CARD: "vfio-pci", SOUND: "vfio-pci", SWITCH: ""}
    assert await machine.manage("unbind", "--all", **simulated) == 0
    assert {each.driver for each in vfio.devices(machine.kernel)} == {""}
    assert not machine.executed


NOTHING = [(OTHER, "is no GPU"), (SOUND, "is no GPU"), (SWITCH, "BIND_NVSWITCHES=true"), ("0000:ff:00.0", "is no GPU")]


@pytest.mark.parametrize(("address", "said"), NOTHING)
async def test_devices_that_are_left_alone(machine: Machine, address: str, said: str) -> None:
    assert await machine.manage("bind", "-d", address) == 0
    assert said in machine.stderr and not machine.orders


REFUSED = [
    ((), "unknown command ''; expected bind or unbind"),
    (("rebind",), "unknown command 'rebind'"),
    (("bind",), "give either --all or --device-id"),
    (("unbind", "--all", "-d", GPU), "give either --all or --device-id"),
    (("unbind", "--host-root=/"), "flag provided but not defined"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED)
async def test_what_cannot_be_asked(machine: Machine, arguments: tuple[str, ...], said: str) -> None:
    assert await machine.manage(*arguments) == 1
    assert said in machine.stderr


async def test_help(machine: Machine) -> None:
    assert await machine.manage("--help") == 0
    assert "unbind" in machine.stdout
    assert await machine.manage("bind", "--help") == 0
    assert "$BIND_NVSWITCHES" in machine.stdout
