"""contracts/admin-workflow.md 5.1 row by row: whom a change concerns, and whom not; 5.3: what charts refuse."""

from typing import Any

import pytest

from groundplane.admin import matrix, trees, value_changes
from groundplane.admin.hops import Version
from groundplane.admin.value_changes import NOTHING_KNOWN, Cluster, Level, Situation

DEFAULTS: dict[str, Any] = {
    "cdi": {"enabled": True},
    "driver": {"enabled": True, "version": "595.91.07"},
    "toolkit": {"enabled": True},
    "dcgmExporter": {"enabled": True},
    "ccManager": {"enabled": True},
    "operator": {"tolerations": [{"key": "node-role.kubernetes.io/control-plane"}]},
}
SANDBOX = {"sandboxWorkloads.enabled": True}
ANY: dict[str, Any] = {}
ENV = [{"name": "A", "value": "b"}]


def cluster(*gpus: str, **other: Any) -> Cluster:
    known = matrix.shipped().gpu.architectures
    return Cluster(gpus={name: known[name] for name in gpus} if gpus else None, **other)


def situation(overrides: dict[str, Any], told: Cluster = NOTHING_KNOWN) -> Situation:
    made: dict[str, Any] = {}
    for path, value in overrides.items():
        made = trees.put(made, trees.parse(path), value)
    return Situation(made, trees.merge(DEFAULTS, made), trees.merge(DEFAULTS, made), told)


