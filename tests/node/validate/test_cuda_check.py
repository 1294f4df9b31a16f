"""The CUDA check: contracts/mig-exporter-validator.md 6.5, through a library without a GPU and on simulated GPUs."""

import asyncio
import os
import signal
import subprocess
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node.fakeprocess import FakeProcess, until

import groundplane
from groundplane.node.cdi.roots import NULL_DEVICES
from groundplane.node.devices.simulated import GpuEntry, Machine, Mig, SimulatedSource, describe
from groundplane.node.ownprocess import SIMULATION_ENV
from groundplane.node.process import Completed
from groundplane.node.resources import MIG_MINORS
from groundplane.node.validate.cuda import check, kernel, main, missing, results
from groundplane.node.validate.cuda.simulated import RECOVERED, XIDS, SimulatedCuda, among, by_nodes
from testing import mockcuda, mocknvml

H100 = "NVIDIA H100 80GB HBM3"
GPUS = [mockcuda.Gpu(mockcuda.gpu_uuid(number)) for number in range(8)]


class RealCommands(FakeProcess):
    """A process of a test that really runs its commands, as children that are killed when nobody waits for them."""

    async def execute(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: str = "") -> Completed:
        self.executed.append(tuple(argv))
        self.running += 1
        try:
            return await self._execute(argv, env)
        finally:
            self.running -= 1

    running = 0
    """Commands that have not ended."""

    async def _execute(self, argv: Sequence[str], env: Mapping[str, str] | None) -> Completed:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env={**os.environ, **self.env, **(env or {})},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        assert process.returncode is not None
        return Completed(process.returncode, out.decode(), err.decode())


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The mock library."""
    if mocknvml.compiler() is None:
        pytest.skip("there is no C compiler, with which the mock library is built")
    try:
        return mockcuda.build(tmp_path_factory.mktemp("cuda"))
    except subprocess.CalledProcessError as error:
        pytest.fail(f"the mock library does not build:\n{error.stderr}")


class Mocked:
    """The check on the mock library."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder, self.library = folder, library
        self.process = RealCommands(folder, ["vectorAdd"])
        self.process.root.mkdir("/tmp")

    async def run(
        self,
        gpus: Sequence[mockcuda.Gpu] = (),
        *,
        env: Mapping[str, str] | None = None,
        argv: Sequence[str] = (),
        **machine: Any,
    ) -> int:
        source = str(Path(groundplane.__file__).parents[1])
        self.process.argv = ("vectorAdd", "--library", str(self.library), "--elements", "1000", *argv)
        self.process.env = {
            "PYTHONPATH": source,
            **mockcuda.write(self.folder / "cuda.txt", gpus, **machine),
            **(env or {}),
        }
        return await asyncio.wait_for(main.run(self.process), 60)


@pytest.fixture
async def mocked(tmp_path: Path, library: Path) -> AsyncIterator[Mocked]:
    """The check on the mock library, which leaves no file and no child behind."""
    made = Mocked(tmp_path, library)
    yield made
    await until(lambda: not made.process.running, "the end of the children")
    assert list(made.process.path("/tmp").iterdir()) == []


# --- what is computed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elements", [1, 2, 255, 256, 257, 50_000])
def test_sums_are_exact(elements: int) -> None:
    left, right = check.vectors(elements)
    assert len(left) == len(right) == 4 * elements
    numbers = [array("f", each) for each in (left, right, check.add(left, right))]
    assert all(a + b == c for a, b, c in zip(*numbers, strict=True)), "no sum is rounded"
    assert len(set(zip(*numbers[:2], strict=True))) > elements * 0.9, "neighbours differ"


@given(st.lists(st.integers(0, 8191).map(float), min_size=1, max_size=50), st.data())
def test_wrong_sums_are_counted(numbers: list[float], data: st.DataObject) -> None:
    expected = array("f", numbers)
    wrong = data.draw(st.sets(st.integers(0, len(numbers) - 1)))
    found = array("f", (number + 1 if at in wrong else number for at, number in enumerate(expected)))
    count, first = check.compare(found.tobytes(), expected.tobytes())
    assert count == len(wrong)
    assert (f"element {min(wrong)} is" in first) if wrong else not first


