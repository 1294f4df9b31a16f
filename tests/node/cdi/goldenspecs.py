"""Golden specs: what is generated for the drivers of each release and installation, as text that a person can read.

`PYTHONPATH=tests:. python -m node.cdi.goldenspecs`, from the project's folder, writes those of `tests/data/cdi` anew.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from node.cdi.gpuworld import World, gpu, mig

from groundplane.api.release import Release
from groundplane.node.cdi.model import ContainerEdits, Spec, minimum_version
from groundplane.node.cdi.options import Libraries, Mode, Strategy
from groundplane.node.devices.model import Profile
from testing.driverroots import VERSIONS, Kind

FOLDER = Path(__file__).parents[2] / "data" / "cdi"
ROOT = "/run/nvidia/driver"
_CASES = {
    "nvml": {"mode": Mode.NVML},
    "nvml-uuid": {"mode": Mode.NVML, "strategies": (Strategy.INDEX, Strategy.UUID)},
    "nvml-hookless": {"mode": Mode.NVML, "libraries": Libraries.HOOKLESS},
    "management": {"mode": Mode.MANAGEMENT},
    "management-hookless": {"mode": Mode.MANAGEMENT, "libraries": Libraries.HOOKLESS},
    "nvml-26.3": {"mode": Mode.NVML},
    "management-26.3": {"mode": Mode.MANAGEMENT},
}
_SHORT = {
    "/usr/lib/x86_64-linux-gnu": "$M",
    "createContainer /usr/bin/nvidia-cdi-hook nvidia-cdi-hook": "$H",
    "NVIDIA_CTK_DEBUG=false": "$D",
    "libnvidia-": "$N",
    "0000-0000-0000": "$0",
}
"""Long texts, and what stands for them in the files; `$V` is the driver's version."""
_OTHERS_OF = VERSIONS[-2]
"""The driver whose specs of all cases are kept; of the others there is the first."""


def names() -> list[tuple[str, Kind, str]]:
    """All golden specs: driver, installation, case."""
    cases = [(version, kind, case) for version in VERSIONS for kind in Kind for case in _CASES]
    return [each for each in cases if each[0] == _OTHERS_OF or each[2] == "nvml"]


def file(version: str, kind: Kind, case: str) -> Path:
    """The file of one."""
    return FOLDER / f"{kind.value}-{version}-{case}.txt"


def text(folder: Path, version: str, kind: Kind, case: str) -> str:
    """What is generated now, as text."""
    release = Release.V26_3 if case.endswith("26.3") else Release.V26_7
    gpus = (gpu(0), gpu(1, mig=True, mig_devices=(mig(0, 7), mig(1, 9, profile=Profile(2, 2, 20, "+gfx")))))
    root = ROOT if kind is Kind.CONTAINER else ""
    world = World(folder, gpus, version=version, kind=kind, driver_root=root, release=release)
    world.capabilities(
        *("config 1", "monitor 2", "gpu2/gi7/access 10", "gpu2/gi7/ci0/access 11"),
        *("gpu2/gi9/access 12", "gpu2/gi9/ci0/access 13"),
    )
    for number, each in enumerate(gpus):
        world.drm(each, number)
    found = "".join(f"{line}\n" for line in _lines(world.generate(**_CASES[case]), root))
    for long, short in ((version, "$V"), *_SHORT.items()):
        found = found.replace(long, short)
    return found


def _lines(spec: Spec, root: str) -> Iterator[str]:
    """What is below the driver's root where the container has it is written as `^/path`."""
    yield f"{spec.kind} {minimum_version(spec)}"
    yield from _edit_lines(spec.container_edits, root)
    for device in spec.devices:
        yield f"device {device.name}"
        yield from (f"  {line}" for line in _edit_lines(device.container_edits, root))


def _edit_lines(edits: ContainerEdits, root: str) -> Iterator[str]:
    yield from (f"env {each}" for each in edits.env)
    yield from (f"node {_place(node.path, node.host_path or node.path, root)}" for node in edits.device_nodes)
    yield from (f"group {each}" for each in edits.additional_gids)
    for hook in edits.hooks:
        yield f"hook {hook.hook_name} {hook.path} {hook.args[0]} {hook.args[1]} {' '.join(hook.env)}"
        yield from (f"  {words}" for words in " ".join(hook.args[2:]).replace(" --", "\n--").splitlines())
    for mount in edits.mounts:
        options = "" if mount.options[0] == "ro" else f" ({','.join(mount.options)})"
        yield f"mount {_place(mount.container_path, mount.host_path, root)}{options}"


def _place(path: str, host: str, root: str) -> str:
    return f"^{path}" if host == root + path else f"{path} <- {host}"


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for version, kind, case in names():
        with tempfile.TemporaryDirectory() as folder:
            file(version, kind, case).write_text(text(Path(folder), version, kind, case), encoding="utf-8")


if __name__ == "__main__":
    main()
