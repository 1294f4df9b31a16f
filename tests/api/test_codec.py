"""Loading and writing ClusterPolicies: nothing is lost, and errors say where, what and how to mend it."""

import copy
import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.api import codec, schema
from groundplane.api.clusterpolicy import ClusterPolicy, EnvVar

POLICIES = sorted((Path(__file__).parents[1] / "data/clusterpolicy").glob("*.yaml"))


def policy(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "p"}, "spec": spec}


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_documents_of_the_chart_load_and_survive(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    loaded = codec.load_cluster_policy(document)
    assert loaded.unknown == []
    assert loaded.policy.metadata.name == "cluster-policy"
    assert loaded.policy.spec.driver.repository == "nvcr.io/nvidia"
    assert codec.dump(loaded) == document


def test_fourteen_documents_are_tested() -> None:
    assert len(POLICIES) == 14


def test_null_is_unset() -> None:
    loaded = codec.load_cluster_policy(
        policy(driver={"enabled": None, "env": [{"name": "A", "value": None}]}, cdi=None)
    )
    assert loaded.policy.spec.driver.enabled is None
    assert loaded.policy.spec.driver.env == [EnvVar(name="A")]
    assert loaded.policy.spec.cdi.enabled is None
    assert loaded.document["spec"]["driver"]["enabled"] is None


WRONG = [
    (
        {"driver": {"enabled": "true"}},
        "spec.driver.enabled",
        'found the string "true"; write it without',
    ),
    ({"driver": {"enabled": 1}}, "spec.driver.enabled", "expected true or false, found the number 1"),
    (
        {"driver": {"version": 595.91}},
        "spec.driver.version",
        "a string, found the number 595.91; put",
    ),
    ({"driver": {"env": [{"name": "A"}, {"name": "B", "value": 1}]}}, "spec.driver.env[1].value", "found the number 1"),
    ({"driver": {"env": [{"value": "x"}]}}, "spec.driver.env[0].name", "expected a string, found nothing"),
    ({"driver": {"env": {"A": "x"}}}, "spec.driver.env", "expected a list, found a mapping"),
    ({"driver": {"imagePullSecrets": "a"}}, "spec.driver.imagePullSecrets", "start each item of the list with '- '"),
    ({"driver": {"imagePullSecrets": ["a", None]}}, "spec.driver.imagePullSecrets[1]", "a string, found null"),
    ({"driver": []}, "spec.driver", "expected a mapping, found a list"),
    ({"driver": {"startupProbe": {"periodSeconds": "10"}}}, "spec.driver.startupProbe.periodSeconds", "without quotes"),
    ({"driver": {"startupProbe": {"periodSeconds": 1.5}}}, "spec.driver.startupProbe.periodSeconds", "the number 1.5"),
    ({"driver": {"upgradePolicy": {"maxUnavailable": True}}}, "spec.driver.upgradePolicy.maxUnavailable", "found true"),
    ({"dcgm": {"hostPort": 5555.0}}, "spec.dcgm.hostPort", "expected a whole number, found the number 5555.0"),
    (
        {"daemonsets": {"labels": {1: "a"}}},
        "spec.daemonsets.labels.1",
        "a string as key, found the number 1; put the key",
    ),
    ({True: "x"}, "spec.True", "expected a string as key, found true"),
    ({"daemonsets": {"labels": {"a": 1}}}, "spec.daemonsets.labels.a", "put the value in quotes"),
    (
        {"daemonsets": {"rollingUpdate": {"maxUnavailable": 1}}},
        "spec.daemonsets.rollingUpdate.maxUnavailable",
        "quotes",
    ),
    ({"daemonsets": {"tolerations": [{"key": 5}]}}, "spec.daemonsets.tolerations[0].key", "put the value in quotes"),
    ({"toolkit": {"resources": {"limits": {"cpu": 0.5}}}}, "spec.toolkit.resources.limits.cpu", "the number 0.5"),
    ({"gfd": {"version": datetime.date(2026, 1, 2)}}, "spec.gfd.version", "a YAML date (2026-01-02); put the value in"),
]


@pytest.mark.parametrize(("spec", "path", "message"), WRONG, ids=[path for _, path, _ in WRONG])
def test_wrong_types_are_explained(spec: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(codec.PolicyError) as caught:
        codec.load_cluster_policy({"spec": spec})
    assert caught.value.path == path
    assert message in caught.value.message
    assert str(caught.value) == f"{path}: {caught.value.message}"


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"kind": "Pod"}, "kind"),
        ({"kind": "ClusterPolicy", "apiVersion": "nvidia.com/v2"}, "apiVersion"),
        ({"kind": "ClusterPolicy", "spec": "x"}, "spec"),
        ({"kind": "ClusterPolicy", "metadata": {"name": 7}}, "metadata.name"),
        (["x"], ""),
        (None, ""),
    ],
)
def test_other_documents_are_refused(document: Any, path: str) -> None:
    with pytest.raises(codec.PolicyError, match="expected") as caught:
        codec.load_cluster_policy(document)
    assert caught.value.path == path


