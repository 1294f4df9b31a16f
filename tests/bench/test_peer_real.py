"""The race itself, small: 20 nodes on a real kube-apiserver, every phase once."""

import json
from typing import Any

import pytest
from conftest import unavailable

from bench.peer import __main__ as peer
from testing.realcluster import build

pytestmark = pytest.mark.real


def test_twenty_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        build.ensure(build.CONTROL_PLANE)
    except build.UnavailableError as error:
        unavailable(str(error))
    status = peer.main(["--nodes", "20", "--rounds", "1", "--quiet-s", "3", "--skip-peer", "-o", "json"])
    said = capsys.readouterr()
    assert status == 0, said
    document: dict[str, Any] = json.loads(said.out)
    assert len(document["labelling"][0]["ratios"]) == 1
    host, driver = document["runs"]
    assert (host["policy"], driver["policy"]) == peer.POLICIES
    for run in (host, driver):
        each = 2 if run is driver else 1  # labels, and with a driver the state of its upgrade
        patches = {(verb, resource): count for verb, resource, count in run["cold"]}["patch", "nodes"]
        assert patches == 20 * each
        assert run["join_writes"] == each and len(run["joins_s"]) == 11
        assert run["peak_mib"] > 0 and run["cpu_s"] > 0 and run["labelling"]["server_cpu_s"] > 0
    followed = {(verb, resource): count for verb, resource, count in driver["cold"]}["watch", "pods"]
    assert followed == 3, "a driver's pods are followed, for its readiness and for its upgrades, and the validators"
    assert document["verdicts"][4]["answer"] == "met", "quiet"
