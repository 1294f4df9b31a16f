"""``groundplane plan``: which policy it plans for."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from groundplane.cli import plan
from groundplane.operator.plan import Report

POLICY = Path(__file__).parent.parent / "data" / "clusterpolicy" / "26.7.0-default.yaml"


@pytest.mark.parametrize("piped", [False, True])
def test_the_policy_of_a_file_or_of_standard_input_is_planned_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, piped: bool
) -> None:
    seen: list[Any] = []

    async def report(_where: object, _namespace: str, _release: object, document: Any) -> Report:
        seen.append(document)
        return Report("cluster-policy")

    monkeypatch.setattr(plan, "_report", report)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: a, users: [], "
        "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}], contexts: [{name: a, context: {cluster: a}}]}"
    )
    text = POLICY.read_text()
    arguments = ["-f", "-" if piped else str(POLICY), "--kubeconfig", str(kubeconfig)]
    result = CliRunner().invoke(plan.command, arguments, input=text if piped else None)
    assert result.exit_code == 0, result.output
    assert seen == [yaml.safe_load(text)]
    assert "nothing to change" in result.output
