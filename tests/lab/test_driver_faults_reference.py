"""docs/reference/driver-faults.md tells what there is."""

from pathlib import Path

import msgspec
import yaml

from groundplane.lab.driver.packages import Repository
from groundplane.lab.driverfaults import FAULTS

TEXT = (Path(__file__).parents[2] / "docs/reference/driver-faults.md").read_text(encoding="utf-8")


def test_every_fault_is_in_the_table() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| `") and line.endswith(") |")]
    assert rows == [f"| `{name}` | `{fault.shows}` ({fault.program}) |" for name, fault in FAULTS.items()]


def test_the_example_is_a_description_of_repositories() -> None:
    example = yaml.safe_load(TEXT.split("```yaml\n")[1].split("```")[0])
    found = msgspec.convert(example["repositories"], dict[str, Repository])
    assert found["distribution"] == Repository()
    assert found["mirror.lab"].has("6.8.0-60-generic") and not found["mirror.lab"].has("6.9")
