"""Whose a device is (contracts/mig-exporter-validator.md 5.5, 5.6)."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from node.fakeprocess import FakeProcess
from node.metrics.exporterworld import pod

from groundplane.node.devices.model import Gpu, MigDevice, Profile
from groundplane.node.devices.telemetry import GpuProcess, Reading
from groundplane.node.kubeletapi.stubs import podresources_pb2 as wire
from groundplane.node.metrics import families, jobs, mapping, settings
from groundplane.node.metrics.families import Entity
from groundplane.node.metrics.mapping import Places, PodFacts, SliceDevice, Users
from groundplane.node.metrics.sampler import GpuSample
from groundplane.node.metrics.settings import Settings
from groundplane.node.metrics.text import Family, Row

UUIDS = [f"GPU-0000000{at}-0000-0000-0000-000000000000" for at in range(2)]
MIG = "MIG-11111111-0000-0000-0000-000000000000"


def gpu(index: int, *devices: MigDevice) -> Gpu:
    return Gpu(
        index=index,
        uuid=UUIDS[index],
        minor=index + 4,
        name="NVIDIA H100 80GB HBM3",
        bus_id=f"00000000:1{index}:00.0",
        memory_bytes=1,
        compute=(9, 0),
        mig=bool(devices),
        mig_devices=devices,
    )


DEVICE = MigDevice(
    slot=0, uuid=MIG, gi=7, ci=0, profile=Profile(1, 1, 10), memory_mib=1, multiprocessors=1, gi_slices=1, ci_slices=1
)
GPUS = (gpu(0), gpu(1, DEVICE))


@pytest.fixture
def wanted(tmp_path: Path) -> Settings:
    return settings.load(FakeProcess(tmp_path, ["dcgm-exporter", "-k"], {"NODE_NAME": "n1"}))


def entity(which: Gpu, wanted: Settings, gi: int | None = None, processes: tuple[GpuProcess, ...] = ()) -> Entity:
    sample = GpuSample(which, 0.0, Reading(), processes=processes)
    return Entity(sample, gi, Reading(), False, families.base_labels(which, gi, wanted), {}, True)


def users(wanted: Settings, *pods: Any, facts: Any = None, slices: Any = None) -> Users:
    answer = wire.ListPodResourcesResponse(pod_resources=pods)
    return Users(mapping.uses(answer), Places.of(GPUS), wanted, facts or {}, slices or {})


@pytest.mark.parametrize(
    ("device", "keys"),
    [
        (UUIDS[0], [UUIDS[0]]),
        (f"{UUIDS[0]}::3", [f"{UUIDS[0]}::3", UUIDS[0]]),
        (MIG, [MIG, "1-7", MIG.removeprefix("MIG-")]),
        (f"{MIG}::0", [f"{MIG}::0", "1-7", MIG.removeprefix("MIG-")]),
        ("MIG-unknown", ["MIG-unknown", "unknown"]),
        (f"MIG-{UUIDS[1]}/7/0", [f"MIG-{UUIDS[1]}/7/0", "1-7", f"{UUIDS[1]}/7/0"]),
        ("nvidia3/gi5", ["nvidia3/gi5", "3-5"]),
        ("nvidia3/gi5/vgpu2", ["nvidia3/gi5/vgpu2", "3-5"]),
        ("nvidia3/vgpu2", ["nvidia3/vgpu2", "nvidia3"]),
        ("nvidia3", ["nvidia3"]),
        ("0", ["0"]),
    ],
)
def test_5_5_device_ids(device: str, keys: list[str]) -> None:
    assert mapping.keys(device, Places.of(GPUS)) == keys


@given(st.text(max_size=40) | st.builds("{}::{}".format, st.sampled_from([MIG, *UUIDS]), st.integers(0, 99)))
def test_5_5_any_device_id_stands_for_itself_and_for_what_it_shares(device: str) -> None:
    found = mapping.keys(device, Places.of(GPUS))
    assert found[0] == device
    assert len(found) <= 3
    if device.startswith("GPU-") and "::" in device:
        assert found[1] == device.partition("::")[0]


@pytest.mark.parametrize(
    ("device", "replica"),
    [(f"{MIG}::2", "2"), (f"{UUIDS[0]}::11", "11"), ("nvidia3/vgpu2", "2"), ("nvidia3/gi1/vgpu0", "0"), (UUIDS[0], "")],
)
def test_5_5_replicas(device: str, replica: str) -> None:
    assert mapping.replica(device) == replica


@pytest.mark.parametrize(
    ("resource", "considered"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu.shared", False),
        ("nvidia.com/mig-1g.10gb", True),
        ("nvidia.com/mig-1g.10gb.shared", True),
        ("example.com/gpu", True),
        ("amd.com/gpu", False),
        ("nvidia.com/gpus", False),
    ],
)
def test_5_5_resources(wanted: Settings, resource: str, considered: bool) -> None:
    named = msgspec.structs.replace(wanted, resource_names=frozenset(["example.com/gpu"]))
    assert mapping.considered(resource, named) is considered


def test_5_5_keys_of_rows(wanted: Settings) -> None:
    assert mapping.key(entity(GPUS[0], wanted), wanted) == UUIDS[0]
    assert mapping.key(entity(GPUS[1], wanted, 7), wanted) == "1-7"
    named = msgspec.structs.replace(wanted, gpu_id_type="device-name")
    assert mapping.key(entity(GPUS[0], wanted), named) == "nvidia0"
    assert mapping.key(entity(GPUS[1], wanted, 7), named) == "1-7"


def test_5_5_one_user_and_the_last_wins(wanted: Settings) -> None:
    found = users(
        wanted, pod("a", f"{UUIDS[0]}::0"), pod("b", f"{UUIDS[0]}::1"), pod("m", MIG, resource="nvidia.com/mig-x")
    )
    (user,) = found.of(entity(GPUS[0], wanted))
    assert dict(user.attributes) == {"pod": "b", "namespace": "team", "container": "main"}
    assert [user.attributes["pod"] for user in found.of(entity(GPUS[1], wanted, 7))] == ["m"]
    assert found.of(entity(GPUS[1], wanted)) == []
    assert users(wanted, pod("a", UUIDS[0], resource="other.com/gpu")).of(entity(GPUS[0], wanted)) == []


def test_5_5_old_namespace(wanted: Settings) -> None:
    old = msgspec.structs.replace(wanted, old_namespace=True)
    (user,) = users(old, pod("a", UUIDS[0])).of(entity(GPUS[0], old))
    assert dict(user.attributes) == {"pod_name": "a", "pod_namespace": "team", "container_name": "main"}
    assert families.base_labels(GPUS[0], None, old)[1] == ("uuid", UUIDS[0])


FACTS = {("team", "a"): PodFacts("uid-a", {"app.kubernetes.io/name": "x", "app_kubernetes_io/name": "y", "team": "z"})}


def test_5_5_uid_and_labels(wanted: Settings) -> None:
    both = msgspec.structs.replace(wanted, pod_uid=True, pod_labels=True)
    (user,) = users(both, pod("a", UUIDS[0]), facts=FACTS).of(entity(GPUS[0], both))
    assert user.attributes["pod_uid"] == "uid-a"
    assert user.labels == {"app_kubernetes_io_name": "x", "team": "z"}
    some = msgspec.structs.replace(both, label_allowlist=(re.compile("eam"),))
    (user,) = users(some, pod("a", UUIDS[0]), facts=FACTS).of(entity(GPUS[0], some))
    assert user.labels == {"team": "z"}
    (user,) = users(wanted, pod("a", UUIDS[0]), facts=FACTS).of(entity(GPUS[0], wanted))
    assert (user.labels, "pod_uid" in user.attributes) == ({}, False)


def test_5_5_virtual_gpus_have_a_row_for_each_who_shares(wanted: Settings) -> None:
    shared = msgspec.structs.replace(wanted, virtual_gpus=True, pod_labels=True)
    found = users(
        shared,
        pod("a", f"{UUIDS[0]}::0"),
        pod("b", f"{UUIDS[0]}::1"),
        pod("c", MIG, resource="nvidia.com/mig-x"),
        facts=FACTS,
    )
    both = found.of(entity(GPUS[0], shared))
    assert [(user.attributes["pod"], user.attributes["vgpu"]) for user in both] == [("a", "0"), ("b", "1")]
    assert both[0].labels["team"] == "z"
    (alone,) = found.of(entity(GPUS[1], shared, 7))
    assert "vgpu" not in alone.attributes


def test_5_5_each_pods_own_part(wanted: Settings) -> None:
    shared = msgspec.structs.replace(wanted, virtual_gpus=True)
    facts = {("team", name): PodFacts(f"uid-{name}") for name in "ab"}
    processes = (GpuProcess(1, 300 << 20, 40), GpuProcess(2, 5 << 20, 2), GpuProcess(3, 1 << 20, 1))
    shown = [
        entity(GPUS[0], shared, processes=processes),
        entity(GPUS[1], shared, 7, (GpuProcess(1, 7 << 20, None, 7),)),
    ]
    found = users(
        shared,
        pod("a", f"{UUIDS[0]}::0"),
        pod("b", f"{UUIDS[0]}::1"),
        pod("a", MIG, resource="nvidia.com/mig-x"),
        facts=facts,
    )
    pod_of = {1: "uid-a", 2: "uid-a", 3: "uid-else"}
    family = Family("DCGM_FI_DEV_FB_USED", "gauge", "", [Row(0, "306"), Row(1, "9")])
    rows = mapping.per_process(family, shown, found, pod_of).rows
    assert [(row.entity, row.value, row.attributes.get("pod"), row.attributes.get("pod_uid")) for row in rows] == [
        (0, "306", None, None),
        (0, "305", "a", "uid-a"),
        (0, "0", "b", "uid-b"),
        (1, "9", None, None),
        (1, "7", "a", "uid-a"),
    ]
    util = mapping.per_process(Family("DCGM_FI_DEV_GPU_UTIL", "gauge", "", [Row(0, "43")]), shown, found, pod_of).rows
    assert [row.value for row in util] == ["43", "42", "0"]
    assert all(row.settled for row in rows)
    nobody = mapping.per_process(family, shown, users(shared), pod_of)
    assert nobody.rows == family.rows


def claim(device: str, pool: str = "n1", driver: str = "gpu.nvidia.com") -> Any:
    resource = wire.ClaimResource(driver_name=driver, pool_name=pool, device_name=device)
    return wire.DynamicResource(claim_name="c", claim_namespace="team", claim_resources=[resource])


SLICES = {
    ("n1", "gpu-0"): SliceDevice(UUIDS[0]),
    ("n1", "mig-7"): SliceDevice(MIG, UUIDS[1], "1g.10gb"),
}


def test_5_5_claims(wanted: Settings) -> None:
    dra = msgspec.structs.replace(wanted, dra=True)
    pods = [pod("a", claims=[claim("gpu-0")]), pod("b", claims=[claim("gpu-0")]), pod("c", claims=[claim("mig-7")])]
    found = users(dra, *pods, slices=SLICES)
    both = found.of(entity(GPUS[0], dra))
    assert [user.attributes["pod"] for user in both] == ["a", "b"]
    assert dict(both[0].attributes) == {
        "pod": "a",
        "namespace": "team",
        "container": "main",
        "dra_claim_name": "c",
        "dra_claim_namespace": "team",
        "dra_driver_name": "gpu.nvidia.com",
        "dra_pool_name": "n1",
        "dra_device_name": "gpu-0",
    }
    (mig,) = found.of(entity(GPUS[1], dra, 7))
    assert (mig.attributes["dra_mig_profile"], mig.attributes["dra_mig_device_uuid"]) == ("1g.10gb", MIG)
    for other in (claim("gpu-0", driver="other"), claim("gpu-9"), claim("gpu-0", pool="n2")):
        assert users(dra, pod("a", claims=[other]), slices=SLICES).of(entity(GPUS[0], dra)) == []
    assert users(wanted, *pods, slices=SLICES).of(entity(GPUS[0], wanted)) == []


# --- 5.6 --------------------------------------------------------------------------------------------------------------


def test_5_6_files_of_jobs(tmp_path: Path, wanted: Settings) -> None:
    for name, content in (
        ("0", "job-1\njob-2\n\njob-1\n"),
        ("1", "job-3"),
        ("1.7", " job-4 \n"),
        ("2", ""),
        ("4", "of no GPU of this machine"),
        ("x", "no"),
        ("1.7.1", "no"),
        ("-1", "no"),
    ):
        (tmp_path / name).write_text(content)
    (tmp_path / "3").mkdir()
    found = jobs.read(tmp_path.joinpath, "", {"0", "1", "1.7", "2", "3", "5"})
    assert found == {"0": ("job-1", "job-2"), "1": ("job-3",), "1.7": ("job-4",), "2": ()}
    assert jobs.of(entity(GPUS[0], wanted), found) == ("job-1", "job-2")
    assert jobs.of(entity(GPUS[1], wanted, 7), found) == ("job-4",)
    assert jobs.of(entity(GPUS[1], wanted, 3), found) == ()
    with pytest.raises(jobs.JobsError, match="folder of job files none cannot be read: No such file"):
        jobs.read(tmp_path.joinpath, "none", {"0"})
