"""The reference pages in docs/ are what the Structs give."""

from pathlib import Path

import pytest

from groundplane.api import crd, reference, schema

FOLDER = Path(__file__).parents[2] / "docs/reference"


@pytest.mark.parametrize("page", reference.PAGES)
def test_committed_page_is_up_to_date(page: str) -> None:
    written = (FOLDER / f"{page}.md").read_text()
    assert written == reference.PAGES[page](), f"run: {reference.COMMAND.format(page=page)}"


@pytest.mark.parametrize(("page", "depth"), [("clusterpolicy", 2), ("nvidiadriver", 1)])
def test_every_field_has_a_row(page: str, depth: int) -> None:
    openapi = crd.cluster_policy_schema() if page == "clusterpolicy" else crd.nvidia_driver_schema()
    text = reference.PAGES[page]()
    for path, _ in schema.walk(openapi["properties"]["spec"], "spec"):
        if not path.endswith(("[]", "{}")) and path.count(".") >= depth:
            assert f"| `{path}` |" in text


def test_the_page_of_nvidiadriver_tells_what_differs() -> None:
    text = reference.nvidia_driver_reference()
    assert '| `spec.driverType` | string | `"gpu"` | `gpu`, `vgpu`, `vgpu-host-manager` | Required.' in text
    assert "| `spec.upgradePolicy.autoUpgrade` | boolean | `true` |" in text


def test_a_row_tells_type_default_and_allowed_values() -> None:
    rows = {line.split(" | ")[0][2:]: line for line in reference.cluster_policy_reference().splitlines()}
    row = rows["`spec.driver.kernelModuleType`"]
    assert '| string | `"auto"` | `auto`, `open`, `proprietary` |' in row
    assert '| integer or string | `"25%"` |' in rows["`spec.driver.upgradePolicy.maxUnavailable`"]
    assert "Required." in rows["`spec.driver.env[].name`"]
    assert "| at least 1 |" in rows["`spec.driver.startupProbe.periodSeconds`"]


def test_tables_are_well_formed() -> None:
    for line in (line for page in reference.PAGES.values() for line in page().splitlines()):
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") == 6, line