ROWS: list[tuple[str, str, str, Any, Any]] = [
    # release, path, level, a cluster it concerns, one it does not; values by name, or with what is known of the cluster
    ("24.9.0", "operator.upgradeCRD", "W", ANY, {"operator.upgradeCRD": False}),
    ("25.3.0", "driver.useOpenKernelModules", "B", {"driver.useOpenKernelModules": False}, ANY),
    ("25.3.0", "driver.kernelModuleType", "B", {"driver.version": "535.309.01"}, {"driver.version": "580.126.20"}),
    ("25.3.0", "driver.version", "B", (ANY, cluster("pascal")), {"driver.version": "550.163.01"}),
    ("25.3.0", "driver.version", "W", (ANY, cluster("hopper")), {"driver.enabled": False, "driver.version": "1"}),
    ("25.3.0", "operator.defaultRuntime", "W", {"operator.defaultRuntime": "docker"}, ANY),
    *(
        (
            "25.3.0",
            "kubeVersion",
            "B",
            (ANY, Cluster(kubernetes=(1, old))),
            (ANY, Cluster(kubernetes=(1, 29))),
        )
        for old in (24, 28)
    ),
    (
        "25.3.1",
        "dcgmExporter.service.internalTrafficPolicy",
        "I",
        ANY,
        {"dcgmExporter.service.internalTrafficPolicy": 1},
    ),
    (
        "25.3.1",
        "node-feature-discovery.enableNodeFeatureApi",
        "W",
        {"node-feature-discovery.enableNodeFeatureApi": 1},
        ANY,
    ),
    *(
        ("25.3.3", path, "B", {path: ENV}, ANY)
        for path in (
            "driver.manager.env",
            "devicePlugin.env",
            "gfd.env",
            "dcgmExporter.env",
            "migManager.env",
            "validator.plugin.env",
            "vfioManager.driverManager.env",
            "vgpuManager.driverManager.env",
        )
    ),
    ("25.10.0", "cdi.enabled", "B", ANY, {"cdi.enabled": False}),
    ("25.10.0", "cdi.default", "W", {"cdi.default": True}, ANY),
    ("25.10.0", "toolkit.env", "B", ANY, {"toolkit.enabled": False}),
    ("25.10.0", "driver.licensingConfig.configMapName", "W", {"driver.licensingConfig.configMapName": "licence"}, ANY),
    ("25.10.0", "validator.image", "B", {"validator.image": "gpu-operator-validator"}, None),
    ("25.10.0", "nodeStatusExporter.repository", "B", ANY, None),
    ("25.10.0", "dcgmExporter.version", "W", ANY, {"dcgmExporter.enabled": False}),
    ("25.10.0", "driver.secretEnv", "I", ANY, {"driver.secretEnv": "proxy", "dcgmExporter.hostPID": True}),
    ("26.3.0", "ccManager.enabled", "W", SANDBOX, ANY),
    (
        "26.3.0",
        "ccManager.defaultMode",
        "W",
        SANDBOX,
        {**SANDBOX, "ccManager.defaultMode": "off", "ccManager.enabled": False},
    ),
    ("26.3.0", "kataManager.config.artifactsDir", "B", {"kataManager.config.artifactsDir": "/opt"}, ANY),
    ("26.3.0", "sandboxWorkloads.mode", "W", SANDBOX, {**SANDBOX, "sandboxWorkloads.mode": "kata"}),
    ("26.3.0", "operator.initContainer.image", "W", {"operator.initContainer.image": "cuda"}, ANY),
    ("26.3.0", "operator.tolerations", "B", (ANY, Cluster(master_taints=True)), (ANY, Cluster(master_taints=False))),
    (
        *("26.3.0", "node-feature-discovery.worker.tolerations", "B", (ANY, Cluster(master_taints=True))),
        (
            {
                path: [{"operator": "Exists"}]
                for path in ("operator.tolerations", "node-feature-discovery.worker.tolerations")
            },
            Cluster(master_taints=True),
        ),
    ),
    ("26.3.0", "cdi.nriPluginEnabled", "I", ANY, {"cdi.nriPluginEnabled": True}),
    ("26.3.0", "vfioManager.repository", "W", SANDBOX, {**SANDBOX, "vfioManager.repository": "mirror"}),
    (
        "26.3.0",
        "migManager.config.name",
        "W",
        {"migManager.config.name": "default-mig-parted-config"},
        {"migManager.config.name": "my"},
    ),
    ("26.3.0", "driver.*", "W", ANY, {"driver.enabled": False}),
    ("26.3.1", "*.hostNetwork", "I", ANY, {"toolkit.hostNetwork": True}),
    ("26.3.1", "ccManager.env", "W", SANDBOX, ANY),
    (
        "26.3.2",
        "dcgmExporter.enablePodUID",
        "I",
        ANY,
        {"dcgmExporter.enablePodUID": True, "dcgmExporter.enablePodLabels": 1, "dcgmExporter.annotations.a": ""},
    ),
    ("26.7.0", "driver.version", "B", (ANY, cluster("volta", "hopper")), {"driver.version": "580.173.02"}),
    ("26.7.0", "driver.version", "W", (ANY, cluster("hopper")), {"driver.version": "580.173.02"}),
    ("26.7.0", "dcgmExporter.serviceMonitor.enabled", "B", ANY, {"dcgmExporter.serviceMonitor.enabled": False}),
    (
        "26.7.0",
        "gpuCluster.deployCR",
        "W",
        ANY,
        {"clusterPolicy.deployCR": True, "gpuCluster.deployCR": False, "draDriver.version": "1"},
    ),
    ("26.7.0", "hostPaths.kubeletRootDir", "I", ANY, {"hostPaths.kubeletRootDir": "/k"}),
    ("26.7.0", "operator.nodeSelector", "I", ANY, {"operator.nodeSelector.a": "b"}),
    ("26.7.0", "dcgm.version", "W", {"dcgm.enabled": True}, ANY),
    (
        "26.7.0",
        "dcgmExporter.serviceMonitor.scrapeTimeout",
        "I",
        ANY,
        {"operator.env": [], "dcgmExporter.serviceMonitor.scrapeTimeout": "5s"},
    ),
]
LEVELS = {"B": Level.BREAKS, "W": Level.WARN, "I": Level.INFO}


