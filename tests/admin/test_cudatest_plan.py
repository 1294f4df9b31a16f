"""The CUDA test's plan: which nodes, what their pods ask for, and what stands in the way (A72, A75, A76, A79)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verify_world import World

from groundplane.admin import cudatest_plan as plan
from groundplane.api import names
from groundplane.diagnose.findings import Finding, Outcome

OPTIONS = plan.Options(run="abc123")


def one(world: World, options: plan.Options = OPTIONS) -> plan.NodeTest:
    return plan.planned(world.survey(), options).tests[0]


def said(found: tuple[Finding, ...], number: str) -> set[Outcome]:
    return {each.outcome for each in found if each.id == number}


def test_a_pod_is_bound_by_affinity_tolerates_its_node_and_fits_the_restricted_standard() -> None:
    world = World()
    world.nodes[0]["spec"]["taints"] = [{"key": "team", "value": "a", "effect": "NoSchedule"}]
    pod = plan.manifest(one(world), "vectoradd", OPTIONS, now=1000.0)
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    assert "nodeName" not in spec and "runtimeClassName" not in spec and spec["restartPolicy"] == "Never"
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms[0]["matchFields"][0]["values"] == ["gpu-1"]
    assert spec["tolerations"] == [{"key": "team", "operator": "Exists", "effect": "NoSchedule"}]
    assert container["resources"]["limits"] == {names.GPU_RESOURCE: "1"}
    assert spec["securityContext"]["runAsNonRoot"] and container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["metadata"]["annotations"][plan.EXPIRES] == "1420"


@pytest.mark.parametrize(
    ("allocatable", "labels", "all_gpus", "limits"),
    [
        ({"nvidia.com/gpu": "8"}, {}, False, {"nvidia.com/gpu": "1"}),
        ({"nvidia.com/gpu": "8"}, {}, True, {"nvidia.com/gpu": "8"}),
        ({"nvidia.com/gpu.shared": "16"}, {}, True, {"nvidia.com/gpu.shared": "1"}),
        ({"nvidia.com/gpu": "16"}, {"nvidia.com/gpu.replicas": "2"}, True, {"nvidia.com/gpu": "1"}),
        ({"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "7"}, {}, False, {"nvidia.com/mig-1g.10gb": "1"}),
        (
            {"nvidia.com/gpu": "2", "nvidia.com/mig-1g.10gb": "7"},
            {},
            True,
            {"nvidia.com/gpu": "2", "nvidia.com/mig-1g.10gb": "7"},
        ),
    ],
)
def test_it_asks_for_what_the_node_offers(
    allocatable: dict[str, str], labels: dict[str, str], all_gpus: bool, limits: dict[str, str]
) -> None:
    world = World()
    world.nodes[0]["status"]["allocatable"] = allocatable
    world.labels().update(labels)
    assert one(world, plan.Options(run="r", all_gpus=all_gpus)).limits == limits


def test_a_node_without_gpus_to_offer_is_said_and_not_waited_for() -> None:
    world = World()
    world.nodes[0]["status"]["allocatable"] = {"cpu": "8"}
    made = plan.planned(world.survey(), OPTIONS)
    assert [test.node for test in made.tests] == ["gpu-2"] and said(made.findings, "A72") == {Outcome.FAIL}


def test_a_node_whose_gpus_are_held_is_unknown_and_names_who_holds_them() -> None:
    world = World()
    holder: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train", "namespace": "ml"},
        "spec": {"nodeName": "gpu-1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
        "status": {"phase": "Running"},
    }
    world.pods.append(holder)
    found = plan.planned(world.survey(), OPTIONS).findings
    (held,) = [each for each in found if each.id == "A72"]
    assert held.outcome is Outcome.UNKNOWN and "ml/train" in held.cause


def test_a_node_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no such node: nope"):
        plan.planned(World().survey(), plan.Options(run="r", nodes=("nope",)))


@pytest.mark.parametrize(
    ("image", "outcome"),
    [
        (plan.SAMPLE_IMAGE, Outcome.PASS),
        ("mirror.example:5000/cuda:13.4.0-base", Outcome.PASS),
        ("mirror.example:5000/cuda:14.0.0-base", Outcome.FAIL),
        ("mirror.example/own:1", Outcome.SKIP),
    ],
)
def test_cuda_of_the_image_against_the_drivers(image: str, outcome: Outcome) -> None:
    found = plan.cuda_fits(image, one(World()))
    assert found is not None and found.id == "A79" and found.outcome is outcome


def test_the_image_can_be_a_mirrors() -> None:
    options = plan.Options(run="r", image="mirror/x:1", smi_image="mirror/y:1", pull_secrets=("s",))
    pods = [plan.manifest(one(World()), what, options) for what in ("vectoradd", "nvidia-smi")]
    assert [pod["spec"]["containers"][0]["image"] for pod in pods] == ["mirror/x:1", "mirror/y:1"]
    assert pods[0]["spec"]["imagePullSecrets"] == [{"name": "s"}]


@given(st.integers(0, 3000), st.booleans(), st.booleans())
def test_only_dead_pods_of_other_runs_are_left_over(age: int, same_run: bool, keep: bool) -> None:
    options = plan.Options(run="mine" if same_run else "other", keep=keep)
    pod = plan.manifest(plan.NodeTest("n", {"nvidia.com/gpu": "1"}), "vectoradd", options, now=1000.0)
    gone = list(plan.left_over([pod], "mine", 1000.0 + age))
    assert bool(gone) == (not same_run and not keep and age > options.timeout_s + plan.MARGIN_S)
    pod["metadata"]["labels"]["app"] = "somebody-elses"
    assert not list(plan.left_over([pod], "mine", 1e12, everything=True))


def test_the_plan_says_what_it_creates() -> None:
    text = "\n".join(plan.planned(World().survey(), OPTIONS).plan.text())
    assert "creates 2 pods in namespace default" in text and plan.SAMPLE_IMAGE in text
