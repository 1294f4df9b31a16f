"""Bad input of every kind, against the operator in a lab: a clear condition and event, nothing else disturbed."""

import asyncio
import copy
from typing import Any

import pytest
from attack_harness import AGENT, NS, POLICY, Attack, Every, attack, hollow_names, owner_of, policy_document

from groundplane.api import names
from groundplane.api.crd import cluster_policy_crd
from groundplane.cluster.lease import LeaseLost
from groundplane.lab import resources

# --- the policy -------------------------------------------------------------------------------------------------------

BAD: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("NRI without CDI", {"cdi": {"enabled": False, "nriPluginEnabled": True}}, ("cdi.enabled", "cdi.nriPluginEnabled")),
    (
        "NRI without the toolkit",
        {"cdi": {"enabled": True, "nriPluginEnabled": True}, "toolkit": {"enabled": False}},
        ("cdi.nriPluginEnabled", "toolkit.enabled"),
    ),
    ("GDS, precompiled", {"driver": {"usePrecompiled": True}, "gds": {"enabled": True}}, ("state-driver", "gds")),
    (
        "GDRCopy, precompiled",
        {"driver": {"usePrecompiled": True}, "gdrcopy": {"enabled": True}},
        ("state-driver", "gdrcopy"),
    ),
    ("missing ConfigMap", {"driver": {"repoConfig": {"configMapName": "repos"}}}, ("state-driver", "repos")),
    ("missing Secret", {"driver": {"secretEnv": "hidden"}}, ("state-driver", "hidden")),
    (
        "missing image",
        {"toolkit": {"repository": None, "image": None, "version": None}},
        ("state-container-toolkit", "CONTAINER_TOOLKIT_IMAGE"),
    ),
    ("half an image", {"dcgmExporter": {"version": None}}, ("state-dcgm-exporter", "nvcr.io")),
]


