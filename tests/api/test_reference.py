"""The reference page in docs/ is what the Structs give."""

from pathlib import Path

from groundplane.api import crd, reference, schema

PAGE = Path(__file__).parents[2] / "docs/reference/clusterpolicy.md"


def test_committed_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference.cluster_policy_reference(), f"run: {reference.COMMAND}"


def test_every_field_has_a_row() -> None:
    spec = crd.cluster_policy_schema()["properties"]["spec"]
    page = reference.cluster_policy_reference()
    for path, _ in schema.walk(spec, "spec"):
        if not path.endswith(("[]", "{}")) and path.count(".") > 1:
            assert f"| `{path}` |" in page


def test_a_row_tells_type_default_and_allowed_values() -> None:
    rows = {line.split(" | ")[0][2:]: line for line in reference.cluster_policy_reference().splitlines()}
    row = rows["`spec.driver.kernelModuleType`"]
    assert '| string | `"auto"` | `auto`, `open`, `proprietary` |' in row
    assert '| integer or string | `"25%"` |' in rows["`spec.driver.upgradePolicy.maxUnavailable`"]
    assert "Required." in rows["`spec.driver.env[].name`"]
    assert "| at least 1 |" in rows["`spec.driver.startupProbe.periodSeconds`"]


def test_tables_are_well_formed() -> None:
    for line in reference.cluster_policy_reference().splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") == 6, line
