"""From wanted and live objects to writes, and the writes against a server."""

import copy
from typing import Any

import pytest
from cluster.conftest import Sleeps
from cluster.fake_api import FakeApi, refuse, reply, reset
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.api import names
from groundplane.cluster import apply, errors, kinds
from groundplane.cluster.apply import Key, Plan, carry_out, diff_set, digest, propagation, stamp
from groundplane.cluster.client import Client
from groundplane.cluster.kinds import Kind

NS = "gpu-operator"


def manifest(kind: Kind, name: str = "x", **more: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name}
    if kind.namespaced:
        meta["namespace"] = NS
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **more}


def live(obj: dict[str, Any], **meta: Any) -> dict[str, Any]:
    found = copy.deepcopy(obj)
    found["metadata"] |= {"uid": f"uid-{obj['metadata']['name']}", "resourceVersion": "7", **meta}
    return found


# --- digest -----------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
    max_leaves=8,
)


def turned(value: Any) -> Any:
    """The same document with its maps the other way round."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(item) for item in value] if isinstance(value, list) else value


@given(JSON)
@settings(deadline=None)
def test_the_digest_ignores_the_order_of_maps_status_and_itself(data: Any) -> None:
    obj = manifest(kinds.CONFIG_MAP, data=data, spec={"b": 1, "a": data})
    value = digest(obj)
    assert value.isdecimal()
    assert int(value) < 2**32
    assert digest(turned(obj)) == value
    assert digest(stamp(obj)) == value
    assert digest(stamp(stamp(obj))) == value
    assert digest({**obj, "status": {"ready": True}}) == value


@given(JSON, JSON)
@settings(deadline=None)
def test_the_digest_changes_with_the_content(one: Any, two: Any) -> None:
    same = repr(turned(turned(one))) == repr(two) or one == two
    assert same or digest(manifest(kinds.CONFIG_MAP, data=one)) != digest(manifest(kinds.CONFIG_MAP, data=two))


def test_the_order_of_lists_counts_and_the_digest_is_stable_over_releases() -> None:
    assert digest({"a": [1, 2]}) != digest({"a": [2, 1]})
    assert digest(manifest(kinds.CONFIG_MAP, data={"a": "b"})) == "599022707"


def test_stamping_copies() -> None:
    obj = manifest(kinds.CONFIG_MAP)
    obj["metadata"]["annotations"] = {"a": "b"}
    before = copy.deepcopy(obj)
    stamped = stamp(obj)
    assert obj == before
    assert stamped["metadata"]["annotations"] == {"a": "b", names.LAST_APPLIED_HASH: digest(obj)}


# --- plan -------------------------------------------------------------------------------------------------------------


def test_every_object_finds_its_place() -> None:
    wanted = {name: manifest(kinds.CONFIG_MAP, name, data={"a": name}) for name in ("new", "same", "drifted", "other")}
    wanted["dying"] = manifest(kinds.CONFIG_MAP, "dying")
    same = live(stamp(wanted["same"]))
    drifted = live(stamp(wanted["drifted"]))
    drifted["data"]["a"] = "edited"
    other = live(stamp(manifest(kinds.CONFIG_MAP, "other", data={"a": "other", "old": "key"})))
    dying = live(stamp(wanted["dying"]), deletionTimestamp="2026-01-01T00:00:00Z")
    gone = live(manifest(kinds.CONFIG_MAP, "gone"))
    leaving = live(manifest(kinds.CONFIG_MAP, "leaving"), deletionTimestamp="2026-01-01T00:00:00Z")
    plan = diff_set(wanted.values(), [same, drifted, other, dying, gone, leaving])
    assert plan.create == [stamp(wanted["new"])]
    assert [(u.desired, u.live, u.paths) for u in plan.update] == [
        (stamp(wanted["drifted"]), drifted, ["data.a"]),
        (stamp(wanted["other"]), other, []),
    ]
    assert (plan.delete, plan.unchanged, plan.waiting) == ([gone], [same], [stamp(wanted["dying"])])
    assert not plan.empty
    assert diff_set([wanted["same"]], [same]).empty


def test_an_object_wanted_twice_is_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"ConfigMap gpu-operator/x is wanted twice"):
        diff_set([manifest(kinds.CONFIG_MAP), manifest(kinds.CONFIG_MAP, data={})], [])


@pytest.mark.parametrize(
    ("obj", "error"),
    [
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "n"}}, "has no metadata.name"),
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n"}}, "has no metadata.namespace"),
    ],
)
def test_keys_must_be_whole(obj: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Key.of(obj)


# --- carrying out -----------------------------------------------------------------------------------------------------

SET = [
    manifest(kinds.SERVICE_MONITOR, "m"),
    manifest(kinds.DAEMON_SET, "d"),
    manifest(kinds.SERVICE, "s"),
    manifest(kinds.ROLE_BINDING, "b"),
    manifest(kinds.ROLE, "r"),
    manifest(kinds.SERVICE_ACCOUNT, "a"),
    manifest(kinds.CONFIG_MAP, "c"),
    manifest(kinds.RUNTIME_CLASS, "rc"),
    manifest(kinds.CLUSTER_ROLE_BINDING, "cb"),
]


async def test_what_a_pod_needs_is_written_before_what_starts_pods(api: FakeApi, client: Client) -> None:
    outcome = await carry_out(client, diff_set(SET, []), limit=3)
    assert outcome.errors == []
    assert set(outcome.written) == {Key.of(o) for o in SET}
    order = {kind: number for number, tier in enumerate(apply.TIERS) for kind in tier}
    tiers = [order.get(kinds.of(call.json), len(apply.TIERS)) for call in api.calls]
    assert tiers == sorted(tiers)
    assert {c.query["fieldManager"] for c in api.calls} == {names.FIELD_MANAGER}
    assert {c.query["force"] for c in api.calls} == {"true"}
    assert all(c.json["metadata"]["annotations"][names.LAST_APPLIED_HASH] for c in api.calls)


async def test_writing_twice_changes_nothing(api: FakeApi, client: Client) -> None:
    await carry_out(client, diff_set(SET, []))
    stored = [obj for objects in api.objects.values() for obj in objects.values()]
    assert diff_set(SET, stored).empty


async def test_deletion_goes_the_other_way_and_only_for_what_was_seen(api: FakeApi, client: Client) -> None:
    await carry_out(client, diff_set(SET, []))
    stored = [copy.deepcopy(obj) for objects in api.objects.values() for obj in objects.values()]
    next(o for o in stored if o["kind"] == "Role")["metadata"]["uid"] = "another"
    api.remove("/api/v1/namespaces/gpu-operator/configmaps", "c")
    api.calls.clear()
    outcome = await carry_out(client, diff_set([], stored))
    deleted = [call.path.split("/")[-2] for call in api.calls]
    assert deleted[:3] == ["servicemonitors", "daemonsets", "services"]
    assert set(deleted[3:5]) == {"rolebindings", "clusterrolebindings"}
    assert len(outcome.deleted) == len(SET) - 1
    (failure,) = outcome.errors
    assert (failure.verb, str(failure.key)) == ("delete", "Role gpu-operator/r")
    assert isinstance(failure.error, errors.Conflict)


async def test_one_failure_does_not_hold_up_the_rest(api: FakeApi, client: Client) -> None:
    api.order(refuse(403, "Forbidden", "rbac"), when=lambda c: "/rolebindings/" in c.path)
    api.order(*[reset()] * 5, when=lambda c: "daemonsets" in c.path)
    outcome = await carry_out(client, diff_set(SET, []))
    assert len(outcome.written) == len(SET) - 2
    assert {f.key.kind for f in outcome.errors} == {kinds.ROLE_BINDING, kinds.DAEMON_SET}
    assert {type(f.error) for f in outcome.errors} == {errors.Forbidden, errors.ConnectionLost}
    assert "rbac" in str(outcome.errors[0])


# --- a role that access control does not know yet ---------------------------------------------------------------------


def unknown_role(kind: str = "rolebindings") -> Any:
    """What kube-apiserver answers to a binding whose role has not reached its cache: it means the role of that name."""
    return refuse(
        404, "NotFound", f'{kind}.rbac.authorization.k8s.io "x" not found', details={"name": "x", "kind": kind}
    )


@pytest.mark.parametrize("kind", [kinds.ROLE_BINDING, kinds.CLUSTER_ROLE_BINDING])
async def test_a_binding_waits_for_its_role_to_be_known(
    api: FakeApi, client: Client, sleeps: Sleeps, kind: Kind
) -> None:
    api.order(*[unknown_role()] * 3)
    outcome = await carry_out(client, Plan(create=[stamp(manifest(kind))]), sleep=sleeps)
    assert outcome.errors == []
    assert list(sleeps) == [apply.ROLE_POLL_S] * 3


async def test_a_role_that_is_not_there_is_an_error_after_a_while(api: FakeApi, client: Client, sleeps: Sleeps) -> None:
    api.order(*[unknown_role()] * 100)
    outcome = await carry_out(client, Plan(create=[stamp(manifest(kinds.ROLE_BINDING))]), sleep=sleeps)
    assert isinstance(outcome.errors[0].error, errors.NotFound)
    assert sum(sleeps) == pytest.approx(apply.ROLE_POLLS * apply.ROLE_POLL_S)


@pytest.mark.parametrize(("kind", "missing"), [(kinds.ROLE_BINDING, "namespaces"), (kinds.CONFIG_MAP, "rolebindings")])
async def test_other_things_that_are_not_there_are_not_waited_for(
    api: FakeApi, client: Client, sleeps: Sleeps, kind: Kind, missing: str
) -> None:
    api.order(unknown_role(missing))
    outcome = await carry_out(client, Plan(create=[stamp(manifest(kind))]), sleep=sleeps)
    assert isinstance(outcome.errors[0].error, errors.NotFound)
    assert list(sleeps) == []


# --- what cannot be changed in place ----------------------------------------------------------------------------------

IMMUTABLE: list[tuple[dict[str, Any], str, str]] = [
    (manifest(kinds.DAEMON_SET), "spec.selector", "field is immutable"),
    (manifest(kinds.SERVICE), "spec.clusterIPs[0]", "may not change once set"),
    (manifest(kinds.ROLE_BINDING), "roleRef", "cannot change roleRef"),
    (manifest(kinds.CLUSTER_ROLE_BINDING), "roleRef", "cannot change roleRef"),
    (manifest(kinds.RUNTIME_CLASS), "handler", "field is immutable"),
    (manifest(kinds.CONFIG_MAP), "data", "field is immutable when `immutable` is set"),
]


def invalid(field: str, message: str, *, causes: bool = True) -> Any:
    details = {"causes": [{"field": field, "message": message, "reason": "FieldValueInvalid"}]} if causes else {}
    return refuse(422, "Invalid", f"x is invalid: {field}: Invalid value: {message}", details=details)


@pytest.mark.parametrize("causes", [True, False])
@pytest.mark.parametrize(("obj", "field", "message"), IMMUTABLE)
async def test_immutable_fields_mean_a_new_object(
    api: FakeApi, client: Client, sleeps: Sleeps, obj: dict[str, Any], field: str, message: str, causes: bool
) -> None:
    await carry_out(client, diff_set([obj], []))
    (old,) = [o for objects in api.objects.values() for o in objects.values()]
    api.calls.clear()
    api.order(invalid(field, message, causes=causes), when=lambda c: c.method == "PATCH")
    outcome = await carry_out(client, diff_set([{**obj, "extra": {"a": "b"}}], [old]), sleep=sleeps)
    assert outcome.errors == []
    assert outcome.written == outcome.recreated == [Key.of(obj)]
    assert [c.method for c in api.calls] == ["PATCH", "POST", "GET", "DELETE", "GET", "PATCH"]
    assert api.calls[1].query == {"dryRun": "All"}
    assert api.calls[3].json["preconditions"] == {"uid": old["metadata"]["uid"]}
    (new,) = [o for objects in api.objects.values() for o in objects.values()]
    assert new["metadata"]["uid"] != old["metadata"]["uid"]


async def test_an_object_that_would_not_be_taken_is_not_deleted(api: FakeApi, client: Client) -> None:
    obj = manifest(kinds.SERVICE)
    await carry_out(client, diff_set([obj], []))
    api.order(invalid("spec.clusterIP", "field is immutable"), when=lambda c: c.method == "PATCH")
    api.order(refuse(422, "Invalid", "spec.ports: Required value"), when=lambda c: c.method == "POST")
    outcome = await carry_out(client, Plan(create=[stamp(obj)]))
    assert "spec.ports: Required value" in str(outcome.errors[0])
    assert api.count()["DELETE"] == 0


async def test_an_object_that_does_not_go_is_an_error_after_a_while(
    api: FakeApi, client: Client, sleeps: Sleeps
) -> None:
    obj = manifest(kinds.SERVICE)
    await carry_out(client, diff_set([obj], []))
    api.order(invalid("spec.clusterIP", "field is immutable"), when=lambda c: c.method == "PATCH")
    api.order(reply(200, {}), when=lambda c: c.method == "DELETE")
    outcome = await carry_out(client, Plan(create=[stamp(obj)]), sleep=sleeps)
    assert isinstance(outcome.errors[0].error, errors.Invalid)
    assert sum(sleeps) == pytest.approx(apply.GONE_POLLS * apply.GONE_POLL_S)


@pytest.mark.parametrize(
    ("kind", "field", "message"),
    [
        (kinds.DAEMON_SET, "spec.template.spec.containers[0].image", "Required value"),
        (kinds.DAEMON_SET, "spec.selector", "does not match template labels"),
        (kinds.NAMESPACE, "spec", "field is immutable"),
    ],
)
async def test_other_refusals_are_errors(api: FakeApi, client: Client, kind: Kind, field: str, message: str) -> None:
    api.order(invalid(field, message))
    outcome = await carry_out(client, Plan(create=[stamp(manifest(kind))]))
    assert isinstance(outcome.errors[0].error, errors.Invalid)
    assert len(api.calls) == 1


def workload(kind: Kind, selector: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    return manifest(kind, spec={"selector": selector, "template": {"metadata": {"labels": labels}}})


@pytest.mark.parametrize(
    ("kind", "selector", "live_labels", "expected"),
    [
        (kinds.DAEMON_SET, {"matchLabels": {"app": "a"}}, {"app": "a", "x": "y"}, "Orphan"),
        (kinds.DAEMON_SET, {"matchLabels": {"app": "b"}}, {"app": "a"}, "Background"),
        (
            kinds.DAEMON_SET,
            {"matchExpressions": [{"key": "app"}], "matchLabels": {"app": "a"}},
            {"app": "a"},
            "Background",
        ),
        (kinds.JOB, {"matchLabels": {"app": "a"}}, {"app": "a"}, "Background"),
        (kinds.SERVICE, {}, {}, "Background"),
    ],
)
def test_running_pods_survive_where_the_new_object_adopts_them(
    kind: Kind, selector: dict[str, Any], live_labels: dict[str, str], expected: str
) -> None:
    assert propagation(workload(kind, selector, {}), workload(kind, {}, live_labels)) == expected