def test_no_number_is_wrong() -> None:
    assert check.compare(array("f", [float("nan")]).tobytes(), array("f", [1.0]).tobytes())[0] == 1
    assert check.compare(array("f", [-0.0]).tobytes(), array("f", [0.0]).tobytes())[0] == 0


@given(st.integers(1, 10**7))
def test_blocks_cover_all_elements(elements: int) -> None:
    assert 0 <= kernel.blocks(elements) * kernel.THREADS - elements < kernel.THREADS


def test_the_program_is_a_text_that_ends() -> None:
    assert kernel.PTX.endswith(b"}\n\0")
    assert kernel.PTX.count(b"\0") == 1
    assert kernel.PTX.isascii()
    assert f".entry {kernel.NAME}(".encode() in kernel.PTX


def test_every_code_says_what_it_means() -> None:
    names = [each.name for each in results.RESULTS.values()]
    assert len(set(names)) == len(names)
    assert all(
        name.startswith("CUDA_ERROR_") and each.meaning
        for name, each in zip(names, results.RESULTS.values(), strict=True)
    )
    assert results.result(12345).name == "CUDA_ERROR_12345"


# --- the driver's library ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 8])
async def test_6_5_every_gpu_is_checked(mocked: Mocked, count: int) -> None:
    mocked.process.write_kernel("/sys/module/nvidia/version", "580.126.20\n")
    assert await mocked.run(GPUS[:count]) == main.PASSED
    lines = mocked.process.stdout.splitlines()
    assert lines[:2] == ["[Vector addition of 1000 elements]", "Driver 580.126.20, CUDA 13.0"]
    assert len(lines) == count + 3
    for number, line in enumerate(lines[2:-1]):
        gpu = f"GPU {number}: {H100} (UUID: {GPUS[number].uuid}), 81920 MiB, compute capability 9.0"
        assert line.startswith(f"{gpu}: 1000 sums are right, ")
    assert lines[-1] == "Test PASSED"


CALLS = [
    *("cuDeviceGet", "cuDeviceGetName", "cuDeviceTotalMem_v2", "cuDeviceGetAttribute", "cuDeviceGetUuid"),
    *("cuDeviceGetUuid_v2", "cuDeviceGetCount", "cuDriverGetVersion", "cuInit"),
]
"""Calls before any GPU is used."""
GPU_CALLS = [
    *("cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuModuleLoadDataEx", "cuModuleGetFunction", "cuMemAlloc_v2"),
    *("cuMemcpyHtoD_v2", "cuLaunchKernel", "cuCtxSynchronize", "cuMemcpyDtoH_v2", "cuMemFree_v2", "cuModuleUnload"),
    "cuDevicePrimaryCtxRelease_v2",
]


@pytest.mark.parametrize("call", CALLS)
async def test_6_5_a_call_that_fails_before_any_gpu_is_used(mocked: Mocked, call: str) -> None:
    assert await mocked.run(GPUS[:2], faults=[f"fail {call} 304"]) == main.CALL_FAILED
    assert f"{call}: CUDA_ERROR_OPERATING_SYSTEM (304): the operating system refused" in mocked.process.stderr
    assert "Test PASSED" not in mocked.process.stdout


@pytest.mark.parametrize("call", GPU_CALLS)
async def test_6_5_a_call_that_fails_on_one_gpu(mocked: Mocked, call: str) -> None:
    """The others are checked all the same."""
    spoilt = GPUS[1]._replace(faults=(f"fail {call} 719",))
    assert await mocked.run([GPUS[0], spoilt]) == main.CALL_FAILED
    gpu = f"GPU 1: {H100} (UUID: {spoilt.uuid}), 81920 MiB, compute capability 9.0"
    assert f"{gpu}: {call}: CUDA_ERROR_LAUNCH_FAILED (719)" in mocked.process.stderr
    assert f"{GPUS[0].uuid}), 81920 MiB, compute capability 9.0: 1000 sums are right" in mocked.process.stdout
    assert mocked.process.stdout.endswith("Test FAILED: 1 of 2 GPUs failed\n")