@pytest.mark.parametrize(("change", "said"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
async def test_impossible_values(change: dict[str, Any], said: tuple[str, ...]) -> None:
    """Contract 1.5 and 1.6: accepted by the API server, refused by the operator with both fields named."""
    async with attack(2) as attacked:
        attacked.policy(**change)
        attacked.start()
        await attacked.failed(*said)
        assert attacked.labelled("hollow-00000", "hollow-00001")
        await attacked.quiet()
        assert await attacked.pace() == [], "a mistake of the policy is not tried again and again"
        good = policy_document()["spec"]
        attacked.edit(lambda spec: (spec.clear(), spec.update(good)))
        await attacked.ready()
        assert attacked.condition("Ready")["reason"] == "Reconciled"


async def test_a_bad_edit_of_a_policy_in_force_breaks_nothing() -> None:
    """The peer stops validating after the first good pass; here a late mistake is told and what runs goes on."""
    async with attack(2) as attacked:
        attacked.policy()
        attacked.start()
        await attacked.ready()
        before = attacked.daemon_sets()
        attacked.forget()
        attacked.edit(lambda spec: spec["cdi"].update(enabled=False, nriPluginEnabled=True))
        await attacked.failed("cdi.enabled", "cdi.nriPluginEnabled")
        assert attacked.daemon_sets() == before
        await attacked.quiet()
        assert attacked.writes() == [("patch", "clusterpolicies", POLICY)]
        attacked.node("late")
        await attacked.until(lambda: attacked.labelled("late"), "nodes are labelled under a broken policy")


async def test_what_the_schema_cannot_hold() -> None:
    """Written past validation, as by an older CRD: wrong types and values are told by their path; nothing crashes."""
    wrong: list[tuple[str, Any, str]] = [
        ("driver", {"enabled": "yes"}, "spec.driver.enabled"),
        ("toolkit", ["a", "list"], "spec.toolkit"),
        ("mig", {"strategy": "double"}, "mig.strategy"),
        ("devicePlugin", {"env": [{"name": 7}]}, "spec.devicePlugin.env"),
        ("dcgmExporter", {"resources": {"limits": {"cpu": "lots"}}}, "dcgmExporter.resources"),
        ("daemonsets", {"labels": {"a": 1}}, "spec.daemonsets.labels"),
    ]
    async with attack(1) as attacked:
        open_up(attacked)
        attacked.policy()
        attacked.start()
        await attacked.ready()
        before, good = attacked.daemon_sets(), policy_document()["spec"]
        for section, values, path in wrong:
            attacked.edit(lambda spec, section=section, values=values: spec.update({section: values}))
            await attacked.failed(path)
            assert attacked.daemon_sets() == before
            attacked.edit(lambda spec: (spec.clear(), spec.update(good)))
            await attacked.until(lambda: attacked.status()["state"] == "ready")
        attacked.change(attacked.policies, POLICY, lambda obj: obj.pop("spec"))
        await attacked.quiet()
        attacked.change(attacked.policies, POLICY, lambda obj: obj.update(spec="nonsense"))
        await attacked.failed("spec")


def open_up(attacked: Attack) -> None:
    """Take the schema out of the CRD."""

    def bare(obj: dict[str, Any]) -> None:
        any_object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        obj["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": any_object}

    attacked.change(resources.CUSTOM_RESOURCE_DEFINITIONS, "clusterpolicies.nvidia.com", bare)


async def test_unknown_fields_are_told_once_with_what_was_meant() -> None:
    async with attack(1) as attacked:
        open_up(attacked)
        document = policy_document()
        document["spec"]["driver"]["repositry"] = "x"
        attacked.policy(document)
        attacked.start()
        await attacked.ready()
        message = attacked.condition("Ready")["message"]
        assert "spec.driver.repositry" in message and "repository" in message
        await attacked.until(lambda: attacked.events("UnknownField"))
        attacked.edit(lambda spec: spec["gfd"].update(enabled=False))
        await attacked.until(lambda: "gpu-feature-discovery" not in attacked.daemon_sets())
        await attacked.ready()
        assert [event["count"] for event in attacked.events("UnknownField")] == [1]


async def test_two_policies_at_once() -> None:
    """The older one rules; the other says so, even when it is broken, and takes over when the first goes."""
    async with attack(1) as attacked:
        attacked.policy()
        attacked.start()
        await attacked.ready()
        await attacked.lab.clock.sleep(2.0)
        attacked.policy(name="a-second", cdi={"enabled": False, "nriPluginEnabled": True})
        await attacked.until(lambda: attacked.status("a-second").get("state") == "ignored")
        assert POLICY in attacked.condition("Ready", "a-second")["message"]
        await attacked.until(lambda: attacked.events("Ignored"))
        assert attacked.status()["state"] == "ready"
        await attacked.quiet()
        assert await attacked.pace() == []
        attacked.api.delete(attacked.policies, POLICY)
        await attacked.until(lambda: attacked.condition("Error", "a-second").get("reason") == "ReconcileFailed")
        attacked.edit(lambda spec: spec["cdi"].update(enabled=True), "a-second")
        await attacked.ready("a-second")


async def test_a_giant_policy() -> None:
    """Five hundred environment variables and tolerations in one section are no reason to be slow or to stop."""
    env = [{"name": f"VARIABLE_{number:04d}", "value": "x" * 200} for number in range(500)]
    tolerations = [{"key": f"key-{number}", "operator": "Exists"} for number in range(500)]
    async with attack(1) as attacked:
        attacked.policy(devicePlugin={"env": env}, daemonsets={"tolerations": tolerations})
        attacked.start()
        await attacked.ready()
        found = attacked.found(resources.DAEMON_SETS, "nvidia-device-plugin-daemonset")
        assert found is not None
        pod = found["spec"]["template"]["spec"]
        assert {each["name"] for each in env} <= {each["name"] for each in pod["containers"][0]["env"]}
        assert len(pod["tolerations"]) >= 500
        await attacked.quiet()
        assert await attacked.pace() == []


# --- nodes ------------------------------------------------------------------------------------------------------------


def looks(item: Any) -> bool:
    """Whether a request looks for the cause of something that stays not ready, which is done ever more rarely."""
    return item.verb == "list" and item.resource in ("pods", "events")


async def test_odd_nodes() -> None:
    """No labels, no annotations, no status; names and labels at the limit; nonsense as values."""
    longest = ".".join(["n" * 63] * 4)[:253]
    async with attack(1) as attacked:
        attacked.api.create(resources.NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bare"}})
        attacked.node(longest, labels={f"{'p' * 63}.example.com/{'k' * 63}": "v" * 63})
        attacked.node("empty", labels={names.WORKLOAD_CONFIG: "", names.DEPLOY_DRIVER: ""})
        attacked.node("odd", labels={names.WORKLOAD_CONFIG: "nonsense", names.GPU_PRESENT: "maybe"})
        attacked.node("liar", gpu=False, labels={names.GPU_PRESENT: "true"})
        attacked.policy()
        attacked.start()
        await attacked.until(lambda: attacked.labelled("hollow-00000", longest, "empty", "odd"))
        await attacked.quiet()
        assert attacked.labels("bare") == {}
        assert attacked.labels(longest)[f"{'p' * 63}.example.com/{'k' * 63}"] == "v" * 63
        assert attacked.labels("empty")[names.DEPLOY_DRIVER] == "true"
        assert attacked.labels("liar")[names.GPU_PRESENT] == "false"
        assert [item for item in await attacked.pace() if not looks(item)] == []


async def test_a_node_deleted_in_mid_patch() -> None:
    async with attack(4) as attacked:
        attacked.trap("patch", "nodes", "hollow-00002", lambda: attacked.api.delete(resources.NODES, "hollow-00002"))
        attacked.policy()
        attacked.start()
        await attacked.ready()
        assert attacked.labelled("hollow-00000", "hollow-00001", "hollow-00003")
        assert attacked.writes("nodes").count(("patch", "nodes", "hollow-00002")) == 1
        attacked.node("hollow-00002")
        await attacked.until(lambda: attacked.labelled("hollow-00002"), "it came back and is a node like any other")


@pytest.mark.parametrize("answer", [409, 422, 429, 500, 403, "reset", "lost", "hang"])
async def test_one_node_that_cannot_be_written(answer: int | str) -> None:
    """The others are labelled, the stack comes up, and the bad one is tried at a bounded pace until it works."""
    async with attack(4) as attacked:
        rule = attacked.fault("patch", "nodes", answer, name="hollow-00001")
        attacked.policy()
        attacked.start()
        await attacked.until(lambda: attacked.labelled("hollow-00000", "hollow-00002", "hollow-00003"))
        if answer == "hang":
            return
        await attacked.until(lambda: attacked.status().get("state") == "ready")
        await attacked.lab.clock.sleep(20.0)
        pace = await attacked.pace(30.0)
        assert {item.resource for item in pace} <= {"nodes"}
        assert len(pace) <= 3 * (30 / 3 + 1), "three tries each three seconds at most"
        attacked.lab.faults.remove(rule)
        await attacked.until(lambda: attacked.labelled("hollow-00001"))


async def test_a_flood_of_irrelevant_labels() -> None:
    """Four thousand updates of nodes that change nothing for us: not one request of the operator."""
    async with attack(10) as attacked:
        attacked.policy()
        attacked.start()
        await attacked.ready()
        attacked.forget()
        nodes = hollow_names(10)
        for number in range(4_000):
            patch = {"metadata": {"labels": {"example.com/noise": str(number)}}}
            attacked.api.patch(resources.NODES, nodes[number % 10], patch, type="merge")
            if number % 100 == 0:
                await asyncio.sleep(0)
        attacked.change(resources.NODES, nodes[0], lambda obj: obj["metadata"]["labels"].pop(names.DEPLOY_DCGM))
        await attacked.until(
            lambda: attacked.labels(nodes[0]).get(names.DEPLOY_DCGM) == "true", "it is behind the flood"
        )
        await attacked.quiet()
        assert attacked.requests() and set(attacked.writes()) == {("patch", "nodes", nodes[0])}


# --- the API server ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [409, 410, 429, 500, 503, "reset", "lost"])
async def test_a_server_in_trouble(answer: int | str) -> None:
    """Every third request fails in some way: the end is the same as without trouble, and no event is about it twice."""
    async with attack(3) as attacked:
        rule = Every("*", "*", times=60, answer=answer, user_agent=AGENT, nth=3)
        attacked.lab.faults.add(rule)
        attacked.policy()
        attacked.start()
        await attacked.until(lambda: attacked.status().get("state") == "ready")
        attacked.lab.faults.remove(rule)
        await attacked.ready()
        assert attacked.labelled(*hollow_names(3))
        assert await attacked.pace() == []
        await attacked.kill()
        attacked.forget()
        attacked.start()
        await attacked.until(lambda: attacked.operator and attacked.operator.idle)
        await attacked.quiet()
        assert attacked.writes() == [], "a fresh operator finds nothing to put right"


async def test_a_server_that_is_away_for_a_while() -> None:
    async with attack(2) as attacked:
        attacked.policy()
        attacked.start()
        await attacked.ready()
        before = attacked.daemon_sets()
        async with attacked.outage():
            attacked.node("late")
            attacked.api.delete(resources.NODES, "hollow-00001")
            attacked.api.delete(resources.DAEMON_SETS, "nvidia-dcgm-exporter", NS)
            attacked.edit(lambda spec: spec["gfd"].update(enabled=False))
            await attacked.lab.clock.sleep(40.0)
        await attacked.until(lambda: attacked.labelled("late"))
        await attacked.until(lambda: attacked.daemon_sets() == before - {"gpu-feature-discovery"})
        attacked.api.delete(resources.NODES, "late")
        await attacked.ready()


async def test_a_server_that_is_away_at_the_start() -> None:
    async with attack(2) as attacked:
        attacked.policy()
        async with attacked.outage():
            attacked.start()
            await attacked.lab.clock.sleep(60.0)
            attacked.check()
        await attacked.ready()


@pytest.mark.parametrize("verb", ["watch", "list", "patch"])
async def test_requests_that_are_never_answered(verb: str) -> None:
    """A proxy that swallowed a request is given up after the request timeout, for watches too."""
    async with attack(2) as attacked:
        attacked.fault(verb, "*", "hang", times=6)
        attacked.policy()
        attacked.start(request_timeout_s=0.3)
        await attacked.ready()
        assert attacked.labelled(*hollow_names(2))


async def test_events_that_are_refused_hold_up_nothing() -> None:
    async with attack(1) as attacked:
        attacked.fault("create", "events", 403)
        attacked.policy()
        attacked.start()
        await attacked.ready()
        assert attacked.events("Reconciled") == []


async def test_a_status_that_cannot_be_written() -> None:
    async with attack(1) as attacked:
        rule = attacked.fault("patch", "clusterpolicies", 403)
        attacked.policy()
        attacked.start()
        await attacked.until(lambda: "nvidia-dcgm-exporter" in attacked.daemon_sets(), "the work is done all the same")
        pace = await attacked.paced(["clusterpolicies"])
        assert 0 < len(pace) <= 30 / 3 + 1
        attacked.lab.faults.remove(rule)
        await attacked.ready()


# --- what the cluster lacks -------------------------------------------------------------------------------------------


async def test_the_crd_comes_later_and_goes_in_between() -> None:
    """Without the CRD the operator waits at a bounded pace; no node is touched."""
    async with attack(1) as attacked:
        attacked.api.delete(resources.CUSTOM_RESOURCE_DEFINITIONS, "clusterpolicies.nvidia.com")
        attacked.start()
        assert len(await attacked.paced(["clusterpolicies"], 60.0)) <= 15
        assert names.GPU_PRESENT not in attacked.labels("hollow-00000")
        attacked.api.create(resources.CUSTOM_RESOURCE_DEFINITIONS, cluster_policy_crd())
        attacked.policy()
        await attacked.ready()
        attacked.api.delete(resources.CUSTOM_RESOURCE_DEFINITIONS, "clusterpolicies.nvidia.com")
        await attacked.until(lambda: attacked.daemon_sets() == set(), "garbage collection follows the policy")
        await attacked.lab.clock.sleep(60.0)
        attacked.api.create(resources.CUSTOM_RESOURCE_DEFINITIONS, cluster_policy_crd())
        attacked.policy()
        await attacked.ready()


async def test_without_its_namespace() -> None:
    async with attack(1) as attacked:
        attacked.api.delete(resources.NAMESPACES, NS)
        await attacked.until(lambda: attacked.found(resources.NAMESPACES, NS) is None)
        attacked.policy()
        attacked.start()
        await attacked.failed(f'namespaces "{NS}" not found')
        assert attacked.labelled("hollow-00000")
        await attacked.lab.clock.sleep(20.0)
        assert len(await attacked.pace()) <= 12 * (30 / 3 + 1), "one state's writes each three seconds"
        attacked.api.create(resources.NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NS}})
        await attacked.ready()


async def test_in_a_namespace_that_is_terminating() -> None:
    """A pod with a finalizer keeps the namespace in Terminating: creating in it is refused, and that is told."""
    async with attack(1) as attacked:
        stuck = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "stuck", "namespace": NS, "finalizers": ["example.com/never"]},
        }
        attacked.policy()
        attacked.start()
        await attacked.ready()
        attacked.api.create(resources.CONFIG_MAPS, stuck)
        attacked.api.delete(resources.NAMESPACES, NS)
        await attacked.failed("being terminated")
        assert attacked.labelled("hollow-00000")
        attacked.change(resources.CONFIG_MAPS, "stuck", lambda obj: obj["metadata"].pop("finalizers"), NS)
        await attacked.until(lambda: attacked.found(resources.NAMESPACES, NS) is None)
        attacked.api.create(resources.NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NS}})
        await attacked.ready()


