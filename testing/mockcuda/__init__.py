"""A libcuda.so.1 without a GPU: built from our own C source, and described by a file that a test writes.

With it the CUDA check runs through its own binding, in its own child process. The library's source says what the file
looks like.
"""

import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from groundplane.node.hostroot import write_atomic
from testing.mocknvml import compiler

SONAME = "libcuda.so.1"
VARIABLE = "MOCK_CUDA"
"""The environment variable that names the machine's file."""
_SOURCE = Path(__file__).with_name("mockcuda.c")


class Gpu(NamedTuple):
    """A GPU, or a MIG device if it has a UUID of its own. `faults` are lines such as `fail cuMemAlloc_v2 2`."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    mig: str = ""
    memory: int = 80 << 30
    compute: tuple[int, int] = (9, 0)
    faults: tuple[str, ...] = ()
    wrong: int = 0


def gpu_uuid(number: int) -> str:
    """A UUID for a GPU."""
    return f"GPU-{uuid.UUID(int=number + 1)}"


def mig_uuid(number: int) -> str:
    """A UUID for a MIG device."""
    return f"MIG-{uuid.UUID(int=number + 1001)}"


def build(folder: Path) -> Path:
    """Compile the library into a folder and return its path. Raises CalledProcessError, with the compiler's words."""
    target = folder / SONAME
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        compiler() or "gcc",
        *("-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"),
        f"-Wl,-soname,{SONAME}",
        *("-o", str(target), str(_SOURCE)),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target


def write(
    file: Path, gpus: Sequence[Gpu], *, version: int = 13000, faults: Sequence[str] = (), log: str = ""
) -> Mapping[str, str]:
    """Write the file of a machine; the environment that a program needs for it. `log` is what the compiler says."""
    lines = [f"version {version}", *faults, *([f"log {log}"] if log else [])]
    for gpu in gpus:
        lines += [
            f"gpu {_hex(gpu.uuid)}",
            *([f"own {_hex(gpu.mig)}"] if gpu.mig else []),
            f"memory {gpu.memory}",
            f"compute {gpu.compute[0]} {gpu.compute[1]}",
            f"wrong {gpu.wrong}",
            f"name {gpu.name}",
            *gpu.faults,
        ]
    write_atomic(file, "".join(f"{line}\n" for line in lines))
    return {VARIABLE: str(file)}


def _hex(identity: str) -> str:
    return uuid.UUID(identity.partition("-")[2]).hex
