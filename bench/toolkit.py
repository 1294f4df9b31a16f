"""What a container with GPUs costs, and CDI generation: `python -m bench.toolkit`.

Containers are started by the real containerd and runc as the kubelet has them started, from specs that are generated
for a simulated machine with all files of a driver. Ways to start one take turns, and each is compared with the same
container without GPU: the medians' difference is the figure. That container itself stands in the table a second time,
for what is noise.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from deploy import golang, hostprogram
from groundplane.node.cdi import generate, write
from groundplane.node.cdi.model import Spec
from groundplane.node.cdi.options import Libraries, Mode, Strategy, Wanted
from groundplane.node.cdi.roots import Roots
from groundplane.node.ownprocess import OwnProcess
from groundplane.node.process import Log
from groundplane.node.toolkit import options as toolkit_options
from groundplane.node.toolkit import specs as toolkit_specs
from testing import gpuimages, gpumachine
from testing.realcluster import build
from testing.realcluster.runtime import CDI_FOLDER, DEFAULT_HANDLER, Runtime

from . import table

GPUS = 8
ROUNDS = 25
GENERATIONS = 15
GENERATION_LIMIT_MS, HOOKS_LIMIT_MS, SHIM_LIMIT_MS = 300.0, 15.0, 10.0
REFERENCE_MS = 300.0
"""What NVIDIA's toolkit takes to generate a spec for 8 GPUs, as stated with the limits."""
BARE, HOOKLESS, SHIM = "without GPU", "CDI device, hookless", "nvidia"
PEER_HOOK = "GROUNDPLANE_PEER_CDI_HOOK"
"""Names an `nvidia-cdi-hook` built from NVIDIA's repository: the same spec is measured with it, too."""
IMAGE = gpuimages.Flavour("glibc", listed=True)


class Machine(msgspec.Struct, frozen=True):
    """Folders of the simulated machine, its driver, and what a toolkit would install."""

    simulation: Path
    driver: Path
    toolkit: Path

    @classmethod
    def make(cls, folder: Path) -> Machine:
        """Make machine and driver below a folder."""
        made = cls(folder / "machine", folder / "driver", folder / "toolkit")
        gpumachine.simulate(made.simulation, GPUS)
        gpumachine.install_driver(made.driver)
        made.toolkit.mkdir()
        return made

    @property
    def environment(self) -> dict[str, str]:
        """What node programs are told of it."""
        return gpumachine.environment(str(self.simulation))

    @property
    def roots(self) -> Roots:
        """The driver's and the devices' place."""
        return Roots.of(str(self.driver), "/")

    def process(self, env: Mapping[str, str] | None = None) -> OwnProcess:
        """A node program's view of it; needs a running loop."""
        made = OwnProcess(("bench",), {**self.environment, **(env or {})})
        made.log = Log(lambda text: None, made.now)  # the driver lacks a few files, and it would say so each time
        return made

    def spec(self, process: OwnProcess, libraries: Libraries) -> Spec:
        """All GPUs by index and UUID, of kind `bench.test/hookless` or `bench.test/hooks`."""
        wanted = Wanted(
            mode=Mode.NVML,
            roots=self.roots,
            kind=f"bench.test/{libraries.value}",
            strategies=(Strategy.INDEX, Strategy.UUID),
            libraries=libraries,
            hook_path=str(self.toolkit / "nvidia-cdi-hook"),
            null_devices=True,
        )
        with process.devices(str(self.driver)) as source:
            return generate.generate(process, source, wanted)


# --- generation -------------------------------------------------------------------------------------------------------


