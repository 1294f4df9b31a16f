"""What the operator's process needs before it can label nodes, and that nodes do not wait for the rest."""

import subprocess
import sys

import pytest
from operator_harness import Cluster

from groundplane.api import names
from groundplane.operator import process

LATER = ("lightkube", "httpx2", "prometheus_client", "aiohttp.web", "groundplane.operands.stack", "groundplane.lab")
"""Loaded when they are used: rendering by the first pass, the web server beside the first requests."""


def test_nothing_is_imported_that_labelling_does_not_need() -> None:
    code = "import sys, groundplane.operator.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert [name for name in LATER if name in loaded] == []


async def test_nodes_are_labelled_before_any_object_is_written(cluster: Cluster) -> None:
    cluster.nodes(80)
    cluster.policy()
    cluster.api.delay_s = 0.005
    cluster.start()
    await cluster.ready()
    plurals = [plural for _, plural, _ in cluster.api.writes if plural not in ("leases", "events")]
    assert plurals[:80] == ["nodes"] * 80
    assert "daemonsets" in plurals and plurals.count("nodes") == 80


async def test_nodes_are_labelled_while_other_collections_cannot_be_listed(cluster: Cluster) -> None:
    cluster.nodes(3)
    cluster.policy()
    broken = True
    cluster.api.fault = lambda verb, plural, _: 500 if broken and (verb, plural) == ("get", "daemonsets") else None
    cluster.start()
    await cluster.until(lambda: all(names.DEPLOY_DRIVER in cluster.labels(f"gpu-00{number}") for number in range(3)))
    assert cluster.ours() == {}, "what is not known cannot be compared"
    broken = False
    await cluster.ready()


async def test_the_head_start_ends_even_if_nodes_are_still_without_labels(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "HEAD_START_S", 0.2)
    cluster.nodes(400)
    cluster.policy()
    cluster.settings["node_writes_in_flight"] = 1
    cluster.api.delay_s = 0.01
    cluster.start()
    await cluster.ready()
    plurals = [plural for _, plural, _ in cluster.api.writes]
    last_node = len(plurals) - 1 - plurals[::-1].index("nodes")
    assert plurals.index("daemonsets") < last_node, "the pass did not wait for the last of them"