def test_values_out_of_range_load() -> None:
    """Objects that an older CRD let in must load; validate.problems reports them."""
    loaded = codec.load_cluster_policy(policy(mig={"strategy": "double"}, dcgm={"hostPort": 2**40}))
    assert loaded.policy.spec.mig.strategy == "double"
    assert loaded.policy.spec.dcgm.hostPort == 2**40


RELABELING = "spec.dcgmExporter.serviceMonitor.relabelings[1]"
UNKNOWN = [
    ("spec.driver.repositry", "spec.driver.repository"),
    ("spec.driver.Enabled", "spec.driver.enabled"),
    ("spec.driver.use_precompiled", "spec.driver.usePrecompiled"),
    (f"{RELABELING}.source_labels", f"{RELABELING}.sourceLabels"),
    (f"{RELABELING}.sourcelabels", f"{RELABELING}.sourceLabels"),
    ("spec.driver.env[0].nmae", "spec.driver.env[0].name"),
    ("spec.devicePlugn", "spec.devicePlugin"),
    ("spec.driver.nriPluginEnabled", "spec.cdi.nriPluginEnabled"),
    ("spec.daemonsets.tolerations[0].efect", "spec.daemonsets.tolerations[0].effect"),
    ("spec.driver.zzz", None),
    ("spce", "spec"),
]


@pytest.mark.parametrize(("path", "meant"), UNKNOWN)
def test_suggestions(path: str, meant: str | None) -> None:
    assert codec.suggest(path) == meant


