"""The program `vectorAdd` (`cuda-check`): every GPU of the container adds two vectors, and the sums must be right.

The exit code is 0 only if all of them are and no call failed; else it says what was wrong, and the log names each GPU,
the call, CUDA's name of the error and what that means. The driver's library is used in a child process: one that hangs
is told of after a time limit, with the call that it hangs in. A process sees but one MIG device, so that each further
one that the driver shows is checked by a child of its own.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ...cdi.roots import simulated as has_simulated_gpus
from ...options import DURATION, INT, Command, Duration, Leave, Option, Values, read
from ...ownprocess import SIMULATION_ENV
from ...process import Process, unless_signalled
from . import check, child, results
from .driverapi import SONAME
from .model import NO_LIBRARY, GpuReport, Report

if TYPE_CHECKING:
    from .simulated import SimulatedCuda

PASSED, MISUSE, NO_LIBRARY_CODE, CALL_FAILED, WRONG, HANGS, NO_GPU, CRASHED = range(8)
"""Exit codes: all is well; wrong options, or a signal; no library; a call failed; wrong sums; no answer within the time
limit; the container has no GPU; the library ended its process."""
MOST_ELEMENTS: Final = 100_000_000
"""Of a vector; this process then holds less than 2 GiB of them."""
DRIVER_VERSION: Final = "/sys/module/nvidia/version"
_MODULE: Final = "groundplane.node.validate.cuda.child"
_CHOSEN: Final = "CUDA_VISIBLE_DEVICES"
_LAST_WORDS: Final = 500

COMMAND: Final = Command(
    name="vectorAdd",
    about="Checks that CUDA works on every GPU of this container, by adding two vectors.",
    options=(
        Option(
            name="elements",
            type=INT,
            default=50_000,
            flags=("elements",),
            env=("CUDA_CHECK_ELEMENTS",),
            help="elements of a vector",
        ),
        Option(
            name="limit",
            type=DURATION,
            default=Duration.parse("2m"),
            flags=("time-limit",),
            env=("CUDA_CHECK_TIME_LIMIT",),
            help="how long the driver may take before it counts as hanging",
        ),
        Option(
            name="library",
            default=SONAME,
            flags=("library",),
            env=("CUDA_CHECK_LIBRARY",),
            help="the driver's library; by default, the one that the loader finds",
        ),
    ),
)


class Failed(RuntimeError):  # noqa: N818 - an outcome
    """There is no report; the text says why, ``code`` is the exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


async def run(process: Process, *, simulated: "SimulatedCuda | None" = None) -> int:
    """Run the program; its exit code. ``simulated`` is CUDA on a simulated machine, if the caller chooses its GPUs."""
    try:
        values = read(COMMAND, process)
        _validate(values)
    except Leave as leave:
        return leave.tell(process)
    if simulated is None and (has_simulated_gpus(process) or process.env.get(SIMULATION_ENV)):
        simulated = _simulated(process)
    codes: list[int] = []

    async def work() -> None:
        codes.append(await _check(process, values, simulated))

    number = await unless_signalled(process, work())
    if number is not None:
        process.log.error(f"Exiting due to signal {number.name}: CUDA is not validated")
        return MISUSE
    return codes[0]


def _validate(values: Values) -> None:
    if not 1 <= values["elements"] <= MOST_ELEMENTS:
        raise values.mistake(
            "elements", f"{values['elements']} elements cannot be added; expected 1 to {MOST_ELEMENTS}"
        )
    if values["limit"].seconds <= 0:
        raise values.mistake("limit", f"the time limit {values['limit']} is over before it begins")


def _simulated(process: Process) -> "SimulatedCuda | None":
    from ...devices.simulated import SimulatedSource
    from .simulated import SimulatedCuda, by_nodes

    source = process.devices()
    given = _given if process.env.get(SIMULATION_ENV) else None
    return SimulatedCuda(source, by_nodes(process, given)) if isinstance(source, SimulatedSource) else None


def _given(node: str) -> bool:
    """Whether the container has a device node where the process' own paths below /dev are the machine's."""
    return Path(node).exists()


async def _check(process: Process, values: Values, simulated: "SimulatedCuda | None") -> int:
    elements, limit_s = values["elements"], values["limit"].seconds
    process.out(f"[Vector addition of {elements} elements]\n")
    try:
        if simulated is not None:
            report = await _run_simulated(process, simulated, elements, limit_s)
        else:
            report = await _run_all(process, values["library"], elements, limit_s)
    except Failed as failed:
        process.log.error(str(failed))
        process.out("Test FAILED\n")
        return failed.code
    return tell(process, report, elements)


# --- the outcome ------------------------------------------------------------------------------------------------------


def tell(process: Process, report: Report, elements: int) -> int:
    """Say how each GPU did; the exit code."""
    driver = report.driver or _driver(process)
    if report.failure:
        process.log.error(report.failure)
    if report.gpus:
        version = f"{report.cuda_version // 1000}.{report.cuda_version % 1000 // 10}"
        process.out(f"Driver {driver}, CUDA {version}\n")
    for gpu in report.gpus:
        _tell_of(process, gpu, elements)
    code = _exit_code(report)
    if code in (NO_LIBRARY_CODE, NO_GPU):
        from . import missing

        process.log.error(f"Missing layer: {missing.layer(process, library=code == NO_GPU)}")
    failed = sum(1 for gpu in report.gpus if not gpu.passed)
    process.out("Test PASSED\n" if code == PASSED else f"Test FAILED: {failed} of {len(report.gpus)} GPUs failed\n")
    return code