def hit(release: str, path: str, told: Any) -> value_changes.Hit | None:
    where = situation(*told) if isinstance(told, tuple) else situation(told)
    rows = [
        row
        for row in value_changes.CHANGES
        if row.release == Version.parse(release) and any(value_changes.matches(each, path) for each in row.paths)
    ]
    assert len(rows) == 1, (release, path)
    return value_changes.applies(rows[0], where)


@pytest.mark.parametrize(("release", "path", "level", "concerned", "other"), ROWS)
def test_5_1(release: str, path: str, level: str, concerned: Any, other: Any) -> None:
    found = hit(release, path, concerned)
    assert found is not None
    assert path in found.paths
    assert found.level == LEVELS[level]
    if other is not None:
        assert (again := hit(release, path, other)) is None or path not in again.paths


def test_5_1_every_row_is_tested() -> None:
    tested = {(row[0], row[1]) for row in ROWS}
    for change in value_changes.CHANGES:
        assert any(
            release == change.release.number and any(value_changes.matches(each, path) for each in change.paths)
            for release, path in tested
        ), change


@pytest.mark.parametrize(
    ("release", "path"),
    [
        ("25.3.0", "kubeVersion"),
        ("26.3.0", "operator.tolerations"),
        ("26.7.0", "driver.version"),
        ("25.3.0", "driver.version"),
    ],
)
def test_what_asks_an_unknown_cluster_is_told_and_marked(release: str, path: str) -> None:
    found = hit(release, path, ANY)
    assert found is not None
    assert (found.level, found.certain) == (Level.BREAKS, False)


def test_5_1_a_path_not_overridden_stays_a_hit_of_the_others() -> None:
    found = hit("25.10.0", "driver.secretEnv", {"driver.secretEnv": "x"})
    assert found is not None
    assert found.paths == ("dcgmExporter.hostPID",)


def test_changes_of_an_upgrade_are_those_after_its_source_and_what_is_long_gone() -> None:
    rows = value_changes.between(Version(26, 3, 3), Version(26, 7, 0))
    assert {row.release for row in rows if not row.removed} == {Version(26, 7, 0)}
    assert {"cdi.default", "driver.useOpenKernelModules"} <= {row.paths[0] for row in rows if row.removed}
    assert value_changes.between(Version(24, 9, 0), Version(24, 9, 0)) == ()


CLUSTER = {"gpuCluster.deployCR": True, "clusterPolicy.deployCR": False, "driver.nvidiaDriverCRD.enabled": True}
PLUGIN = {"devicePlugin.config.create": True, "devicePlugin.config.name": "c", "devicePlugin.config.data": {"a": ""}}


@pytest.mark.parametrize(
    ("values", "served", "old", "new"),
    [
        ({"cdi.nriPluginEnabled": True, "cdi.enabled": False}, None, "needs CDI", "needs CDI"),
        ({"cdi.nriPluginEnabled": True}, None, "", ""),
        ({"cdi.nriPluginEnabled": True, "toolkit.enabled": False}, None, "", "needs the container toolkit"),
        (CLUSTER, True, "", ""),
        ({**CLUSTER, "clusterPolicy.deployCR": True}, True, "", "exclude each other"),
        ({**CLUSTER, "driver.nvidiaDriverCRD.enabled": False}, True, "", "described by NVIDIADriver objects"),
        ({**CLUSTER, "driver.nvidiaDriverCRD.enabled": False, "driver.enabled": False}, True, "", ""),
        (CLUSTER, False, "", "serves no DeviceClass"),
        (CLUSTER, None, "", ""),
        (PLUGIN, None, "", ""),
        ({**PLUGIN, "devicePlugin.config.data": {}}, None, "", "config.data is empty"),
        ({**PLUGIN, "devicePlugin.config.name": ""}, None, "", "config.name is empty"),
    ],
)
def test_5_3(values: dict[str, Any], served: bool | None, old: str, new: str) -> None:
    told = Cluster(device_classes=served)
    for release, text in (("26.3.3", old), ("26.7.0", new)):
        found = value_changes.refused(situation(values).new, Version.parse(release), told)
        assert [text in each.text for each in found] == ([True] if text else [])