def test_unknown_fields_are_listed_and_survive() -> None:
    document = policy(
        driver={"foo": {"deep": [1]}, "env": [{"name": "A", "oops": True}]},
        gfd={"resources": {"claims": [{"name": "c"}]}},
        dcgmExporter={"serviceMonitor": {"relabelings": [{"source_labels": ["a"]}]}},
        novel={"x": 1},
    )
    document["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    document["extra"] = 1
    loaded = codec.load_cluster_policy(document)
    assert loaded.unknown == [
        "spec.driver.foo",
        "spec.driver.env[0].oops",
        "spec.gfd.resources.claims",
        "spec.dcgmExporter.serviceMonitor.relabelings[0].source_labels",
        "spec.novel",
        "extra",
    ]
    assert codec.dump(loaded) == document


def test_loaded_is_independent_of_what_it_was_read_from() -> None:
    document = policy(driver={"version": "1"})
    loaded = codec.load_cluster_policy(document)
    document["spec"]["driver"]["version"] = "2"
    assert codec.dump(loaded)["spec"]["driver"]["version"] == "1"
    codec.dump(loaded)["spec"].clear()
    assert loaded.document["spec"] == {"driver": {"version": "1"}}


def test_dump_carries_changes_and_keeps_the_rest() -> None:
    document = policy(
        driver={"version": "1", "image": "driver", "foo": 1, "enabled": None, "env": [{"name": "A", "oops": True}]}
    )
    loaded = codec.load_cluster_policy(document)
    replace = msgspec.structs.replace
    spec = loaded.policy.spec
    driver = replace(spec.driver, version="2", image=None, env=[EnvVar(name="A", value="x")])
    changed = replace(spec, driver=driver, cdi=replace(spec.cdi, enabled=False))
    result = codec.dump(replace(loaded, policy=replace(loaded.policy, spec=changed)))
    assert result["spec"] == {
        "driver": {"version": "2", "foo": 1, "enabled": None, "env": [{"name": "A", "oops": True, "value": "x"}]},
        "cdi": {"enabled": False},
    }
    assert result["metadata"] == {"name": "p"}


def test_dump_replaces_a_list_whose_length_changed() -> None:
    loaded = codec.load_cluster_policy(policy(driver={"env": [{"name": "A", "oops": True}]}))
    spec = loaded.policy.spec
    env = [EnvVar(name="A"), EnvVar(name="B")]
    changed = msgspec.structs.replace(spec, driver=msgspec.structs.replace(spec.driver, env=env))
    result = codec.dump(msgspec.structs.replace(loaded, policy=msgspec.structs.replace(loaded.policy, spec=changed)))
    assert result["spec"]["driver"]["env"] == [{"name": "A"}, {"name": "B"}]


# --- Properties -------------------------------------------------------------------------------------------------------


def some_keys(node: dict[str, Any]) -> st.SearchStrategy[list[str]]:
    """The required keys of an object and a few of the others, among them one that the schema does not know."""
    required = node.get("required", [])
    others = [key for key in (*node["properties"], "x-unknown") if key not in required]
    return st.lists(st.sampled_from(others), unique=True, max_size=4).map(lambda keys: [*required, *keys])


def value_of(node: dict[str, Any], key: str) -> st.SearchStrategy[Any]:
    if key == "x-unknown":
        return st.integers()
    value = documents(node["properties"][key])
    return value if key in node.get("required", ()) else st.none() | value


def documents(node: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that keep the types of a schema, with nulls and unknown keys here and there."""
    if "properties" in node:
        return some_keys(node).flatmap(lambda keys: st.fixed_dictionaries({key: value_of(node, key) for key in keys}))
    if "anyOf" in node:
        return st.integers(0, 9) | st.text(max_size=4)
    match node["type"]:
        case "array":
            return st.lists(documents(node["items"]), max_size=2)
        case "object":
            return st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(-5, 500)
    return st.text(max_size=4)


SPEC = schema.of(ClusterPolicy)["properties"]["spec"]
SECTIONS = sorted(SPEC["properties"])


@settings(max_examples=200)
@given(spec=documents(SPEC))
def test_any_document_survives_a_round_trip(spec: dict[str, Any]) -> None:
    document = policy(**spec)
    before = copy.deepcopy(document)
    loaded = codec.load_cluster_policy(document)
    assert document == before
    assert codec.dump(loaded) == before
    again = codec.load_cluster_policy(codec.dump(loaded))
    assert again == loaded
    assert all(path.endswith("x-unknown") for path in loaded.unknown)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(SECTIONS), inner, max_size=2),
    max_leaves=6,
)


@given(junk=JUNK, section=st.sampled_from(SECTIONS))
def test_junk_loads_or_is_refused_with_a_path(junk: Any, section: str) -> None:
    try:
        loaded = codec.load_cluster_policy(policy(**{section: junk}))
    except codec.PolicyError as error:
        assert error.path.startswith(f"spec.{section}")
        assert "expected" in error.message
    else:
        assert codec.dump(loaded)["spec"] == {section: junk}