# --- objects ----------------------------------------------------------------------------------------------------------

PLUGIN = "nvidia-device-plugin-daemonset"


async def test_one_object_is_refused_by_admission() -> None:
    """422 and 403 on one object only: its state is named, earlier states stand, and it heals by itself."""
    async with attack(1) as attacked:
        rule = attacked.fault("patch", "daemonsets", 422, name=PLUGIN)
        attacked.policy()
        attacked.start()
        await attacked.failed("state-device-plugin", PLUGIN)
        assert "nvidia-driver-daemonset" in attacked.daemon_sets()
        await attacked.lab.clock.sleep(20.0)
        pace = await attacked.pace()
        assert {item.name for item in pace} == {PLUGIN}
        attacked.lab.faults.remove(rule)
        attacked.fault("patch", "daemonsets", 403, name="nvidia-dcgm-exporter", times=4)
        await attacked.failed("state-dcgm-exporter", "nvidia-dcgm-exporter")
        await attacked.ready()


async def test_an_object_of_the_same_name_that_nobody_owns_is_adopted() -> None:
    """As NVIDIA's operator does: what an earlier installation left behind becomes ours, whatever its selector."""
    async with attack(1) as attacked:
        attacked.api.create(resources.DAEMON_SETS, foreign_daemon_set({"app": "somebody-elses"}))
        attacked.policy()
        attacked.start()
        await attacked.ready()
        found = attacked.found(resources.DAEMON_SETS, PLUGIN)
        assert found is not None and found["spec"]["selector"]["matchLabels"] == {"app": PLUGIN}
        assert found["metadata"]["labels"][names.STATE_LABEL] == "state-device-plugin"