TYPICAL = [
    # what the reader must find in the log, the call and code that lead to it
    ("cuInit", 804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE (804): the image's CUDA compatibility library", 3),
    ("cuInit", 100, "CUDA_ERROR_NO_DEVICE (100): no GPU can be used", 6),
    ("cuInit", 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): kernel module and library are of different", 3),
    (
        "cuInit",
        802,
        "CUDA_ERROR_SYSTEM_NOT_READY (802): the machine is not ready: with NVSwitches the fabric manager",
        3,
    ),
    ("cuInit", 999, "CUDA_ERROR_UNKNOWN (999): the driver says no more; look for NVRM: Xid", 3),
    ("cuModuleLoadDataEx", 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222): the driver is too old", 3),
    ("cuMemAlloc_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY (2): the GPU's memory is used up", 3),
    ("cuCtxSynchronize", 214, "CUDA_ERROR_ECC_UNCORRECTABLE (214): the GPU's memory had an error", 3),
]


@pytest.mark.parametrize(("call", "code", "text", "exit_code"), TYPICAL)
async def test_6_5_typical_failures_reach_the_log(
    mocked: Mocked, call: str, code: int, text: str, exit_code: int
) -> None:
    assert await mocked.run(GPUS[:1], faults=[f"fail {call} {code}"]) == exit_code
    assert f"{call}: {text}" in mocked.process.stderr


async def test_what_the_compiler_says_is_told(mocked: Mocked) -> None:
    said = "ptxas fatal : Unsupported .version 6.0"
    assert await mocked.run(GPUS[:1], faults=["fail cuModuleLoadDataEx 218"], log=said) == main.CALL_FAILED
    assert f"[{said}]" in mocked.process.stderr


async def test_6_5_no_gpu(mocked: Mocked) -> None:
    assert await mocked.run() == main.NO_GPU


async def test_6_5_no_library(mocked: Mocked) -> None:
    assert await mocked.run(argv=["--library", "libnothing-of-cuda.so.1"]) == main.NO_LIBRARY_CODE
    assert "libnothing-of-cuda.so.1 cannot be loaded" in mocked.process.stderr


async def test_a_library_of_another_kind(mocked: Mocked) -> None:
    assert await mocked.run(argv=["--library", "libc.so.6"]) == main.NO_LIBRARY_CODE
    assert "libc.so.6 has no function cuInit: the driver is older than CUDA 9.0" in mocked.process.stderr


async def test_6_5_wrong_sums(mocked: Mocked) -> None:
    assert await mocked.run([GPUS[0], GPUS[1]._replace(wrong=3)]) == main.WRONG
    assert "3 of 1000 sums are wrong (element 0 is " in mocked.process.stderr
    assert mocked.process.stdout.endswith("Test FAILED: 1 of 2 GPUs failed\n")


@pytest.mark.parametrize("call", ["cuInit", "cuCtxSynchronize"])
async def test_a_driver_that_hangs_is_told_of_with_the_call(mocked: Mocked, call: str) -> None:
    code = await mocked.run(GPUS[:1], faults=[f"hang {call}"], argv=["--time-limit", "3s"])
    assert code == main.HANGS
    assert f"{call} has not returned after 3 s: the driver hangs" in mocked.process.stderr
    assert "Test FAILED" in mocked.process.stdout


async def test_a_library_that_crashes(mocked: Mocked) -> None:
    assert await mocked.run(GPUS[:1], faults=["crash cuLaunchKernel"]) == main.CRASHED
    assert "ended its process by signal 11 in cuLaunchKernel" in mocked.process.stderr


async def test_without_a_folder_for_files_it_works_all_the_same(mocked: Mocked) -> None:
    assert await mocked.run(GPUS[:1], env={"TMPDIR": "/nowhere"}) == main.PASSED


async def test_a_signal_ends_it(mocked: Mocked) -> None:
    running = asyncio.create_task(mocked.run(GPUS[:1], faults=["hang cuInit"]))
    await until(lambda: mocked.process.executed, "the child")
    mocked.process.send(signal.SIGTERM)
    assert await running == main.MISUSE
    assert "Exiting due to signal SIGTERM" in mocked.process.stderr


# --- MIG --------------------------------------------------------------------------------------------------------------

SLICES = [
    mockcuda.Gpu(mockcuda.gpu_uuid(0), f"{H100} MIG 1g.10gb", mockcuda.mig_uuid(number), 10 << 30)
    for number in range(3)
]


async def test_6_5_a_mig_device_has_its_own_uuid(mocked: Mocked) -> None:
    assert await mocked.run(SLICES[:1]) == main.PASSED
    assert f"GPU 0: {H100} MIG 1g.10gb (UUID: {SLICES[0].mig}), 10240 MiB" in mocked.process.stdout


async def test_6_5_each_mig_device_is_checked_by_a_child_of_its_own(
    mocked: Mocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML tells which there are; here the child's answer is given that list."""
    execute, envs = mocked.process.execute, []

    async def listing(argv: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: str = "") -> Completed:
        envs.append(env)
        done = await execute(argv, env=env, stdin=stdin)
        shown = ",".join(f'"{each.mig}"' for each in SLICES)
        return done._replace(out=done.out.replace('"mig":[]', f'"mig":[{shown}]'))

    monkeypatch.setattr(mocked.process, "execute", listing)
    assert await mocked.run([*SLICES[:2], SLICES[2]._replace(wrong=1)]) == main.WRONG
    assert envs == [None, *({"CUDA_VISIBLE_DEVICES": each.mig} for each in SLICES[1:])]
    for number, each in enumerate(SLICES):
        place = mocked.process.stderr if number == 2 else mocked.process.stdout
        assert f"GPU {number}: {H100} MIG 1g.10gb (UUID: {each.mig})" in place
    envs.clear()
    assert await mocked.run(SLICES, env={"CUDA_VISIBLE_DEVICES": str(SLICES[1].mig)}) == main.PASSED
    assert envs == [None], "what the user chose is checked, and nothing else"


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("--elements", "0"), "0 elements cannot be added; expected 1 to 100000000"),
        (("--elements", "4294967297"), "4294967297 elements cannot be added; expected 1 to 100000000"),
        (("--time-limit", "0s"), "is over before it begins"),
        (("--time-limit", "5"), "a number needs its unit"),
    ],
)
async def test_wrong_options(tmp_path: Path, argv: tuple[str, ...], text: str) -> None:
    process = FakeProcess(tmp_path, ["vectorAdd", *argv])
    assert await main.run(process) == main.MISUSE
    assert text in process.stderr