def _tell_of(process: Process, gpu: GpuReport, elements: int) -> None:
    name = f"GPU {gpu.device.ordinal}: {check.described(gpu.device)}"
    if gpu.passed:
        process.out(f"{name}: {elements} sums are right, {gpu.seconds:.3f} s\n")
    elif gpu.failure:
        process.log.error(f"{name}: {gpu.failure}")
    else:
        process.log.error(
            f"{name}: {gpu.wrong} of {elements} sums are wrong ({gpu.first_wrong}): the GPU computes wrongly; take it "
            "out of use, and have it diagnosed (dcgmi diag -r 3)"
        )


def _exit_code(report: Report) -> int:
    if report.failure:
        named = {NO_LIBRARY: NO_LIBRARY_CODE, results.NO_DEVICE: NO_GPU}
        return named.get(report.code, CALL_FAILED)
    if not report.gpus:
        return NO_GPU
    if any(gpu.failure for gpu in report.gpus):
        return CALL_FAILED
    return WRONG if any(gpu.wrong for gpu in report.gpus) else PASSED


def _driver(process: Process) -> str:
    try:
        return process.kernel.read_text(DRIVER_VERSION).strip()
    except OSError:
        return "of unknown version"


# --- simulated GPUs ---------------------------------------------------------------------------------------------------


async def _run_simulated(process: Process, cuda: "SimulatedCuda", elements: int, limit_s: float) -> Report:
    delay_s = cuda.delay_s
    await process.sleep(min(delay_s, limit_s))
    if delay_s > limit_s:
        raise _hanging("cuInit", limit_s)
    report = await asyncio.to_thread(check.run, cuda, elements, time.monotonic)
    return msgspec.structs.replace(report, driver=cuda.driver)


# --- the driver's library ---------------------------------------------------------------------------------------------


async def _run_all(process: Process, library: str, elements: int, limit_s: float) -> Report:
    """The report of all GPUs and MIG devices."""
    report = await _run_child(process, library, elements, limit_s)
    if process.env.get(_CHOSEN) is not None:
        return report
    gpus = list(report.gpus)
    checked = {gpu.device.uuid for gpu in gpus}
    failure, code = report.failure, report.code
    for identity in report.mig:
        if identity in checked:
            continue
        further = await _run_child(process, library, elements, limit_s, {_CHOSEN: identity})
        gpus += (_renumbered(gpu, len(gpus)) for gpu in further.gpus)
        if further.failure and not failure:
            failure, code = f"MIG device {identity}: {further.failure}", further.code
    return msgspec.structs.replace(report, gpus=tuple(gpus), failure=failure, code=code)


def _renumbered(gpu: GpuReport, ordinal: int) -> GpuReport:
    return msgspec.structs.replace(gpu, device=msgspec.structs.replace(gpu.device, ordinal=ordinal))


async def _run_child(
    process: Process, library: str, elements: int, limit_s: float, env: Mapping[str, str] | None = None
) -> Report:
    """One child's report. Raises :class:`Failed` if it gives none."""
    with _progress(process) as file:
        shown = "-" if file is None else str(file)
        command = (sys.executable, "-m", _MODULE, library, str(elements), shown)
        running = asyncio.ensure_future(process.execute(command, env=env))
        pause = asyncio.ensure_future(process.sleep(limit_s))
        try:
            await asyncio.wait((running, pause), return_when=asyncio.FIRST_COMPLETED)
            call = _call(file)
            if not running.done():
                raise _hanging(call, limit_s)
        finally:
            pause.cancel()
            if not running.done():  # one that hangs in the kernel does not end, whatever is done: nobody waits for it
                running.cancel()
    done = running.result()
    if done.code == 0:
        with contextlib.suppress(msgspec.DecodeError):
            return child.read(done.out)
    how = f"signal {-done.code}" if done.code < 0 else f"exit code {done.code}"
    said = done.err.strip()[-_LAST_WORDS:]
    raise Failed(f"{library} ended its process by {how} in {call}" + (f": {said}" if said else ""), CRASHED)


def _hanging(call: str, limit_s: float) -> Failed:
    return Failed(
        f"{call} has not returned after {limit_s:g} s: the driver hangs; look for NVRM in the kernel's log; if the "
        "process cannot be ended, the node must be restarted",
        HANGS,
    )


@contextlib.contextmanager
def _progress(process: Process) -> Iterator[Path | None]:
    """A file in which the child notes what it does; None where none can be made."""
    try:
        handle, name = tempfile.mkstemp(prefix="cuda-check.", dir=process.path(process.env.get("TMPDIR", "/tmp")))
    except OSError:
        yield None
        return
    os.close(handle)
    file = Path(name)
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


def _call(file: Path | None) -> str:
    try:
        return (file.read_text(errors="replace").strip() if file is not None else "") or "the driver's library"
    except OSError:
        return "the driver's library"