def _generation(machine: Machine) -> None:
    """Print the table of generation."""
    rows: list[list[object]] = []

    async def inside() -> list[list[object]]:
        process = machine.process()
        found: list[list[object]] = []
        for libraries in Libraries:
            times = _times(lambda libraries=libraries: machine.spec(process, libraries), GENERATIONS)  # type: ignore[misc]
            found.append([f"generation, {libraries.value}", *_compared(times), GENERATION_LIMIT_MS])
        return [*found, await _refresh(machine)]

    for libraries in Libraries:
        argv = ["nvidia-ctk", "cdi", "generate", f"--driver-root={machine.driver}", "--dev-root=/"]
        argv += [f"--output={machine.toolkit}/{libraries.value}.yaml", f"--libraries={libraries.value}"]
        times = _times(lambda argv=argv: _node_program(argv, machine.environment), GENERATIONS)  # type: ignore[misc]
        rows.append([f"nvidia-ctk cdi generate, {libraries.value}", *_compared(times), GENERATION_LIMIT_MS])
    rows += asyncio.run(inside())
    table.show(
        f"CDI generation for {GPUS} GPUs, median of {GENERATIONS} ({table.machine()})",
        ["what", "ms", "fastest ms", "reference ms", "ratio", "limit ms"],
        rows,
        "nvidia-ctk is the whole program with its start; the reference is what NVIDIA's toolkit was stated to take",
    )


def _compared(times: Sequence[float]) -> list[object]:
    median = statistics.median(times)
    return [median, min(times), REFERENCE_MS, median / REFERENCE_MS]


async def _refresh(machine: Machine) -> list[object]:
    """How long the toolkit's look at an unchanged machine takes. RuntimeError if it writes a file."""
    with tempfile.TemporaryDirectory(prefix="bench-toolkit-") as folder:
        env = {
            "ROOT": folder,
            "CDI_ENABLED": "true",
            "CDI_OUTPUT_DIR": f"{folder}/cdi",
            "NO_RUNTIME_CONFIG": "true",
            "RUNTIME": "containerd",
            "DRIVER_ROOT": str(machine.driver),
            "DRIVER_ROOT_CTR_PATH": str(machine.driver),
            "DEV_ROOT": "/",
            "DEV_ROOT_CTR_PATH": "/",
        }
        process = machine.process(env)
        kept = toolkit_specs.Specs(process, toolkit_options.load(process))
        await kept.first()
        before = _stamps(Path(folder))
        times = []
        for _ in range(GENERATIONS):
            began = time.perf_counter()
            await kept.refresh()
            times.append((time.perf_counter() - began) * 1000)
        if not before or _stamps(Path(folder)) != before:
            raise RuntimeError(f"a refresh without change wrote below {folder}: {before}, {_stamps(Path(folder))}")
    return [f"toolkit's refresh without change ({len(before)} files, none written)", *_compared(times), None]


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    found = ((path, path.stat()) for path in sorted(folder.rglob("*")))
    return {str(path): (status.st_ino, status.st_mtime_ns) for path, status in found}


def _node_program(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "groundplane.node", *argv]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")


def _times(call: Callable[[], object], rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1000)
    return times


# --- containers -------------------------------------------------------------------------------------------------------


class Way(msgspec.Struct, frozen=True):
    """One way to start the container, and what the added time may be."""

    name: str
    devices: tuple[str, ...] = ()
    handler: str = DEFAULT_HANDLER
    env: Mapping[str, str] = {}
    limit_ms: float | None = None
    against: str = BARE


WAYS = (
    Way(BARE),
    Way("without GPU, once more"),
    Way(HOOKLESS, ("bench.test/hookless=0",)),
    Way("CDI device, hooks", ("bench.test/hooks=0",), limit_ms=HOOKS_LIMIT_MS),
    Way("CDI device, hooks left out", ("bench.test/mounts=0",)),
    *((Way("CDI device, NVIDIA's hooks", ("bench.test/peer=0",)),) if PEER_HOOK in os.environ else ()),
    Way("shim, no device asked for", handler=SHIM, limit_ms=SHIM_LIMIT_MS),
    Way(
        "shim, NVIDIA_VISIBLE_DEVICES=0",
        handler=SHIM,
        env={"NVIDIA_VISIBLE_DEVICES": "0"},
        limit_ms=SHIM_LIMIT_MS,
        against=HOOKLESS,
    ),
)
"""What is compared. The shim is measured by itself, and against the same files without it."""


