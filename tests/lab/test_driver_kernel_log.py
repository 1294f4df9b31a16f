"""What the kernel says when it does not give a GPU to the driver."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from groundplane.lab.driver import modules
from groundplane.lab.host import HostError, SimulatedHost
from groundplane.lab.nodes import GpuSpec, NodeSpec
from groundplane.node.devices import kernelmessages
from groundplane.node.hostroot import HostRoot


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gp-") as folder:
        yield Path(folder)


class Container:
    """As much of a container's context as loading modules looks at."""

    def __init__(self, host: SimulatedHost) -> None:
        self.host = host
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)


def machine(folder: Path, model: str) -> SimulatedHost:
    made = SimulatedHost(HostRoot(folder), NodeSpec("n", (GpuSpec(model, 2),)))
    made.boot()
    return made


@pytest.mark.parametrize(
    ("model", "open", "nouveau", "says"),
    [
        ("H100", True, True, "NVRM: GPU 0000:10:00.0 is already bound to nouveau."),
        ("B200", False, False, "NVRM: installed in this system requires use of the NVIDIA open kernel modules."),
        ("V100", True, False, "NVRM: installed in this system is not supported by open nvidia.ko because it does not"),
    ],
)
def test_why_the_driver_gets_no_gpu(folder: Path, model: str, open: bool, nouveau: bool, says: str) -> None:
    host = machine(folder, model)
    if nouveau:
        host.load_module("nouveau")
    build = modules.Build("580.126.20", open, "", {})
    context = Container(host)
    with pytest.raises(HostError, match="could not insert 'nvidia': No such device"):
        modules.load(context, build, rdma=False)
    lines = kernelmessages.texts(host.root.path(kernelmessages.PATH))
    assert any(says in line for line in lines)
    assert not host.loaded("nvidia")
