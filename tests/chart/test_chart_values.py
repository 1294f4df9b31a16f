"""Values: NVIDIA's names and defaults are accepted and ours; what is wrong is refused with an error that names it."""

import re
from typing import Any

import helm_python as helm
import pytest
from chart import rendering

OWN_DEFAULTS = {
    "operator.repository": "",
    "operator.image": "",
    "driver.nvidiaDriverCRD.nodeSelector": {},
}
"""Where a default is ours: an empty image is groundplane's, see the comments in values.yaml."""


def nvidia(release: str) -> dict[str, Any]:
    found: dict[str, Any] = rendering.load(rendering.DATA / "nvidia-values" / f"{release}.yaml")
    return found


def nvidia_defaults(release: str) -> dict[str, Any]:
    """The whole of NVIDIA's values.yaml."""
    whole: dict[str, Any] = {}
    for path, value in nvidia(release)["defaults"].items():
        whole = rendering.merged(whole, rendering.tree(path, value))
    return whole


def at(values: Any, path: str) -> Any:
    for key in path.split("."):
        values = values[key]
    return values


def own_defaults(release: str) -> dict[str, Any]:
    """Our values.yaml with what files/releases.yaml adds for a release."""
    whole: dict[str, Any] = rendering.load(rendering.CHART / "values.yaml")
    for path, value in rendering.load(rendering.CHART / "files" / "releases.yaml")[release].items():
        whole = rendering.merged(whole, rendering.tree(path, value))
    return whole


@pytest.mark.parametrize("release", rendering.RELEASES)
def test_our_defaults_are_nvidias(release: str) -> None:
    theirs, ours = nvidia(release)["defaults"], own_defaults(release)
    different = {path: at(ours, path) for path, value in theirs.items() if at(ours, path) != value}
    assert different == {path: value for path, value in OWN_DEFAULTS.items() if path in different}


@pytest.mark.parametrize("release", rendering.RELEASES)
def test_the_whole_of_nvidias_values_file_works_unchanged(release: str) -> None:
    values = rendering.merged(nvidia_defaults(release), {"operator": {"version": f"v{release}"}})
    assert rendering.one("ClusterPolicy", values) == rendering.one("ClusterPolicy", rendering.values(release=release))
    (container,) = rendering.one("Deployment", values)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "localhost/groundplane:" + rendering.chart().metadata["appVersion"]
    assert f"--release={release}" in container["args"]


def schema_at(path: str) -> dict[str, Any] | None:
    node: dict[str, Any] = rendering.chart().schema or {}
    for key in path.split("."):
        if "object" in node.get("type", ()) and "properties" not in node:
            return node
        found = node.get("properties", {}).get(key)
        if found is None:
            return None
        node = found
    return node


@pytest.mark.parametrize("release", rendering.RELEASES)
def test_every_name_that_nvidias_templates_read_is_known(release: str) -> None:
    known = nvidia(release)
    assert [path for path in (*known["defaults"], *known["also"]) if schema_at(path) is None] == []


@pytest.mark.parametrize("path", ["gds", "dcgmExporter.config", "validator.plugin", "operator.env", "driver.version"])
def test_null_means_unset(path: str) -> None:
    rendering.documents(rendering.tree(path, None))


# --- refused ---------------------------------------------------------------------------------------------------------

REFUSED = [
    ("driver.enabled", "yes please", "got string"),
    ("driver.enabeld", True, "additional properties 'enabeld' not allowed"),
    ("drivers", {}, "additional properties 'drivers' not allowed"),
    ("driver.version", 580.126, "got number"),
    ("driver.kernelModuleType", "opne", "must be one of 'auto', 'open', 'proprietary'"),
    ("driver.upgradePolicy.maxParallelUpgrades", "2", "got string"),
    ("driver.upgradePolicy.maxParallelUpgrades", -1, "minimum: got -1, want 0"),
    ("driver.upgradePolicy.podDeletion", {}, "additional properties 'podDeletion' not allowed"),
    ("driver.useNvidiaDriverCRD", True, "additional properties 'useNvidiaDriverCRD' not allowed"),
    ("driver.startupProbe.periodSeconds", 0, "minimum: got 0, want 1"),
    ("driver.env", {"A": "1"}, "got object"),
    ("driver.env", [{"value": "1"}], "missing property 'name'"),
    ("toolkit.env", [{"name": "A", "value": 1}], "got number"),
    ("toolkit.imagePullSecrets", [{"name": "a"}], "got object"),
    ("toolkit.resources.limits.cpu", "lots", "does not match pattern"),
    ("mig.strategy", "double", "must be one of 'none', 'single', 'mixed'"),
    ("daemonsets.updateStrategy", "Recreate", "must be one of 'RollingUpdate', 'OnDelete'"),
    ("daemonsets.tolerations", [{"keyy": "a"}], "additional properties 'keyy' not allowed"),
    ("daemonsets.labels", {"a": 1}, "got number"),
    ("dcgmExporter.serviceMonitor.interval", "15 seconds", "does not match pattern"),
    ("dcgmExporter.config.data", {"a": "b"}, "got object"),
    ("devicePlugin.config.data", "text", "got string"),
    ("devicePlugin.sharing", {}, "additional properties 'sharing' not allowed"),
    ("nfd.implementation", "own", "must be one of 'minimal', 'upstream'"),
    ("operator.logging.timeEncoding", "iso", "must be one of 'epoch'"),
    ("operator.cleanupCRD", "true", "got string"),
    ("operator.metrics.enabled", True, "additional properties 'enabled' not allowed"),
    ("platform.openshift", 1, "got number"),
    ("clusterPolicy", False, "got boolean, want"),
    ("sandboxWorkloads.mode", "qemu", "must be one of 'kubevirt', 'kata'"),
    ("validator.cuda.enabled", True, "additional properties 'enabled' not allowed"),
]


