"""A ready cluster with real programs running costs the operator no request but watches and its lease."""

from e2e.world import policy_document

from groundplane.api import names
from groundplane.lab import resources
from groundplane.lab.cluster import OPERATOR_USER_AGENT, Lab
from groundplane.lab.nodes import GpuSpec, NodeSpec

MINUTES = 5


def mig_state(lab: Lab) -> str | None:
    """What the MIG manager says: it comes when GPU features are known, and the policy may have been ready before."""
    labels: dict[str, str] = lab.api.get(resources.NODES, "gpu-1")["metadata"].get("labels") or {}
    return labels.get(names.MIG_CONFIG_STATE)


async def test_minutes_pass_without_a_request_of_the_operator() -> None:
    nodes = [NodeSpec(name="gpu-1", gpus=(GpuSpec(model="A100-SXM4-40GB", count=1),)), NodeSpec(name="cpu-1")]
    options = {"leader_elect": True, "renew_deadline_s": 300.0}
    async with Lab(nodes, operator_on_cluster_time=True, operator_options=options) as lab:
        await lab.apply([policy_document()])
        await lab.wait_until(lambda: mig_state(lab) == "success", timeout_s=60.0, what="the last operand to have come")
        await lab.wait_ready(timeout_s=60.0)
        await lab.wait_until(lambda: lab.idle, timeout_s=60.0, what="the operator to have nothing left to do")
        await lab.clock.sleep(60.0)
        lab.faults.requests.clear()
        await lab.clock.sleep(MINUTES * 60.0)
        made = [each for each in lab.faults.requests if OPERATOR_USER_AGENT in each.user_agent]
        assert [each for each in made if each.verb != "watch" and each.resource != "leases"] == []
        assert any(each.resource == "leases" for each in made), "the lease is renewed, so requests are counted"
        assert lab.policy_state() == "ready"