# --- simulated GPUs ---------------------------------------------------------------------------------------------------


class Simulated:
    """The check on a simulated machine with GPUs whose device nodes the container has."""

    def __init__(self, folder: Path, gpus: Sequence[str | GpuEntry] = ("H100-SXM5-80GB",) * 2, **more: Any) -> None:
        self.machine = Machine.create(folder / "devices.yaml", describe("host", gpus, "580.126.20", **more))
        self.library = self.loaded = True
        self.source = SimulatedSource(folder / "devices.yaml", library=lambda: self.library, loaded=lambda: self.loaded)
        self.process = FakeProcess(folder, ["vectorAdd"], {NULL_DEVICES: "true"}, source=self.source, pace=1000.0)
        for number in range(len(gpus)):
            self.process.write(f"/dev/nvidia{number}", "")

    async def run(self, *argv: str, **more: Any) -> int:
        self.process.argv = ("vectorAdd", "--elements", "100", *argv)
        return await asyncio.wait_for(main.run(self.process, **more), 30)

    @property
    def lines(self) -> list[str]:
        return self.process.stdout.splitlines()


@pytest.fixture
def simulated(tmp_path: Path) -> Simulated:
    """A machine with two GPUs."""
    return Simulated(tmp_path)


async def test_a_healthy_simulated_machine(simulated: Simulated) -> None:
    assert await simulated.run() == main.PASSED
    gpus = simulated.machine.read().inventory.gpus
    assert simulated.lines[1] == "Driver 580.126.20, CUDA 13.0"
    for number, gpu in enumerate(gpus):
        assert f"GPU {number}: {gpu.name} (UUID: {gpu.uuid})" in simulated.lines[2 + number]
    assert simulated.lines[-1] == "Test PASSED"
    assert simulated.process.executed == []


