"""The kernel's log of a simulated machine: written by what plays the kernel, read like the real one."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from groundplane.lab.host import HostError, SimulatedHost
from groundplane.lab.nodes import generate
from groundplane.node.devices import kernelmessages
from groundplane.node.hostroot import HostRoot
from groundplane.node.metrics.kernellog import KernelLog


@pytest.fixture
def made() -> Iterator[SimulatedHost]:
    with tempfile.TemporaryDirectory(prefix="gp-") as folder:
        made = SimulatedHost(HostRoot(Path(folder)), generate(1)[0])
        made.boot()
        yield made


def messages(made: SimulatedHost) -> list[str]:
    return kernelmessages.texts(made.root.path(kernelmessages.PATH))


def test_the_log_begins_with_the_kernel_and_its_devices_and_tells_of_modules(made: SimulatedHost) -> None:
    text = "\n".join(messages(made))
    assert f"Linux version {made.kernel} " in text and "[10de:" in text
    made.load_module("nvidia", version="580.126.20")
    assert messages(made)[-1].endswith("NVRM: loading NVIDIA UNIX Kernel Module  580.126.20")
    made.boot()
    assert "NVRM" not in "\n".join(messages(made))


def test_an_xid_is_told_as_the_driver_tells_it_and_found_by_the_exporters_reader(made: SimulatedHost) -> None:
    log = KernelLog.open(made.root.path(kernelmessages.PATH))
    made.machine.xid(0, 48)
    made.machine.lose(1)
    found = list(log.read())
    log.close()
    cards = [card.gpu.bus_id.upper().partition(".")[0] for card in made.machine.read().cards.values()]
    assert [each.code for each in found] == [48, 79] and [each.address for each in found] == cards[:2]
    assert ": 79, pid=" in messages(made)[-1] and "fallen off the bus" in messages(made)[-1]


def test_a_refused_module_is_told(made: SimulatedHost) -> None:
    made.root.write_atomic("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\6\0\0\0\1")
    try:
        made.load_module("nvidia", version="580.126.20", signer="")
    except HostError:
        assert "Loading of module nvidia with an unavailable key is rejected" in messages(made)[-1]
    else:
        raise AssertionError("the module was loaded")


def test_the_older_half_is_forgotten_and_records_stay_whole(tmp_path: Path) -> None:
    kmsg = tmp_path / "kmsg"
    kmsg.write_text("")
    for number in range(5000):
        kernelmessages.append(kmsg, f"message {number} " + "x" * 100)
    assert kmsg.stat().st_size <= kernelmessages.KEPT
    assert all("] message " in line for line in kernelmessages.texts(kmsg))
    assert kernelmessages.texts(kmsg)[-1].endswith("x") and "message 4999 " in kernelmessages.texts(kmsg)[-1]


def test_what_is_no_plain_file_is_never_written_to(tmp_path: Path) -> None:
    target = tmp_path / "real"
    target.write_text("")
    (tmp_path / "link").symlink_to(target)
    kernelmessages.append(tmp_path / "link", "x")
    kernelmessages.append(tmp_path / "absent", "x")
    assert target.read_text() == "" and not (tmp_path / "absent").exists()
