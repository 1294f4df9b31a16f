"""A layout through NVIDIA's binding and a library without a GPU (contracts/mig-exporter-validator.md 1.9, 1.10)."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node.devices import nvml
from groundplane.node.devices.simulated import GpuEntry, Instance, Machine, Mig, describe
from groundplane.node.mig import parted
from groundplane.node.process import Completed
from testing import mocknvml

A100, H100 = "A100-SXM4-40GB", "H100-SXM5-80GB"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The mock library."""
    if mocknvml.compiler() is None:
        pytest.skip("there is no C compiler, with which the mock library is built")
    try:
        return mocknvml.build(tmp_path_factory.mktemp("nvml"))
    except subprocess.CalledProcessError as error:
        pytest.fail(f"the mock library does not build:\n{error.stderr}")


class Host:
    """A machine that the program sees through the library; its nvidia-smi resets GPUs."""

    def __init__(self, folder: Path, library: Path, *gpus: str | GpuEntry) -> None:
        self.folder = folder
        self.library = library
        self.machine = Machine.create(folder / "gpus.yaml", describe("host", gpus, "580.126.20"))
        mocknvml.write(folder / "nvml.txt", self.machine.read())
        self.reset: list[str] = []

    async def run(self, *argv: str, stdin: str = "") -> tuple[int, str, str]:
        source = nvml.NvmlSource(lambda: self.library)
        process = FakeProcess(self.folder, ("nvidia-mig-parted", *argv), source=source)
        process.given = stdin.encode()
        process.commands["nvidia-smi"] = self._smi
        code = await parted.run(process)
        source.close()
        return code, process.stdout, process.stderr

    def _smi(self, argv, env, stdin) -> Completed:
        assert argv[:3] == ("nvidia-smi", "-r", "-i")
        assert not nvml._library._users, "nobody may use a GPU that is reset"
        self.reset.append(argv[3])
        cards = [card for card in self.machine.read().cards.values() if card.gpu.bus_id in argv[3].split(",")]
        if any(card.entry.busy for card in cards):
            return Completed(255, f"GPU {argv[3]}: In use by another client", "")
        with (self.folder / "nvml.txt").open("a") as file:
            file.writelines(f"do {card.gpu.index} reset\n" for card in cards)
        return Completed(0, "All done.", "")


@pytest.fixture
def host(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator:
    """Makes such machines."""
    monkeypatch.setenv(mocknvml.VARIABLE, str(tmp_path / "nvml.txt"))
    yield lambda *gpus: Host(tmp_path, library, *gpus)
    assert not nvml._library._users


def layout(*entries: str) -> str:
    return "version: v1\nmig-configs:\n  a:\n" + "".join(f"  - {each}\n" for each in entries)


MIXED = layout(
    '{devices: all, device-filter: "0x20B010DE", mig-enabled: true, mig-devices: {1g.5gb: 4, 3g.20gb: 1}}',
    '{devices: all, device-filter: "0x233010DE", mig-enabled: true, mig-devices: {1c.3g.40gb: 4, 1g.10gb: 0}}',
    '{devices: all, device-filter: "0x1EB810DE", mig-enabled: true, mig-devices: {1g.5gb: 1}}',
)


async def test_a_layout_is_applied_and_restored(host) -> None:
    found = host(A100, H100, "T4", GpuEntry(A100, mig=Mig(True, (Instance("7g.40gb", compute=()),))))
    assert await found.run("apply", "-f", "-", stdin=MIXED) == (0, "MIG configuration applied successfully\n", "")
    assert found.reset == ["00000000:10:00.0"]
    assert (await found.run("assert", "-f", "-", stdin=MIXED))[0] == 0
    _, exported, _ = await found.run("export")
    assert "1c.3g.40gb: 4" in exported
    assert (await found.run("checkpoint", "-f", "/state.json"))[0] == 0
    off = layout("{devices: all, mig-enabled: false}")
    assert (await found.run("apply", "-f", "-", stdin=off))[0] == 0
    assert (await found.run("assert", "-f", "-", stdin=MIXED))[0] == 1
    assert (await found.run("restore", "-f", "/state.json"))[0] == 0
    assert (await found.run("export"))[1] == exported


async def test_what_does_not_fit_touches_nothing(host) -> None:
    found = host(GpuEntry(A100, mig=Mig(True, ("1g.5gb",))))
    before = (found.folder / "nvml.txt").read_bytes()
    wanted = layout("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 8}}")
    code, _, err = await found.run("apply", "-f", "-", stdin=wanted)
    assert code == 1
    assert "room for 7 x 1" in err
    assert (found.folder / "nvml.txt").read_bytes() == before


async def test_a_busy_gpu_is_not_reset(host) -> None:
    found = host(GpuEntry(A100, busy=True))
    code, _, err = await found.run(
        "apply", "-f", "-", stdin=layout("{devices: all, mig-enabled: true, mig-devices: {}}")
    )
    assert code == 1
    assert "ERROR_IN_USE" in err
    assert "In use by another client" in err


async def test_without_nvidia_smi_a_reset_fails(host) -> None:
    found = host(A100)
    found._smi = None

    async def run() -> tuple[int, str, str]:
        source = nvml.NvmlSource(lambda: found.library)
        process = FakeProcess(found.folder, ("nvidia-mig-parted", "apply", "-f", "-"), source=source)
        process.given = layout("{devices: all, mig-enabled: true, mig-devices: {}}").encode()
        code = await parted.run(process)
        return code, process.stdout, process.stderr

    code, _, err = await run()
    assert code == 1
    assert "nvidia-smi cannot be run" in err
    assert not nvml._library._users
