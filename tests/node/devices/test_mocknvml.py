"""What the mock library has beyond what groundplane calls, for programs that use it in its older or Go's manner."""

import _ctypes
import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from groundplane.node.devices.simulated import GpuEntry, Machine, Mig, describe
from testing import mocknvml


@pytest.fixture
def library(built_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """The library on a machine with a GPU that has one MIG device. It is unloaded, as others look for another one."""
    entry = GpuEntry("A100-SXM4-40GB", mig=Mig(enabled=True, instances=("1g.5gb",)))
    machine = Machine.create(tmp_path / "devices.yaml", describe("mock", [entry], "580.65.06"))
    mocknvml.write(tmp_path / "nvml.txt", machine.read())
    monkeypatch.setenv(mocknvml.VARIABLE, str(tmp_path / "nvml.txt"))
    loaded = ctypes.CDLL(str(built_library))
    loaded.nvmlDeviceGetMigDeviceHandleByIndex.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p]
    loaded.nvmlDeviceIsMigDeviceHandle.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    yield loaded
    _ctypes.dlclose(loaded._handle)


def test_handles_of_mig_devices_are_told_from_those_of_gpus(library: ctypes.CDLL) -> None:
    assert library.nvmlInit_v2() == 0
    gpu, device, found = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint(7)
    assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(gpu)) == 0
    assert library.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0, ctypes.byref(device)) == 0
    for handle, expected in ((gpu, 0), (device, 1)):
        assert library.nvmlDeviceIsMigDeviceHandle(handle, ctypes.byref(found)) == 0
        assert found.value == expected
    assert library.nvmlShutdown() == 0