async def test_an_object_that_another_controller_owns_is_not_stolen() -> None:
    async with attack(1) as attacked:
        other = attacked.api.create(
            resources.CONFIG_MAPS,
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner", "namespace": NS}},
        )
        foreign = foreign_daemon_set({"app": PLUGIN})
        foreign["metadata"]["ownerReferences"] = owner_of(other["metadata"]["uid"])
        attacked.api.create(resources.DAEMON_SETS, foreign)
        attacked.policy()
        attacked.start()
        await attacked.failed("state-device-plugin", PLUGIN, "Controller set to true")
        found = attacked.found(resources.DAEMON_SETS, PLUGIN)
        assert (
            found is not None and found["spec"]["template"]["spec"]["containers"][0]["image"] == "example.com/other:1"
        )
        await attacked.lab.clock.sleep(20.0)
        assert len(await attacked.pace()) <= 30 / 3 + 1
        attacked.api.delete(resources.DAEMON_SETS, PLUGIN, NS)
        await attacked.ready()


def foreign_daemon_set(labels: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": PLUGIN, "namespace": NS},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "other", "image": "example.com/other:1"}]},
            },
        },
    }


async def test_a_selector_that_somebody_changed() -> None:
    """The DaemonSet was made anew with our label but another selector, which nobody can change in place."""
    async with attack(1) as attacked:
        attacked.policy()
        attacked.start()
        await attacked.ready()
        ours = copy.deepcopy(attacked.found(resources.DAEMON_SETS, PLUGIN))
        assert ours is not None
        changed = {
            **ours,
            "metadata": {key: ours["metadata"][key] for key in ("name", "namespace", "labels", "annotations")},
        }
        changed["spec"]["selector"] = {"matchLabels": {"app": "evil"}}
        changed["spec"]["template"]["metadata"]["labels"]["app"] = "evil"
        changed.pop("status")
        attacked.api.delete(resources.DAEMON_SETS, PLUGIN, NS, propagation="Orphan")
        await attacked.until(
            lambda: (
                (attacked.found(resources.DAEMON_SETS, PLUGIN) or ours)["metadata"]["uid"] != ours["metadata"]["uid"]
            )
        )
        await attacked.stop()
        attacked.api.delete(resources.DAEMON_SETS, PLUGIN, NS)
        await attacked.until(lambda: attacked.found(resources.DAEMON_SETS, PLUGIN) is None)
        attacked.api.create(resources.DAEMON_SETS, changed)
        attacked.start()
        await attacked.until(
            lambda: (
                (attacked.found(resources.DAEMON_SETS, PLUGIN) or changed)["spec"]["selector"]["matchLabels"]
                == {"app": PLUGIN}
            )
        )
        await attacked.ready()


