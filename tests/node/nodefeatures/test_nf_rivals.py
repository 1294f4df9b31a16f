"""Whether NFD itself is at work: then everything is left to it."""

from typing import Any

import pytest

from groundplane.api import names
from groundplane.node.nodefeatures import rivals
from groundplane.node.nodefeatures.rivals import SETTLE_S, Dispute


def feature(namespace: str, name: str, version: str | None, manager: str = "nfd-worker") -> dict[str, Any]:
    annotations = {} if version is None else {names.NFD_WORKER_VERSION: version}
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "annotations": annotations,
            "managedFields": [{"manager": manager}],
        }
    }


@pytest.mark.parametrize(
    ("annotations", "documents", "said"),
    [
        ({}, [], ""),
        ({}, [feature("nfd", "n", "v0.18.1")], "NodeFeature nfd/n is kept by nfd-worker as worker v0.18.1"),
        ({}, [feature("ours", "n", "v0.18.1")], "kubectl delete nodefeatures -n ours n"),
        ({}, [feature("ours", "n", None, "kubectl")], "NodeFeature ours/n is kept by kubectl as worker of an unknown"),
        ({}, [feature("ours", "n", "groundplane-0.1.0")], ""),
        ({}, [feature("elsewhere", "n", "groundplane-0.1.0")], ""),
        ({}, [feature("elsewhere", "n", None)], ""),
        ({}, [feature("ours", "nvidia-features-for-n", None)], ""),
        ({names.NFD_MASTER_VERSION: "v0.12.1"}, [], "kubectl annotate node n nfd.node.kubernetes.io/master.version-"),
        ({names.NFD_WORKER_VERSION: "v0.12.1"}, [], "worker.version is 'v0.12.1'"),
        ({names.NFD_FEATURE_LABELS: "a,b"}, [], ""),
    ],
)
def test_plain_evidence(annotations: dict[str, str], documents: list[dict[str, Any]], said: str) -> None:
    found = rivals.evidence("n", "ours", annotations, documents)
    assert said in found
    assert bool(said) == bool(found)


def test_a_node_without_a_record_or_with_ours_is_written() -> None:
    verdict = rivals.judge(Dispute(), foreign=False, missing=3, now=1.0)
    assert (verdict.act, verdict.why, verdict.again_s) == (True, "", None)


def test_a_foreign_record_is_left_alone_while_no_label_is_missing() -> None:
    verdict = rivals.judge(Dispute(missing_since=1.0), foreign=True, missing=0, now=1e9)
    assert (verdict.act, verdict.dispute, verdict.again_s) == (False, Dispute(), None)
    assert names.NFD_FEATURE_LABELS in verdict.why


def test_a_foreign_record_is_taken_over_once_if_labels_stay_missing() -> None:
    first = rivals.judge(Dispute(), foreign=True, missing=1, now=100.0)
    assert (first.act, first.again_s) == (False, SETTLE_S)
    second = rivals.judge(first.dispute, foreign=True, missing=2, now=100.0 + SETTLE_S / 2)
    assert (second.act, second.again_s) == (False, SETTLE_S / 2)
    third = rivals.judge(second.dispute, foreign=True, missing=2, now=100.0 + SETTLE_S)
    assert (third.act, third.why) == (True, "")
    after = rivals.judge(third.dispute, foreign=True, missing=2, now=1e9)
    assert (after.act, after.again_s) == (False, None)
    assert "somebody else writes" in after.why


def test_waiting_begins_anew_when_nothing_was_missing_in_between() -> None:
    waiting = rivals.judge(Dispute(), foreign=True, missing=1, now=0.0)
    satisfied = rivals.judge(waiting.dispute, foreign=True, missing=0, now=SETTLE_S - 1)
    assert rivals.judge(satisfied.dispute, foreign=True, missing=1, now=SETTLE_S).act is False


def test_a_record_that_was_ours_and_is_rewritten_has_a_writer_until_it_is_gone() -> None:
    ours = rivals.judge(Dispute(), foreign=False, missing=0, now=0.0)
    assert rivals.judge(ours.dispute, foreign=True, missing=5, now=1e9).act is False
    assert rivals.judge(ours.dispute, foreign=False, missing=5, now=1e9).act is True