@pytest.mark.parametrize(("path", "value", "why"), REFUSED, ids=[f"{path} = {value}" for path, value, _ in REFUSED])
def test_a_wrong_value_is_refused_by_name(path: str, value: object, why: str) -> None:
    with pytest.raises(helm.HelmError) as refused:
        rendering.documents(rendering.tree(path, value))
    told = str(refused.value)
    where = [place.replace("/", ".") for place in re.findall(r"at '([^']*)'", told)]
    parent, _, name = path.rpartition(".")
    assert any(
        f".{path}" in place or (place == (parent and f".{parent}") and f"'{name}'" in told) for place in where
    ), told
    assert why in told


# --- the file --------------------------------------------------------------------------------------------------------

SHARED = {"repository", "image", "version", "imagePullPolicy", "imagePullSecrets", "env", "args", "resources",
          "hostNetwork", "enabled", "serviceAccount"}  # fmt: skip
"""Names that the head of the file explains, and those that say themselves what they are."""
FRAGMENTS = {"tolerations", "affinity", "nodeSelector", "annotations", "resources", "sources", "startupProbe"}
FRAGMENTS |= {"serviceAccount"}
"""Below these are names of Kubernetes and of others."""


def test_every_value_has_a_comment() -> None:
    """A key is explained by the line above it, or it is one of the shared names; below a fragment nothing is asked."""
    lines = (rendering.CHART / "values.yaml").read_text().splitlines()
    bare: list[str] = []
    inside: int | None = None
    for number, line in enumerate(lines):
        key = re.match(r"( *)([\w-]+):", line)
        indent = len(line) - len(line.lstrip())
        if inside is not None and indent > inside:
            continue
        inside = indent if key is not None and key[2] in FRAGMENTS else None
        if key is not None and key[2] not in SHARED and not lines[number - 1].lstrip().startswith("#"):
            bare.append(f"{number + 1}: {line.strip()}")
    assert bare == []


def test_the_values_in_force_are_told_apart_by_release() -> None:
    first, second = (
        rendering.load(rendering.CHART / "files" / "releases.yaml")[release] for release in rendering.RELEASES
    )
    assert first.keys() <= second.keys()
    assert {path for path in second if path not in first} == {"dcgmExporter.serviceMonitor.scrapeTimeout"}


# --- release and image -----------------------------------------------------------------------------------------------


def operator_container(values: dict[str, Any]) -> dict[str, Any]:
    (container,) = rendering.one("Deployment", values)["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


@pytest.mark.parametrize(
    ("operator", "release"),
    [
        ({}, "26.7.0"),
        ({"release": "26.3.3"}, "26.3.3"),
        ({"release": "v26.3"}, "26.3.3"),
        ({"release": 26.3}, "26.3.3"),
        ({"release": "26.7.1"}, "26.7.0"),
        ({"version": "v26.3.3"}, "26.3.3"),
        ({"version": "v26.3.3", "release": "26.7.0"}, "26.7.0"),
        ({"version": "0.2.0"}, "26.7.0"),
    ],
)
def test_which_release_it_behaves_like(operator: dict[str, Any], release: str) -> None:
    values = {"operator": operator}
    assert f"--release={release}" in operator_container(values)["args"]
    assert rendering.one("ClusterPolicy", values) == rendering.one("ClusterPolicy", rendering.values(release=release))


@pytest.mark.parametrize("release", ["25.3", "26.5.0", "latest"])
def test_an_unknown_release_is_refused(release: str) -> None:
    with pytest.raises(helm.HelmError, match=rf'operator.release: unknown release "{release}".*26.7.0 or 26.3.3'):
        rendering.documents(rendering.tree("operator.release", release))


OWN_TAG = rendering.load(rendering.CHART / "Chart.yaml")["appVersion"]


@pytest.mark.parametrize(
    ("operator", "image"),
    [
        ({}, f"localhost/groundplane:{OWN_TAG}"),
        ({"repository": "nvcr.io/nvidia", "image": "gpu-operator"}, f"localhost/groundplane:{OWN_TAG}"),
        ({"repository": "registry.example/gpu"}, f"registry.example/gpu/groundplane:{OWN_TAG}"),
        (
            {"repository": "registry.example/gpu", "image": "gpu-operator"},
            f"registry.example/gpu/groundplane:{OWN_TAG}",
        ),
        ({"repository": "r.example", "image": "gp", "version": "0.2.0"}, "r.example/gp:0.2.0"),
        ({"repository": "r.example", "image": "gp", "version": "sha256:ab"}, "r.example/gp@sha256:ab"),
        ({"version": "v26.3.3"}, f"localhost/groundplane:{OWN_TAG}"),
    ],
)
def test_which_image_runs(operator: dict[str, Any], image: str) -> None:
    assert operator_container({"operator": operator})["image"] == image


def test_a_version_may_be_a_number_and_an_empty_one_is_not_filled_in() -> None:
    policy = rendering.one("ClusterPolicy", {"driver": {"version": 580}, "toolkit": {"version": "", "repository": ""}})
    assert policy["spec"]["driver"]["version"] == "580"
    assert "version" not in policy["spec"]["toolkit"]
    assert "repository" not in policy["spec"]["toolkit"]