async def test_an_object_that_cannot_finish_terminating() -> None:
    async with attack(1) as attacked:
        attacked.policy()
        attacked.start()
        await attacked.ready()
        attacked.change(
            resources.DAEMON_SETS, PLUGIN, lambda obj: obj["metadata"].update(finalizers=["example.com/never"]), NS
        )
        attacked.api.delete(resources.DAEMON_SETS, PLUGIN, NS)
        await attacked.until(lambda: "[state-device-plugin]" in attacked.message)
        assert attacked.condition()["reason"] == "OperandNotReady"
        await attacked.quiet()
        others = [item for item in await attacked.pace() if not looks(item)]
        assert others == [], "it is waited for, not fought with"
        attacked.change(resources.DAEMON_SETS, PLUGIN, lambda obj: obj["metadata"].pop("finalizers"), NS)
        await attacked.ready()


# --- the process ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writes", [0, 4, 12, 25, 45, 60])
async def test_killed_at_any_point(writes: int) -> None:
    """While every fifth answer is lost: nothing is lost, nothing is there twice, and another start finds all done."""
    async with attack(3) as attacked:
        attacked.lab.faults.add(Every("*", "*", times=30, answer="lost", user_agent=AGENT, nth=5))
        attacked.policy()
        attacked.start()
        await attacked.until(lambda: len(attacked.writes()) >= writes or attacked.status().get("state") == "ready")
        await attacked.kill()
        attacked.start()
        await attacked.ready()
        assert attacked.labelled(*hollow_names(3))
        await attacked.kill()
        attacked.forget()
        attacked.start()
        await attacked.until(lambda: attacked.operator and attacked.operator.idle)
        await attacked.quiet()
        assert attacked.writes() == []


