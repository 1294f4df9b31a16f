"""Limits of MPS clients and the number of them (contracts/device-plugin-gfd.md 6)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.node.devices.model import Gpu
from groundplane.node.mps import limits
from groundplane.node.resources import Offer, PhysicalDevice

GIB = 1 << 30


def offer(replicas: int, *gpus: tuple[int, int, tuple[int, int]]) -> Offer:
    """An offer of GPUs, each given as index, memory in bytes, compute capability."""
    devices = []
    for index, memory, compute in gpus:
        gpu = Gpu(
            index=index,
            uuid=f"GPU-{index}",
            minor=7 - index,
            name="GPU",
            bus_id="",
            memory_bytes=memory,
            compute=compute,
        )
        devices.append(PhysicalDevice(id=gpu.uuid, index=str(index), gpu=gpu))
    return Offer(resource="nvidia.com/gpu", base="nvidia.com/gpu", devices=tuple(devices), replicas=replicas)


@pytest.mark.parametrize(
    ("compute", "most"),
    [((3, 5), 16), ((6, 0), 16), ((7, 0), 16), ((7, 2), 16), ((7, 5), 48), ((8, 0), 48), ((9, 0), 48), ((12, 0), 48)],
)
def test_section_6_maximum_replicas_by_compute_capability(compute: tuple[int, int], most: int) -> None:
    assert limits.max_replicas(compute) == most
    assert limits.too_many(offer(most, (0, GIB, compute))) == ""
    said = limits.too_many(offer(most + 1, (1, GIB, compute)))
    assert f"nvidia.com/gpu has {most + 1} replicas, but GPU 1 (GPU-1, compute capability" in said
    assert f"at most {most} MPS clients" in said


@pytest.mark.parametrize(
    ("shared", "expected"),
    [
        (
            offer(10, (0, 80 * GIB, (9, 0)), (3, 81559 * (1 << 20), (9, 0))),
            [
                "set_default_device_pinned_mem_limit 0 8192M",
                "set_default_device_pinned_mem_limit 3 8155M",
                "set_default_active_thread_percentage 10",
            ],
        ),
        (offer(3, (1, 0, (9, 0))), ["set_default_active_thread_percentage 33"]),
        (
            offer(48, (2, 15 * GIB + 17, (7, 5))),
            ["set_default_device_pinned_mem_limit 2 320M", "set_default_active_thread_percentage 2"],
        ),
    ],
)
def test_section_6_limits(shared: Offer, expected: list[str]) -> None:
    assert list(limits.commands(shared)) == expected


@given(st.integers(1, 1 << 48), st.integers(2, 48))
def test_section_6_all_clients_together_fit(memory: int, replicas: int) -> None:
    commands = list(limits.commands(offer(replicas, (0, memory, (9, 0)))))
    limit, threads = (int(command.rpartition(" ")[2].rstrip("M")) for command in commands)
    assert limit * replicas << 20 <= memory < (limit + 1) * replicas << 20
    assert threads * replicas <= 100 < (threads + 1) * replicas