def _install(machine: Machine, program: Path, runc: Path) -> None:
    """Lay out what the toolkit installs for the shim, and the specs that it reads."""

    async def specs() -> tuple[Spec, ...]:
        process = machine.process()
        with process.devices(str(machine.driver)) as source:
            return generate.specs_for_shim(process, source, machine.roots)

    config = machine.toolkit / ".config/nvidia-container-runtime"
    (config / "cdi").mkdir(parents=True)
    for name in ("nvidia-cdi-hook", "nvidia-container-runtime"):
        shutil.copy(program, machine.toolkit / name)
    modules = machine.simulation / "proc/modules"
    (config / "config.toml").write_text(
        f'[nvidia-container-runtime]\nruntimes = ["{runc}"]\nmodules-file = "{modules}"\n'
    )
    (config / "cdi/properties.json").write_text('{"driver": "580.95.05", "cuda": "13.0", "gpus": []}')
    for spec in asyncio.run(specs()):
        write.write(spec, Path, str(config / "cdi"), format=write.Format.JSON)


def _containers(machine: Machine) -> None:
    """Print the table of container starts, or why there is none."""
    try:
        _install(machine, hostprogram.host_program(), build.ensure(("runc",))["runc"])
        specs = asyncio.run(_specs(machine))
        with Runtime(handlers={SHIM: machine.toolkit / "nvidia-container-runtime"}) as runtime:
            runtime.write({f"{CDI_FOLDER}/{spec.kind.rpartition('/')[2]}.json": _json(spec) for spec in specs})
            runtime.load_image(gpuimages.write((IMAGE,), runtime.workdir / "image.tar"))
            _show(_started(runtime), specs)
    except (build.UnavailableError, golang.UnavailableError) as error:
        print(f"\ncontainer starts are not measured here: {error}")


async def _specs(machine: Machine) -> list[Spec]:
    """What the ways ask for: both kinds of spec, and the one with hooks without them and with NVIDIA's program."""
    process = machine.process()
    hookless, hooks = (machine.spec(process, libraries) for libraries in (Libraries.HOOKLESS, Libraries.HOOKS))
    edits = msgspec.structs.replace(hooks.container_edits, hooks=())
    specs = [hookless, hooks, msgspec.structs.replace(hooks, kind="bench.test/mounts", container_edits=edits)]
    if PEER_HOOK in os.environ:
        theirs = tuple(
            msgspec.structs.replace(hook, path=os.environ[PEER_HOOK]) for hook in hooks.container_edits.hooks
        )
        edits = msgspec.structs.replace(hooks.container_edits, hooks=theirs)
        specs.append(msgspec.structs.replace(hooks, kind="bench.test/peer", container_edits=edits))
    return specs


def _json(spec: Spec) -> bytes:
    return write.encode(spec, write.Format.JSON)


def _started(runtime: Runtime) -> dict[str, list[float]]:
    """Start a container each way, turn by turn; the first turn does not count. Milliseconds by way."""
    found: dict[str, list[float]] = {way.name: [] for way in WAYS}
    for turn in range(ROUNDS + 1):
        shift = turn % len(WAYS)
        for way in (*WAYS[shift:], *WAYS[:shift]):
            command = [gpuimages.IDLE, "stay"]
            began = time.perf_counter()
            container = runtime.create_and_start(
                IMAGE.reference, command, handler=way.handler, env=way.env, devices=way.devices
            )
            took = time.perf_counter() - began
            runtime.remove(container)
            if turn:
                found[way.name].append(took * 1000)
    return found


def _show(found: Mapping[str, Sequence[float]], specs: Sequence[Spec]) -> None:
    rows: list[list[object]] = []
    for way in WAYS:
        own, other = found[way.name], found[way.against]
        median, against = statistics.median(own), statistics.median(other)
        added, added_fastest = median - against, min(own) - min(other)
        rows.append([way.name, median, min(own), way.against, added, added_fastest, median / against, way.limit_ms])
    sizes = ", ".join(
        f"{spec.kind.rpartition('/')[2]} {len(spec.container_edits.mounts)} mounts and "
        f"{len(spec.container_edits.hooks)} hooks"
        for spec in specs[:2]
    )
    table.show(
        f"CRI: create and start a container on containerd {build.COMPONENTS['containerd'].version}, median of {ROUNDS} "
        f"({table.machine()})",
        ["way", "ms", "fastest ms", "against", "added ms", "added, fastest", "ratio", "limit ms"],
        rows,
        f"{sizes}; hookless is to be within noise, which 'once more' shows",
    )


def main() -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory(prefix="bench-toolkit-") as folder:
        machine = Machine.make(Path(folder))
        _generation(machine)
        _containers(machine)


if __name__ == "__main__":
    main()
