"""Helm's step of an upgrade: not again when it is done, a pending release cleared with consent, and no more."""

import base64
import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from groundplane.admin import helm, plans, upgrade_run
from groundplane.diagnose.survey import Survey

VALUES = {"mig": {"strategy": "mixed"}}


def secret(revision: int, status: str, version: str = "v26.3.3", values: Any = None) -> dict[str, Any]:
    stored = {
        "name": "n",
        "namespace": "ns",
        "version": revision,
        "info": {"status": status},
        "chart": {"metadata": {"name": "gpu-operator", "version": version}},
        "config": values or {},
    }
    data = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(stored).encode()))).decode()
    head = {"apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1"}
    return {**head, "metadata": {"name": f"s{revision}", "namespace": "ns"}, "data": {"release": data}}


class Maker:
    """A Helm that notes what it is asked."""

    name = "noted"

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def upgrade(self, chart: helm.Chart, *_where: Any, **how: Any) -> None:
        self.asked.append(f"upgrade {chart.version} hooks={how['hooks']}")

    async def rollback(self, _release: str, _namespace: str, revision: int, **_how: Any) -> None:
        self.asked.append(f"rollback {revision}")


class Work(upgrade_run.Work):
    """Steps that see the given releases."""

    seen: tuple[dict[str, Any], ...] = ()

    async def _look(self, plurals: Iterable[str]) -> Survey:
        return Survey.of([*self.seen], read=tuple(plurals), namespace="ns")


def work(path: Path, maker: Maker, *seen: dict[str, Any], **more: Any) -> Work:
    plan = plans.Plan(title="t", steps=(plans.Step(id="helm", title="h"),))
    run = upgrade_run.Run(
        kind=more.get("kind", "upgrade"),
        asked="",
        plan=plan,
        name="n",
        namespace="ns",
        source="v26.3.3",
        target="v26.7.0",
        folder=str(path),
        chart=("gpu-operator", "v26.7.0", "https://example.invalid"),
        values=VALUES,
        revision=1,
        hooks=more.get("hooks", True),
    )
    limits = upgrade_run.Limits(recover=more.get("recover", False))
    made = Work(None, maker, run, plans.Journal(path / "journal", plan), limits, lambda _text: None)  # type: ignore[arg-type]
    made.seen = seen
    return made


DONE = secret(2, "deployed", "v26.7.0", VALUES)
CASES: dict[str, tuple[tuple[dict[str, Any], ...], dict[str, Any], list[str]]] = {
    "A96 from what is deployed": ((secret(1, "deployed"),), {}, ["upgrade v26.7.0 hooks=True"]),
    "A96 without hooks": ((secret(1, "deployed"),), {"hooks": False}, ["upgrade v26.7.0 hooks=False"]),
    "A96 done before": ((secret(1, "superseded"), DONE), {}, []),
    "A96 after one that failed": ((secret(1, "deployed"), secret(2, "failed")), {}, ["upgrade v26.7.0 hooks=True"]),
    "A96 pending, with consent": (
        (secret(1, "deployed"), secret(2, "pending-upgrade")),
        {"recover": True},
        ["rollback 1", "upgrade v26.7.0 hooks=True"],
    ),
    "A103 back": ((secret(1, "superseded"), DONE), {"kind": "rollback"}, ["rollback 1"]),
}


@pytest.mark.parametrize("case", list(CASES))
async def test_what_helm_is_asked(tmp_path: Path, case: str) -> None:
    seen, more, asked = CASES[case]
    maker = Maker()
    await work(tmp_path, maker, *seen, **more).helm()
    assert maker.asked == asked


async def test_a_pending_release_is_not_touched_without_consent(tmp_path: Path) -> None:
    maker = Maker()
    with pytest.raises(helm.ReleasePending, match=r"is pending-upgrade.*--recover"):
        await work(tmp_path, maker, secret(1, "deployed"), secret(2, "pending-upgrade")).helm()
    assert maker.asked == []


async def test_a_run_that_was_killed_inside_helm_clears_what_it_left(tmp_path: Path) -> None:
    maker = Maker()
    made = work(tmp_path, maker, secret(1, "deployed"), secret(2, "pending-upgrade"))
    made._journal.note("helm began", {"pid": 0, "host": "another", "after": 1})
    await made.helm()
    assert maker.asked == ["rollback 1", "upgrade v26.7.0 hooks=True"]
