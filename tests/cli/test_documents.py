"""Files given to commands: JSON and YAML say the same, and errors name the line."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.cli import documents

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(st.characters(codec="ascii", categories="L"))
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcdef"), inner))


def read(folder: Path, text: str) -> list[dict[str, Any]]:
    path = folder / "d"
    path.write_text(text, encoding="utf-8")
    return documents.read(str(path))


@given(value=VALUES)
def test_json_is_read_as_what_it_says(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    document = {"kind": "Node", "value": value}
    assert read(tmp_path_factory.mktemp("d"), json.dumps(document)) == [document]


def test_flow_style_yaml_that_is_no_json_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, "{kind: Node, metadata: {name: a}}") == [{"kind": "Node", "metadata": {"name": "a"}}]


@pytest.mark.parametrize("text", ['{"kind": "A",\n "b": 1,\n "b": 2}', "kind: A\nx:\n  b: 1\n  b: 2\n"])
def test_a_repeated_key_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(click.ClickException, match="'b' is given twice"):
        read(tmp_path, text)
