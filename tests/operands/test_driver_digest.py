"""DRIVER_CONFIG_DIGEST: what changes it and what does not (contracts/driver-lifecycle.md 4)."""

import random
from copy import deepcopy

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Container, EnvVar, PodSpec
from operands import notation, rendering

from groundplane.operands import driver, driver_digest
from groundplane.operands.facts import OpenShift, Proxies

OWNERS = ("k8s-driver-manager", "nvidia-driver-ctr", "openshift-driver-toolkit-ctr")
CONFIG_MAPS = dict.fromkeys(("one", "two"), ("a", "b"))


def pod(changes=None, name="26.7.0-default", **more):
    """The only driver pod of a policy."""
    facts = rendering.facts(
        rendering.release_of(name), config_maps=CONFIG_MAPS, secrets={"s": ("K",), "t": ("K",)}, **more
    )
    objects = driver.render(rendering.spec(name, changes), facts)
    (made,) = [each for each in objects if each["kind"] == "DaemonSet"]
    return notation.pod(made)


def digest(changes=None, name="26.7.0-default", **more):
    """The digest, which must be the same on every container that carries it."""
    spec = pod(changes, name, **more)
    values = {
        notation.env_dict(each).get("DRIVER_CONFIG_DIGEST")
        for each in (*spec["initContainers"], *spec["containers"])
        if each["name"] in OWNERS
    }
    assert len(values) == 1
    return values.pop()


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"", 2166136261), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968)],
)
def test_fnv1a_reference_values(data, value):
    assert driver_digest.fnv1a(data) == value


def test_it_is_a_decimal_32_bit_number():
    assert 0 <= int(digest()) < 2**32


TOOLKIT = {"openshift": OpenShift(version="4.17", driver_toolkit={"r1": "dtk:1"}), "runtime": "crio"}
RHCOS = (rendering.node(os_id="rhcos", os_version="4.17", ostree="r1"),)
RDMA = {"driver": {"rdma": {"enabled": True}}}
GDS = {"enabled": True, "repository": "r", "image": "x", "version": "1"}

# (what changes, policy before, policy after, facts before, facts after)
MATTERS = [
    ("driver image", {}, {"driver": {"version": "1"}}, {}, {}),
    ("manager image", {}, {"driver": {"manager": {"version": "1"}}}, {}, {}),
    ("gds image", {"gds": GDS}, {"gds": {**GDS, "version": "2"}}, {}, {}),
    ("gdrcopy image", {"gdrcopy": GDS}, {"gdrcopy": {**GDS, "version": "2"}}, {}, {}),
    ("gds", {}, {"gds": GDS}, {}, {}),
    ("gdrcopy", {}, {"gdrcopy": GDS}, {}, {}),
    ("gds env", {"gds": GDS}, {"gds": {**GDS, "env": [{"name": "A", "value": "1"}]}}, {}, {}),
    ("gdrcopy env", {"gdrcopy": GDS}, {"gdrcopy": {**GDS, "env": [{"name": "A", "value": "1"}]}}, {}, {}),
    ("rdma", {}, RDMA, {}, {}),
    ("host mofed", RDMA, {"driver": {"rdma": {"enabled": True, "useHostMofed": True}}}, {}, {}),
    ("kernel module type", {}, {"driver": {"kernelModuleType": "open"}}, {}, {}),
    ("args", {}, {"driver": {"args": ["init", "-m", "4"]}}, {}, {}),
    ("env", {}, {"driver": {"env": [{"name": "A", "value": "1"}]}}, {}, {}),
    ("manager env", {}, {"driver": {"manager": {"env": [{"name": "FORCE_REINSTALL", "value": "true"}]}}}, {}, {}),
    ("secret env", {"driver": {"secretEnv": "s"}}, {"driver": {"secretEnv": "t"}}, {}, {}),
    (
        "licence",
        {"driver": {"licensingConfig": {"configMapName": "c"}}},
        {"driver": {"licensingConfig": {"secretName": "c"}}},
        {},
        {},
    ),
    ("topology", {}, {"driver": {"virtualTopology": {"config": "c"}}}, {}, {}),
    (
        "module parameters",
        {"driver": {"kernelModuleConfig": {"name": "one"}}},
        {"driver": {"kernelModuleConfig": {"name": "two"}}},
        {},
        {},
    ),
    (
        "repositories",
        {"driver": {"repoConfig": {"configMapName": "one"}}},
        {"driver": {"repoConfig": {"configMapName": "two"}}},
        {},
        {},
    ),
    (
        "certificates",
        {"driver": {"certConfig": {"name": "one"}}},
        {"driver": {"certConfig": {"name": "two"}}},
        {},
        {},
    ),
    ("host root", {}, {"hostPaths": {"rootFS": "/sysroot"}}, {}, {}),
    ("precompiled", {}, {"driver": {"usePrecompiled": True}}, {}, {}),
    ("OpenShift", {}, {}, {}, {"openshift": OpenShift(version="4.17")}),
    (
        "OpenShift version",
        {},
        {},
        {"openshift": OpenShift(version="4.16")},
        {"openshift": OpenShift(version="4.17")},
    ),
    ("driver toolkit", {}, {}, {"openshift": OpenShift(version="4.17"), "nodes": RHCOS}, {**TOOLKIT, "nodes": RHCOS}),
    (
        "driver toolkit image",
        {},
        {},
        {**TOOLKIT, "nodes": RHCOS},
        {"openshift": OpenShift(version="4.17", driver_toolkit={"r1": "dtk:2"}), "nodes": RHCOS},
    ),
    (
        "proxy",
        {},
        {},
        {"openshift": OpenShift(version="4.17")},
        {"openshift": OpenShift(version="4.17"), "proxies": Proxies(http="http://p")},
    ),
    (
        "trusted authorities",
        {},
        {},
        {"openshift": OpenShift(version="4.17"), "proxies": Proxies(http="http://p")},
        {"openshift": OpenShift(version="4.17"), "proxies": Proxies(http="http://p", trusted_ca="ca")},
    ),
    ("operating system", {}, {}, {}, {"nodes": (rendering.node(os_version="22.04"),)}),
]