@pytest.mark.parametrize("renewed", ["2000-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"])
async def test_the_lease_of_a_dead_leader_with_another_clock(renewed: str) -> None:
    """Its time stamps count for nothing: it is watched for its whole duration by our own clock, then taken over."""
    async with attack(1) as attacked:
        spec = {"holderIdentity": "dead", "leaseDurationSeconds": 15, "renewTime": renewed, "leaseTransitions": 4}
        lease = {"metadata": {"name": names.LEASE_NAME, "namespace": NS}, "spec": spec}
        attacked.api.create(resources.LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease})
        attacked.policy()
        attacked.start(leader_elect=True, identity="me", renew_deadline_s=600.0)
        await attacked.ready()
        found = attacked.found(resources.LEASES, names.LEASE_NAME)
        assert found is not None
        assert found["spec"]["holderIdentity"] == "me" and found["spec"]["leaseTransitions"] == 5


async def test_a_stolen_lease_ends_the_operator() -> None:
    """Two leaders would fight; the one that lost stops at once and says who leads."""
    async with attack(1) as attacked:
        attacked.policy()
        attacked.start(leader_elect=True, identity="me", renew_deadline_s=600.0)
        await attacked.ready()
        attacked.change(resources.LEASES, names.LEASE_NAME, lambda obj: obj["spec"].update(holderIdentity="thief"), NS)
        ended = await attacked.outcome()
        assert isinstance(ended, LeaseLost) and "thief" in str(ended)
