"""Prometheus' text format (contracts/mig-exporter-validator.md 5.3)."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from groundplane.node.metrics import text
from groundplane.node.metrics.fields import Form
from groundplane.node.metrics.text import Family, Row


@pytest.mark.parametrize(
    ("value", "form", "printed"),
    [
        (0, Form.INTEGER, "0"),
        (9007199254740993, Form.INTEGER, "9007199254740993"),
        (71.5, Form.DOUBLE, "71.500000"),
        (0, Form.DOUBLE, "0.000000"),
        (0.0000004, Form.DOUBLE, "0.000000"),
        ("580.5", Form.TEXT, "580.5"),
        ("NVIDIA", Form.TEXT, None),
        ("inf", Form.TEXT, None),
        (None, Form.INTEGER, None),
        *((2147483632 + at, Form.INTEGER, None) for at in range(4)),
        (2147483631, Form.INTEGER, "2147483631"),
        (2147483636, Form.INTEGER, "2147483636"),
        *((9223372036854775792 + at, Form.INTEGER, None) for at in range(4)),
        *((140737488355328.0 + at, Form.DOUBLE, None) for at in range(4)),
        (140737488355332.0, Form.DOUBLE, "140737488355332.000000"),
        *((blank, Form.TEXT, None) for blank in ("<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>")),
        ("<<<NOT_PERMISSIONED>>>", Form.TEXT, None),
    ],
)
def test_5_3_values(value: object, form: Form, printed: str | None) -> None:
    assert text.number(value, form) == printed  # type: ignore[arg-type]


def test_5_3_order_of_labels() -> None:
    base = (("gpu", "0"), ("UUID", "GPU-1"), ("Hostname", "n1"))
    found = text.labelled(base, {"b": "2", "a": "1"}, {"pod": "p", "container": "c", "namespace": "n"})
    assert found == 'gpu="0",UUID="GPU-1",Hostname="n1",a="1",b="2",container="c",namespace="n",pod="p"'


def test_5_3_no_label_twice() -> None:
    found = text.labelled((("gpu", "0"),), {"gpu": "x", "pod": "label", "z": "1"}, {"pod": "p", "gpu": "y"})
    assert found == 'gpu="0",z="1",pod="p"'


@pytest.mark.parametrize(
    ("key", "name"),
    [("app.kubernetes.io/name", "app_kubernetes_io_name"), ("a-b", "a_b"), ("ok_9", "ok_9"), ("9x", "_9x"), ("", "_")],
)
def test_5_5_label_names(key: str, name: str) -> None:
    assert text.label_name(key) == name


LABEL_NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(lambda name: name != "__name__")
LABELS = st.dictionaries(LABEL_NAMES, st.text(max_size=20), max_size=4)


@given(base=LABELS, labels=LABELS, attributes=LABELS, about=st.text(max_size=40))
def test_5_3_whatever_labels_hold_prometheus_reads_it_back(
    base: dict[str, str], labels: dict[str, str], attributes: dict[str, str], about: str
) -> None:
    inner = text.labelled(tuple(base.items()), labels, attributes)
    family = Family("series", "gauge", about, [Row(0, "1")])
    (read,) = text_string_to_metric_families(f"{text.head(family)}series{{{inner}}} 1\n")
    (sample,) = read.samples
    assert sample.labels == {**labels, **attributes, **base}
    assert read.type == "gauge"


@given(st.text(max_size=60))
def test_5_5_any_key_becomes_a_label_name(key: str) -> None:
    assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", text.label_name(key))


def test_5_3_help_is_one_line() -> None:
    family = Family("x", "counter", "a\\b\nc", [])
    assert text.head(family) == "# HELP x a\\\\b\\nc\n# TYPE x counter\n"
