"""What the device plugin asks of MPS (contracts/device-plugin-gfd.md 1.3, 6 and 12 row 3)."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node.mps import client
from groundplane.node.mps.client import Mount
from groundplane.node.process import Completed

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("resource", "root", "pipe", "host"),
    [
        (GPU, "/run/nvidia/mps", "/mps/nvidia.com/gpu/pipe", "/run/nvidia/mps/nvidia.com/gpu/pipe"),
        (
            "nvidia.com/gpu.shared",
            "/srv/mps/",
            "/mps/nvidia.com/gpu.shared/pipe",
            "/srv/mps/nvidia.com/gpu.shared/pipe",
        ),
    ],
)
def test_section_6_additions_to_allocate(resource: str, root: str, pipe: str, host: str) -> None:
    assert client.environment(resource) == {"CUDA_MPS_PIPE_DIRECTORY": pipe}
    assert client.mounts(resource, root) == (Mount(pipe, host), Mount("/dev/shm", f"{root.rstrip('/')}/shm"))


def test_section_1_3_an_empty_root_is_refused_in_upstreams_words() -> None:
    client.require_root("/run/nvidia/mps")
    with pytest.raises(client.MpsError, match=r"^using MPS requires --mps-root to be specified$"):
        client.require_root("")


async def test_section_6_the_health_question_goes_through_the_control_binary(tmp_path: Path) -> None:
    asked: list[tuple[tuple[str, ...], str, str]] = []

    def control(argv: Sequence[str], env: Mapping[str, str], stdin: str) -> Completed:
        asked.append((tuple(argv), env["CUDA_MPS_PIPE_DIRECTORY"], stdin))
        return Completed(0, "25.0\n", "")

    process = FakeProcess(tmp_path)
    process.commands["nvidia-cuda-mps-control"] = control
    await client.check(process, GPU)
    assert asked == [
        (("nvidia-cuda-mps-control",), "/mps/nvidia.com/gpu/pipe", "get_default_active_thread_percentage\n")
    ]


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (Completed(1, "Cannot find MPS control daemon process\n", ""), "Cannot find MPS control daemon process"),
        (Completed(1, "out", "Failed\n  to connect\n"), "Failed to connect"),
        (Completed(139, "", ""), "exit code 139: it said nothing"),
    ],
)
async def test_section_12_a_daemon_that_is_not_there_is_named_by_its_pipe_directory(
    tmp_path: Path, done: Completed, said: str
) -> None:
    process = FakeProcess(tmp_path)
    process.commands["nvidia-cuda-mps-control"] = lambda *_: done
    with pytest.raises(client.DaemonNotReady, match=r"^error waiting for MPS daemon: ") as caught:
        await client.check(process, GPU)
    assert "/mps/nvidia.com/gpu/pipe" in str(caught.value)
    assert said in str(caught.value)


async def test_a_missing_control_binary_says_where_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(client.DaemonNotReady, match=r"/mps/nvidia.com/gpu/pipe.*is not in this container.*runtime"):
        await client.check(FakeProcess(tmp_path), GPU)


async def test_a_control_binary_that_hangs_is_given_up(tmp_path: Path) -> None:
    class Hanging(FakeProcess):
        async def execute(
            self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: str = ""
        ) -> Completed:
            await asyncio.Event().wait()
            raise AssertionError

    with pytest.raises(client.ControlFailed, match=r"no answer within 0\.01 s"):
        await client.ask(Hanging(tmp_path), GPU, "quit", within_s=0.01)