@pytest.mark.parametrize(
    ("before", "after", "facts", "then"), [row[1:] for row in MATTERS], ids=[r[0] for r in MATTERS]
)
def test_what_matters_changes_it(before, after, facts, then):
    assert digest(before, **facts) != digest(after, **then)


def test_kernel_of_a_precompiled_driver_changes_it():
    digests = [
        digest({"driver": {"usePrecompiled": True}}, nodes=(rendering.node(kernel=kernel),))
        for kernel in ("6.8.0-60-generic", "6.8.0-61-generic")
    ]
    assert len(set(digests)) == 2
    assert driver_digest.digest(PodSpec(containers=[]), "a") != driver_digest.digest(PodSpec(containers=[]), "b")


PROBE = {"initialDelaySeconds": 5, "periodSeconds": 7}
IRRELEVANT = {
    "tolerations": {"daemonsets": {"tolerations": [{"operator": "Exists"}]}},
    "labels": {"daemonsets": {"labels": {"helm.sh/chart": "gpu-operator-v99"}, "annotations": {"a": "b"}}},
    "priority": {"daemonsets": {"priorityClassName": "low"}},
    "security context": {"daemonsets": {"podSecurityContext": {"runAsUser": 0}}},
    "update strategy": {"daemonsets": {"updateStrategy": "OnDelete"}},
    "resources": {"driver": {"resources": {"limits": {"memory": "1Gi"}}}},
    "probes": {"driver": {"startupProbe": PROBE, "livenessProbe": PROBE, "readinessProbe": PROBE}},
    "host network": {"driver": {"hostNetwork": True}},
    "pull": {"driver": {"imagePullPolicy": "Always", "imagePullSecrets": ["x"]}},
    "upgrade policy": {"driver": {"upgradePolicy": {"autoUpgrade": False, "maxParallelUpgrades": 9}}},
    "another operand": {"toolkit": {"version": "1"}, "devicePlugin": {"enabled": False}},
}
RICH = {
    "driver": {
        "rdma": {"enabled": True},
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "kernelModuleConfig": {"name": "one"},
        "secretEnv": "s",
    },
    "gds": GDS,
}


@given(changes=st.lists(st.sampled_from(sorted(IRRELEVANT)), unique=True), rich=st.booleans())
def test_what_does_not_matter_leaves_it_alone(changes, rich):
    base = RICH if rich else {}
    changed = base
    for name in changes:
        changed = rendering.merged(changed, IRRELEVANT[name])
    assert digest(changed) == digest(base)


def model(document):
    return msgspec.convert(document, PodSpec)


@given(seed=st.integers(0, 2**32), file=st.sampled_from(["26.3.3-default", "26.7.0-default"]))
def test_order_leaves_it_alone(seed, file):
    spec = pod(RICH, file)
    shuffled, order = deepcopy(spec), random.Random(seed)
    for container in (*shuffled["initContainers"], *shuffled["containers"]):
        order.shuffle(container.get("env", []))
        order.shuffle(container["volumeMounts"])
    order.shuffle(shuffled["volumes"])
    order.shuffle(shuffled["containers"])
    assert driver_digest.digest(model(shuffled)) == driver_digest.digest(model(spec)) == digest(RICH, file)


@given(data=st.data())
def test_every_literal_variable_mount_and_volume_counts(data):
    spec = pod(RICH)
    changed = deepcopy(spec)
    container = data.draw(st.sampled_from([*changed["initContainers"], *changed["containers"]]))
    literal = [
        each for each in container.get("env", []) if each.get("value") and each["name"] != driver_digest.VARIABLE
    ]
    choices = [(each, "value") for each in literal]
    choices += [(each, "mountPath") for each in container["volumeMounts"]]
    choices += [(each["hostPath"], "path") for each in changed["volumes"] if "hostPath" in each]
    where, key = data.draw(st.sampled_from(choices))
    where[key] += data.draw(st.text(min_size=1, max_size=3))
    assert driver_digest.digest(model(changed)) != driver_digest.digest(model(spec))


def test_variables_from_fields_and_unset_fields_do_not_count():
    spec = pod()
    changed = deepcopy(spec)
    ctr = changed["containers"][0]
    ctr["env"].append({"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
    ctr["env"].append({"name": "EMPTY", "value": ""})
    ctr["workingDir"], ctr["ports"] = "/", []
    assert driver_digest.digest(model(changed)) == driver_digest.digest(model(spec))


def test_argument_order_counts():
    one, two = ({"driver": {"args": args}} for args in (["init", "-a", "-m", "4"], ["init", "-m", "4", "-a"]))
    assert digest(one) != digest(two)


def test_it_never_changes_by_itself():
    """A fixed value: another process, hash seed or library must come to the same number, or drivers are reinstalled."""
    manager = Container(name="k8s-driver-manager", image="m:1", env=[EnvVar(name="A", value="1")])
    driver_ctr = Container(name="nvidia-driver-ctr", image="d:1", args=["init"])
    assert driver_digest.digest(PodSpec(initContainers=[manager], containers=[driver_ctr]), "6.8.0") == "1636795288"