async def test_the_containers_gpus_are_those_whose_nodes_it_has(simulated: Simulated) -> None:
    simulated.process.root.remove("/dev/nvidia0")
    assert await simulated.run() == main.PASSED
    second = simulated.machine.read().inventory.gpus[1]
    assert f"GPU 0: {second.name} (UUID: {second.uuid})" in simulated.process.stdout
    assert "GPU 1:" not in simulated.process.stdout
    simulated.process.root.remove("/dev/nvidia1")
    assert await simulated.run() == main.NO_GPU
    assert "cuInit: CUDA_ERROR_NO_DEVICE (100)" in simulated.process.stderr


async def test_on_a_node_with_a_simulated_machine_the_containers_own_nodes_count(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the process finds at /dev is the machine's there: it has them all."""
    simulated.process.env = {**simulated.process.env, SIMULATION_ENV: "/run/groundplane/host"}
    given: set[str] = set()
    monkeypatch.setattr(main, "_given", given.__contains__)
    assert await simulated.run() == main.NO_GPU
    given.add("/dev/nvidia1")
    assert await simulated.run() == main.PASSED
    first, second = (gpu.uuid for gpu in simulated.machine.read().inventory.gpus)
    assert second in simulated.process.stdout and first not in simulated.process.stdout


async def test_the_caller_may_choose_the_gpus(simulated: Simulated) -> None:
    simulated.process.root.remove("/dev/nvidia0")
    cuda = SimulatedCuda(simulated.source, by_nodes(simulated.process, lambda node: node == "/dev/nvidia0"))
    assert await simulated.run(simulated=cuda) == main.PASSED
    assert simulated.machine.read().inventory.gpus[0].uuid in simulated.process.stdout


async def test_the_caller_may_choose_the_gpus_by_uuid(tmp_path: Path) -> None:
    divided = GpuEntry("A100-SXM4-40GB", mig=Mig(enabled=True, instances=("1g.5gb", "1g.5gb")))
    world = Simulated(tmp_path, [divided, divided, "A100-SXM4-40GB"])
    first, second, _ = world.machine.read().inventory.gpus
    chosen = among({first.uuid, second.mig_devices[1].uuid})
    assert await world.run(simulated=SimulatedCuda(world.source, chosen)) == main.PASSED
    shown = [line.partition("UUID: ")[2].partition(")")[0] for line in world.lines if line.startswith("GPU ")]
    assert shown == [first.mig_devices[0].uuid, first.mig_devices[1].uuid, second.mig_devices[1].uuid]


async def test_simulated_library_that_is_missing(simulated: Simulated) -> None:
    simulated.library = False
    assert await simulated.run() == main.NO_LIBRARY_CODE
    assert "libcuda.so.1 cannot be loaded" in simulated.process.stderr


async def test_simulated_driver_that_is_not_loaded(simulated: Simulated) -> None:
    simulated.loaded = False
    assert await simulated.run() == main.NO_GPU
    assert "cuInit: CUDA_ERROR_NO_DEVICE (100)" in simulated.process.stderr


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("ERROR_LIB_RM_VERSION_MISMATCH", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"),
        ("ERROR_DRIVER_NOT_LOADED", "CUDA_ERROR_NO_DEVICE (100)"),
        ("ERROR_UNKNOWN", "CUDA_ERROR_UNKNOWN (999)"),
    ],
)
async def test_simulated_driver_that_fails(simulated: Simulated, error: str, name: str) -> None:
    simulated.machine.fail_library(error)
    assert await simulated.run() != main.PASSED
    assert f"cuInit: {name}" in simulated.process.stderr


async def test_a_simulated_gpu_that_is_lost_and_comes_back(simulated: Simulated) -> None:
    simulated.machine.lose(1, xid=None)
    assert await simulated.run() == main.CALL_FAILED
    assert "cuDevicePrimaryCtxRetain: CUDA_ERROR_UNKNOWN (999)" in simulated.process.stderr
    assert simulated.lines[-1] == "Test FAILED: 1 of 2 GPUs failed"
    simulated.machine.restore(1)
    assert await simulated.run() == main.PASSED


