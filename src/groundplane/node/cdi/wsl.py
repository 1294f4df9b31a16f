"""GPUs under Windows' subsystem for Linux: the files that Windows lends (contracts/toolkit-cdi.md 3.8).

Windows keeps its driver's files in a folder of its driver store, which is found by a library that only NVIDIA's has.
Programs look for them there, so that they are mounted in place; without hooks also where loaders search.
"""

import posixpath
from collections.abc import Iterator
from typing import Final

from ...api.release import Release
from .drivers import DriverFiles
from .hooks import Hooks
from .libraries import Placing, folders_of, stem
from .model import ContainerEdits, Mount
from .options import GenerateError

NODE: Final = "/dev/dxg"
_FOLDER: Final = "/usr/lib/wsl/lib"
_STORE: Final = "/usr/lib/wsl/drivers"
_CORE: Final = "libdxcore.so"
_MARK: Final = "libcuda.so.1.1"
"""The library that tells the folder of NVIDIA's driver."""
_REQUIRED: Final = (
    *(_MARK, "libcuda_loader.so", "libnvidia-ptxjitcompiler.so.1", "libnvidia-ml.so.1", "libnvidia-ml_loader.so"),
    *("libnvdxgdmal.so.1", "nvcubins.bin", "nvidia-smi"),
)
_OTHERS: Final = ("*.so*", "*.bin", "*.dll")
_SMI, _SMI_PLACE = "nvidia-smi", "/usr/bin/nvidia-smi"


def common(files: DriverFiles, placing: Placing, hooks: Hooks, release: Release, *, hookless: bool) -> ContainerEdits:
    """What every container gets. Raises :class:`GenerateError` if Windows lends no driver of NVIDIA's."""
    store = _store(files)
    core = files.first((_FOLDER,), _CORE)
    required = [path for name in _REQUIRED for path in files.first((store,), name)]
    others = [] if release is Release.V26_3 else [path for each in _OTHERS for path in files.find((store,), each)]
    mounts = [placing.mount(path) for path in dict.fromkeys((*core, *required, *others))]
    smi = f"{store}/{_SMI}"
    if hookless:
        mounts += _by_names(placing, [*core, *required])
        mounts += [placing.mount(smi, _SMI_PLACE)] if smi in required else []
    return ContainerEdits(
        mounts=tuple(mounts),
        hooks=(
            *hooks.create_symlinks([f"{smi}::{_SMI_PLACE}"] if smi in required else []),
            *hooks.update_ldcache(folders_of((*required, *core))),
        ),
    )


def _by_names(placing: Placing, paths: list[str]) -> Iterator[Mount]:
    libraries = [path for path in paths if stem(posixpath.basename(path))]
    yield from placing.by_names(libraries)


def _store(files: DriverFiles) -> str:
    folders = files.find((_STORE,), "*", folder=True)
    found = files.first(folders, _MARK)
    if not found:
        raise GenerateError(
            f"no folder in {files.place.rstrip('/')}{_STORE} has {_MARK}: is NVIDIA's driver in Windows?"
        )
    return posixpath.dirname(found[0])
