"""Which pods hold a GPU: every row of contracts/driver-lifecycle.md 3.11, and the driver manager's of 5.3, step 6."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from cluster.fake_api import FakeApi, refuse, reply
from hypothesis import given
from hypothesis import strategies as st

from groundplane.cluster import errors, gpupods
from groundplane.cluster.client import Client
from groundplane.cluster.eviction import Pod
from groundplane.cluster.gpupods import Claim, ClaimReader


def container(limits: Mapping[str, str] | None = None, requests: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": limits or {}, "requests": requests or {}}}


def pod(*containers: dict[str, Any], phase: str = "Running", **spec: Any) -> Pod:
    statuses = spec.pop("statuses", [])
    return msgspec.convert(
        {
            "metadata": {"name": "p", "namespace": "jobs"},
            "spec": {"containers": list(containers), **spec},
            "status": {"phase": phase, "resourceClaimStatuses": statuses},
        },
        Pod,
    )


def claim(*results: tuple[str, bool | None], allocated: bool = True) -> dict[str, Any]:
    devices = {
        "results": [{"driver": name, "pool": "p", "device": "d", "adminAccess": admin} for name, admin in results]
    }
    return {"metadata": {"name": "c"}, "status": {"allocation": {"devices": devices}} if allocated else {}}


RESOURCES = [
    ("nvidia.com/gpu", True),
    ("nvidia.com/gpu.shared", True),
    ("nvidia.com/gpu-foo", True),
    ("nvidia.com/mig-1g.10gb", True),
    ("nvidia.com/mig-1g.10gb.shared", True),
    ("nvidia.com/mig", False),
    ("nvidia.com/vgpu", False),
    ("amd.com/gpu", False),
    ("cpu", False),
]


@pytest.mark.parametrize(("name", "gpu"), RESOURCES)
def test_3_11_resources(name: str, gpu: bool) -> None:
    for asked in (container({name: "1"}), container(None, {name: "1"})):
        assert gpupods.asks_for_gpu(pod(container(), asked)) is gpu
    assert not gpupods.asks_for_gpu(pod(container(), initContainers=[container({name: "1"})]))


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded", "Failed", "Unknown", ""])
def test_3_11_phases_count_for_the_upgrade_alone(phase: str) -> None:
    found = [pod(container({"nvidia.com/gpu": "1"}), phase=phase)]
    assert gpupods.to_upgrade(found, None) == (found if phase in ("Running", "Pending") else [])
    assert gpupods.to_unload(found, None) == found


FORBIDDEN = errors.Forbidden(403, "Forbidden", "no")
GPU, ADMIN, OTHER = ("gpu.nvidia.com", None), ("gpu.nvidia.com", True), ("compute-domain.nvidia.com", None)
UNREADABLE = "unreadable"
CLAIMS = [
    # claim, counts for the upgrade, counts for unloading
    (claim(GPU), True, True),
    (claim(("gpu.nvidia.com", False)), True, True),
    (claim(OTHER, GPU), True, True),
    (claim(ADMIN), False, True),
    (claim(ADMIN, GPU), True, True),
    (claim(OTHER), False, False),
    (claim(), False, False),
    (claim(allocated=False), False, False),
    (None, True, False),
    (FORBIDDEN, True, UNREADABLE),
]


@pytest.mark.parametrize(("found", "upgrade", "unload"), CLAIMS)
def test_3_11_claims(found: Any, upgrade: bool, unload: bool | str) -> None:
    holder = [pod(container(), resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}])]
    claims = {("jobs", "c"): msgspec.convert(found, Claim) if isinstance(found, dict) else found}
    assert bool(gpupods.to_upgrade(holder, claims)) is upgrade
    assert gpupods.to_upgrade(holder, None) == gpupods.to_unload(holder, None) == []  # 26.3
    if unload == UNREADABLE:
        with pytest.raises(errors.Forbidden):
            gpupods.to_unload(holder, claims)
    else:
        assert bool(gpupods.to_unload(holder, claims)) is unload


def test_3_11_a_claim_that_nobody_looked_up_counts_for_the_upgrade() -> None:
    holder = pod(container(), resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}])
    assert gpupods.to_upgrade([holder], {}) == [holder]


STATUSES = [{"name": "made", "resourceClaimName": "p-made-x"}, {"name": "none"}]
NAMES = [
    ([{"name": "a", "resourceClaimName": "c"}], ["c"]),
    ([{"name": "made", "resourceClaimTemplateName": "t"}], ["p-made-x"]),
    ([{"name": "made", "resourceClaimName": "own"}], ["own"]),
    ([{"name": "none", "resourceClaimTemplateName": "t"}], []),
    ([{"name": "unknown"}], []),
    ([], []),
]


@pytest.mark.parametrize(("entries", "names"), NAMES)
def test_3_11_names_of_claims(entries: list[dict[str, str]], names: list[str]) -> None:
    found = pod(container(), resourceClaims=entries, statuses=STATUSES)
    assert gpupods.claim_keys(found) == [("jobs", name) for name in names]
    gpus = {("jobs", name): msgspec.convert(claim(GPU), Claim) for name in ("c", "own", "p-made-x")}
    assert bool(gpupods.to_upgrade([found], gpus)) is bool(names)


@given(st.lists(st.sampled_from([GPU, ADMIN, OTHER])))
def test_what_counts_for_the_upgrade_counts_for_unloading(results: list[tuple[str, bool | None]]) -> None:
    found = msgspec.convert(claim(*results), Claim)
    assert found.gpu(admin=True) or not found.gpu(admin=False)


# --- reading claims ---------------------------------------------------------------------------------------------------

PATH = "/apis/resource.k8s.io/{}/namespaces/jobs/resourceclaims"
HOLDERS = [
    pod(container(), resourceClaims=[{"name": "gpu", "resourceClaimName": name}]) for name in ("one", "two", "one")
]
KEYS = [("jobs", "one"), ("jobs", "two")]
NOT_SERVED = reply(404, "404 page not found\n")


def serve(api: FakeApi, version: str, *names: str) -> None:
    """Have claims in one version of the API; others are not there at all."""
    for name in names:
        api.put(PATH.format(version), name, status=claim(GPU)["status"])
    for other in {"v1", "v1beta2", "v1beta1"} - {version}:
        for _ in range(9):
            api.order(NOT_SERVED, when=lambda call, other=other: f"/resource.k8s.io/{other}/" in call.path)


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_claims_are_read_in_the_version_that_is_served(api: FakeApi, client: Client, version: str) -> None:
    serve(api, version, "one", "two")
    reader = ClaimReader(client)
    for _ in range(2):
        found = await reader.of(HOLDERS)
        assert sorted(found) == KEYS
        assert all(isinstance(each, Claim) and each.gpu(admin=False) for each in found.values())
    tries = ["v1", "v1beta2", "v1beta1"].index(version)
    assert len(api.calls) == tries + 4  # once a version that is not served, then once a claim


async def test_a_claim_that_is_not_there_is_not_an_api_that_is_not_there(api: FakeApi, client: Client) -> None:
    serve(api, "v1", "one")
    api.order(
        refuse(404, "NotFound", 'resourceclaims "two" not found', details={"name": "two"}),
        when=lambda call: call.path.endswith("/two"),
    )
    found = await ClaimReader(client).of(HOLDERS)
    assert isinstance(found["jobs", "one"], Claim) and found["jobs", "two"] is None


async def test_a_claim_that_may_not_be_read(api: FakeApi, client: Client) -> None:
    serve(api, "v1", "one")
    api.order(refuse(403, "Forbidden"), when=lambda call: call.path.endswith("/two"))
    found = await ClaimReader(client).of(HOLDERS)
    assert isinstance(found["jobs", "two"], errors.Forbidden)


async def test_without_the_api_no_claim_has_a_gpu(api: FakeApi, client: Client) -> None:
    serve(api, "none")
    for _ in range(9):
        api.order(NOT_SERVED)
    found = await ClaimReader(client).of(HOLDERS)
    assert gpupods.to_upgrade(HOLDERS, found) == gpupods.to_unload(HOLDERS, found) == []


async def test_pods_without_claims_cost_no_request(api: FakeApi, client: Client) -> None:
    assert await ClaimReader(client).of([pod(container({"nvidia.com/gpu": "1"}))]) == {}
    assert not api.calls