@pytest.mark.parametrize(("xid", "code"), sorted(XIDS.items()))
async def test_simulated_xid_errors_that_only_a_reset_mends(simulated: Simulated, xid: int, code: int) -> None:
    simulated.machine.xid(0, xid)
    assert await simulated.run() == main.CALL_FAILED
    assert f"cuCtxSynchronize: {results.result(code).name} ({code})" in simulated.process.stderr
    assert simulated.lines[-1] == "Test FAILED: 1 of 2 GPUs failed"
    simulated.machine.xid(0, RECOVERED)
    assert await simulated.run() == main.PASSED


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 68, 94])
async def test_simulated_xid_errors_of_applications(simulated: Simulated, xid: int) -> None:
    simulated.machine.xid(0, xid)
    assert await simulated.run() == main.PASSED


async def test_a_simulated_double_bit_error(simulated: Simulated) -> None:
    simulated.machine.ecc(0)
    simulated.machine.ecc(1, double_bit=False)
    assert await simulated.run() == main.CALL_FAILED
    assert "CUDA_ERROR_ECC_UNCORRECTABLE (214)" in simulated.process.stderr
    assert simulated.lines[-1] == "Test FAILED: 1 of 2 GPUs failed"


async def test_a_simulated_driver_that_hangs(simulated: Simulated) -> None:
    simulated.machine.set_telemetry(0, delay_s=500.0)
    assert await simulated.run("--time-limit", "1m") == main.HANGS
    assert "cuInit has not returned after 60 s: the driver hangs" in simulated.process.stderr


async def test_simulated_mig_devices_whose_capabilities_the_container_has(tmp_path: Path) -> None:
    entry = GpuEntry("A100-SXM4-40GB", mig=Mig(enabled=True, instances=("3g.20gb", "1g.5gb", "1g.5gb")))
    world = Simulated(tmp_path, [entry, "A100-SXM4-40GB"])
    devices = world.machine.read().inventory.gpus[0].mig_devices
    minors = [
        f"gpu0/gi{each.gi}/access {10 + each.slot}\ngpu0/gi{each.gi}/ci{each.ci}/access {20 + each.slot}\n"
        for each in devices
    ]
    world.process.write_kernel(MIG_MINORS, "".join(minors))
    for number in (11, 21, 12):
        world.process.write(f"/dev/nvidia-caps/nvidia-cap{number}", "")
    assert await world.run() == main.PASSED
    shown = [line for line in world.lines if line.startswith("GPU ")]
    assert len(shown) == 2
    assert f"MIG {devices[1].profile} (UUID: {devices[1].uuid}), {devices[1].memory_mib} MiB" in shown[0]
    assert "MIG" not in shown[1]


@pytest.mark.parametrize(
    ("bus", "module", "wsl", "library", "layer"),
    [
        ({}, False, False, False, "hardware"),
        ({"0000:01:00.0": "0x030200"}, False, False, False, "driver"),
        ({"0000:01:00.0": "0x030200"}, True, False, False, "runtime"),
        ({"0000:01:00.0": "0x030200"}, True, False, True, "device plugin"),
        ({"0000:01:00.0": "0x040300"}, True, False, True, "hardware"),
        ({}, False, True, False, "runtime"),
        (None, True, False, True, "device plugin"),
    ],
    ids=["no GPU", "no module", "no library", "no node", "audio only", "WSL", "no bus to look at"],
)
def test_the_lowest_layer_that_is_missing_is_named(
    tmp_path: Path, bus: dict[str, str] | None, module: bool, wsl: bool, library: bool, layer: str
) -> None:
    process = FakeProcess(tmp_path)
    if bus is not None:
        process.kernel.mkdir("/sys/bus/pci/devices")
    for address, kind in (bus or {}).items():
        process.write_kernel(f"/sys/bus/pci/devices/{address}/vendor", "0x10de\n")
        process.write_kernel(f"/sys/bus/pci/devices/{address}/class", f"{kind}\n")
    if module:
        process.write_kernel("/sys/module/nvidia/refcnt", "0\n")
    if wsl:
        process.write("/dev/dxg", "")
    assert missing.layer(process, library=library).startswith(f"{layer}: ")
