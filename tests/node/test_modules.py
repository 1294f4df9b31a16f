"""Kernel modules: what is loaded, and unloading by rmmod, or as files on a simulated machine."""

from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node import modules
from groundplane.node.cdi.roots import NULL_DEVICES
from groundplane.node.process import Completed

PROC = """\
nvidia_uvm 1540096 4 - Live 0xffffffffc1000000 (POE)
nvidia 56717312 2 nvidia_uvm,nvidia_modeset, Live 0xffffffffbd000000 (POE)
ext4 1 2
"""


@pytest.fixture
def process(tmp_path: Path) -> FakeProcess:
    made = FakeProcess(tmp_path)
    made.write_kernel(modules.PROC_MODULES, PROC)
    for module, uses in (("nvidia", 2), ("nvidia_uvm", 0)):
        made.write_kernel(f"/sys/module/{module}/refcnt", f"{uses}\n")
    made.kernel.mkdir("/sys/module/builtin")
    return made


def test_what_is_loaded(process: FakeProcess) -> None:
    assert modules.loaded(process, "nvidia")
    assert not modules.loaded(process, "builtin") and not modules.loaded(process, "nouveau")
    one, two = modules.rows(process)
    assert one == ("nvidia_uvm", "1540096", "4", "-")
    assert str(two) == "nvidia               56717312   2               nvidia_uvm,nvidia_modeset,"
    assert str(modules.HEAD) == "Module               Size       Ref Count       Used by"


FAILURES = [
    (Completed(1, "", "rmmod: ERROR: Module nvidia is in use\n"), "rmmod: ERROR: Module nvidia is in use"),
    (Completed(1, "said on stdout", ""), "said on stdout"),
    (Completed(3, "", ""), "rmmod ended with 3"),
    (None, "rmmod cannot be run: "),
]


@pytest.mark.parametrize(("ended", "said"), FAILURES)
async def test_rmmod_that_fails(process: FakeProcess, ended: Completed | None, said: str) -> None:
    if ended is not None:
        process.commands["rmmod"] = lambda argv, env, stdin: ended
    with pytest.raises(modules.ModuleError) as caught:
        await modules.unload(process, "nvidia")
    assert str(caught.value).startswith(f"module nvidia cannot be unloaded: {said}")


async def test_rmmod(process: FakeProcess) -> None:
    process.commands["rmmod"] = lambda argv, env, stdin: Completed(0, "", "")
    await modules.unload(process, "nvidia_uvm")
    assert process.executed == [("rmmod", "nvidia_uvm")]


async def test_on_a_simulated_machine(process: FakeProcess) -> None:
    process.env = {NULL_DEVICES: "true"}
    process.write_kernel("/proc/driver/nvidia-caps/mig-minors", "config 1\n")
    with pytest.raises(modules.ModuleError, match=r"module nvidia cannot be unloaded: it is in use \(2 users\)"):
        await modules.unload(process, "nvidia")
    with pytest.raises(modules.ModuleError, match="it is not loaded"):
        await modules.unload(process, "nouveau")
    await modules.unload(process, "nvidia_uvm")
    assert not modules.loaded(process, "nvidia_uvm")
    assert [row.name for row in modules.rows(process)] == ["nvidia"]
    assert process.kernel.exists("/proc/driver/nvidia-caps")
    process.write_kernel("/sys/module/nvidia/refcnt", "0\n")
    await modules.unload(process, "nvidia")
    assert not process.kernel.exists("/proc/driver/nvidia-caps")
    assert not process.executed
