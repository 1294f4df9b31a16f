"""YAML that makes much of little."""

import pytest

from groundplane.api import goyaml
from groundplane.node.cdi import model, read

WIDE = ", ".join(["*b"] * 900)
BOMBS = {
    "aliases of aliases": "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"a{each}: &a{each} [{','.join([f'*a{each - 1}'] * 9)}]\n" for each in range(1, 12)),
    "merges of merges": "a0: &a0 {x: 1}\n"
    + "".join(f"a{each}: &a{each} {{<<: [*a{each - 1}, *a{each - 1}]}}\n" for each in range(1, 40)),
    "three levels": f"a: &a [{', '.join(['x'] * 900)}]\nb: &b [{', '.join(['*a'] * 900)}]\nc: [{WIDE}]\n",
    "itself": "&a [*a]\n",
    "itself, merged": "a: &a\n  <<: *a\n  b: 1\n",
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_bombs_are_refused(text: str) -> None:
    with pytest.raises(goyaml.DocumentError, match="aliases stand for more than 1000000 nodes"):
        goyaml.loads(text)
    with pytest.raises(model.SpecError, match="aliases stand for more than 1000000 nodes"):
        read.decode(text.encode(), "/etc/cdi/bomb.yaml")


@pytest.mark.parametrize("depth", [500, 900, 5000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_depth_is_refused(depth: int, opening: str, closing: str) -> None:
    text = opening * depth + "1" * (opening != "[") + closing * depth
    with pytest.raises(goyaml.DocumentError, match=r"nested too deeply|maximum nesting depth"):
        goyaml.loads(text)
    with pytest.raises(model.SpecError):
        read.decode(text.encode(), "/etc/cdi/deep.yaml")


def test_aliases_and_merges_stay() -> None:
    text = "a: &a {x: 1, z: &l [1, 2]}\nb: {<<: *a, x: 3}\nc: [*l, *l, *a]\n"
    assert goyaml.loads(text) == {
        "a": {"x": 1, "z": [1, 2]},
        "b": {"x": 3, "z": [1, 2]},
        "c": [[1, 2], [1, 2], {"x": 1, "z": [1, 2]}],
    }
