"""The support matrix's file: that the shipped one is read, and that mistakes in another are named by their path."""

import datetime
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundplane.admin import matrix as matrices
from groundplane.admin.matrix import MatrixError, load, parse, shipped

SHIPPED = Path(matrices.__file__).parent / "data" / "support-matrix.yaml"


@pytest.fixture(scope="module")
def document() -> str:
    return SHIPPED.read_text(encoding="utf-8")


def changed(document: str, *path: str | int, value: Any = None, remove: bool = False) -> str:
    """The document with the value at the path replaced, added or removed."""
    content = yaml.load(document, Loader=yaml.CSafeLoader)
    holder = content
    for step in path[:-1]:
        holder = holder[step]
    if remove:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return yaml.safe_dump(content)


def test_the_shipped_matrix() -> None:
    matrix = shipped()
    assert matrix.data_as_of == datetime.date(2026, 8, 21)
    assert matrix.family_order == ("24.9", "25.3", "25.10", "26.3", "26.7")
    assert matrix.releases["v26.7.0"].driver.default == "595.91.07"
    assert str(matrix.platforms["26.3"].os["ubuntu24.04"].k8s) == "1.32-1.36"
    assert matrix.gpu.architectures["blackwell"].open == "required"
    assert load() is matrix


def test_a_file_in_its_place(tmp_path: Path, document: str) -> None:
    newer = tmp_path / "matrix.yaml"
    newer.write_text(changed(document, "data_as_of", value="2027-01-02"), encoding="utf-8")
    assert load(newer).data_as_of == datetime.date(2027, 1, 2)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=re.escape(str(tmp_path / "none.yaml"))):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("data_as_of",), "soon", "data_as_of: Invalid"),
        (("schema_version",), 2, "schema_version: 2 is not 1"),
        (("platfroms",), {}, "document: Object contains unknown field `platfroms`"),
        (("platforms", "26.3", "os", "rhel9.6", "k8s"), "1.32 to 1.36",
         "platforms.26.3.os.rhel9.6.k8s: '1.32 to 1.36' is no range of minor versions such as 1.32-1.36"),
        (("platforms", "26.3", "os", "rhel9.6", "k8s"), "1.36-1.32", "'1.36-1.32' ends before it begins"),
        (("platforms", "26.7", "nri", "containerd", 1), "2.x", "platforms.26.7.nri.containerd[1]: '2.x' is no pattern"),
        (("platforms", "26.7", "csp", "eks"), 1.33, "platforms.26.7.csp.eks: "),
        (("platforms", "26.7", "kubernetes", "max"), "new", "platforms.26.7.kubernetes.max: 'new' is no minor version"),
        (("platforms", "26.7", "precompiled", "ubuntu22.04", "branches", 0), "580",
         "platforms.26.7.precompiled.ubuntu22.04.branches[0]: Expected `int`, got `str`"),
        (("releases", "v26.7.0", "family"), "26.8", "releases.v26.7.0.family: no family '26.8'"),
        (("releases", "v26.7.0", "driver", "branch"), 580, "releases.v26.7.0.driver.branch: 580 is not of '595.91.07'"),
        (("gpu", "architectures", "volta", "open"), "perhaps", "gpu.architectures.volta.open: "),
        (("runtime_paths", "k3s", "CONTAINERD_SOKET"), "x", "runtime_paths.k3s: Object contains unknown field"),
        (("lifecycle", "26.7"), "alive", "lifecycle.26.7: Invalid enum value 'alive'"),
        (("rules", "family_order", 0), "24.6", "rules.family_order[0]: family '24.6' has no row"),
    ],
)  # fmt: skip
def test_mistakes_are_named_by_their_path(document: str, path: tuple[str | int, ...], value: Any, message: str) -> None:
    with pytest.raises(MatrixError, match=re.escape(message)) as raised:
        parse(changed(document, *path, value=value), "site.yaml")
    assert str(raised.value).startswith("support matrix site.yaml: ")


def test_a_missing_row(document: str) -> None:
    with pytest.raises(MatrixError, match=r"platforms\.26\.3: Object missing required field `csp`"):
        parse(changed(document, "platforms", "26.3", "csp", remove=True), "site.yaml")


@pytest.mark.parametrize(("content", "message"), [("a: [", "not YAML"), ("[]", "not a mapping"), ("", "not a mapping")])
def test_what_is_no_matrix(content: str, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        parse(content, "site.yaml")
