"""One cluster's overrides through an upgrade: contracts/admin-workflow.md 5.2, 16, and 4 (drivers of old GPUs)."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from groundplane.admin import matrix, trees, values
from groundplane.admin.hops import Version
from groundplane.admin.value_changes import NOTHING_KNOWN, Cluster, Level

ROOT = Path(__file__).parents[2]
MATRIX = matrix.shipped()
V26_3, V26_7 = Version(26, 3, 3), Version(26, 7, 0)
RELEASES = values.Releases.of(MATRIX, V26_3, V26_7)


def tree(**named: Any) -> dict[str, Any]:
    return of({name.replace("__", "."): value for name, value in named.items()})


def of(named: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for path, value in named.items():
        made = trees.put(made, trees.parse(path), value)
    return made


def nvidia(release: str) -> dict[str, Any]:
    content = yaml.safe_load((ROOT / "tests/data/nvidia-values" / f"{release}.yaml").read_text(encoding="utf-8"))
    return of({name.replace("kubernetes.io", r"kubernetes\.io"): value for name, value in content["defaults"].items()})


OLD, NEW = nvidia("26.3.3"), nvidia("26.7.0")


def review(overrides: dict[str, Any], told: Cluster = NOTHING_KNOWN, **other: Any) -> values.Review:
    return values.review(overrides, OLD, NEW, RELEASES, told, **other)


def said(found: values.Review, *kinds: str) -> list[tuple[str, str]]:
    return [(each.kind, each.path) for each in found.notices if each.kind in kinds]


def test_5_2_a_value_that_is_the_old_default_is_dropped_so_that_the_new_one_applies() -> None:
    found = review(tree(driver__version="580.126.20", driver__rdma__enabled=True))
    assert found.overrides == tree(driver__rdma__enabled=True)
    assert trees.get(trees.merge(NEW, found.overrides), "driver.version") == "595.91.07"
    assert said(found, "drop") == [("drop", "driver.version")]


def test_5_2_a_value_that_is_the_new_default_is_dropped_too_and_what_shall_stay_stays() -> None:
    both = tree(driver__version="580.126.20", dcgmExporter__serviceMonitor__enabled=True)
    assert review(both).overrides == {}
    assert review(both, keep=("driver.version",)).overrides == tree(driver__version="580.126.20")


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("driver.rdma.enable", "did you mean driver.rdma.enabled?"),
        ("operatr.image", "did you mean operator?"),
        ("toolkit.kernelModuleType", "did you mean driver.kernelModuleType?"),
        ("zzz.qqq", "remove it"),
    ],
)
def test_5_2_unknown_names_have_the_nearest_and_stay_in_the_file(path: str, near: str) -> None:
    overrides = of({path: 1})
    found = review(overrides)
    (notice,) = [each for each in found.notices if each.kind == "unknown"]
    assert (notice.level, notice.fix) == (Level.WARN, near)
    assert path.startswith(notice.path)
    assert found.overrides == overrides


@pytest.mark.parametrize(
    "path",
    [
        r"operator.nodeSelector.example\.org/pool",
        "daemonsets.labels.team",
        "driver.resources.limits.memory",
        "node-feature-discovery.worker.nodeSelector.a",
        "global.imagePullSecrets",
        "dcgmExporter.args",
        "driver.licensingConfig.configMapName",
        "validator.cuda.env",
        "hostPaths.kubeletRootDir",
        "devicePlugin.config.data.default",
        "nameOverride",
    ],
)
def test_5_2_names_that_charts_read_without_a_default_are_known(path: str) -> None:
    assert said(review(of({path: ["x"]})), "unknown") == []


def test_every_name_that_only_nvidias_templates_read_is_known() -> None:
    names = yaml.safe_load((ROOT / "tests/data/nvidia-values/26.7.0.yaml").read_text(encoding="utf-8"))["also"]
    unknown = [name for name in names if not values.known(NEW, trees.parse(name))]
    assert unknown == []


def test_a_removed_value_is_dropped_and_told_once_with_its_release() -> None:
    found = review(tree(cdi__default=True, driver__useOpenKernelModules=False))
    assert found.overrides == {}
    assert {(each.path, str(each.release)) for each in found.notices if each.level < Level.INFO and each.certain} >= {
        ("cdi.default", "v25.10.0"),
        ("driver.useOpenKernelModules", "v25.3.0"),
    }
    assert said(found, "unknown") == []


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (tree(driver__useOpenKernelModules=True), tree(driver__kernelModuleType="open")),
        (
            tree(driver__useOpenKernelModules=True, driver__kernelModuleType="proprietary"),
            tree(driver__kernelModuleType="proprietary"),
        ),
    ],
)
def test_a_value_with_a_successor_is_moved_unless_the_successor_is_set(overrides: Any, wanted: Any) -> None:
    assert review(overrides).overrides == wanted


@pytest.mark.parametrize(
    ("path", "version", "level", "text"),
    [
        ("toolkit.version", "v1.18.1", Level.WARN, "pinned to v1.18.1, older than the release's v1.20.0"),
        ("dcgm.version", "4.7.0-1-ubuntu24.04", Level.INFO, "newer than the release's 4.6.0-1-ubuntu24.04"),
        ("driver.version", "580", Level.WARN, "pinned to 580, older than the release's 595.91.07"),
        ("driver.version", "610.57.04", Level.INFO, "newer"),
        ("validator.version", "v26.3.3", Level.WARN, "older than the release's v26.7.0"),
        ("gfd.version", "sha256:" + "a" * 64, Level.INFO, "cannot be compared"),
    ],
)
def test_5_2_pins_are_compared_with_the_targets_components(path: str, version: str, level: Level, text: str) -> None:
    (notice,) = [each for each in review(of({path: version})).notices if each.kind == "pin"]
    assert (notice.path, notice.level) == (path, level)
    assert text in notice.text


def test_5_2_a_list_hides_what_the_new_default_has_more() -> None:
    old = tree(operator__tolerations=[{"key": "master"}])
    new = tree(operator__tolerations=[{"key": "control-plane"}])
    mine = tree(operator__tolerations=[{"key": "mine"}])
    found = values.review(mine, old, new, RELEASES)
    assert said(found, "list") == [("list", "operator.tolerations")]
    assert trees.merge(new, found.overrides) == mine
    assert said(values.review(mine, old, old, RELEASES), "list") == []


def test_16_each_override_is_compared_not_the_full_defaults() -> None:
    overrides = of({"driver.version": "570.1", "cdi.enabled": False, "mig.strategy": "single", "toolkit.foo": 1})
    found = {each.path: (each.state, each.old, each.mine, each.new) for each in review(overrides).differences}
    assert found == {
        "driver.version": ("default changed", "580.126.20", "570.1", "595.91.07"),
        "cdi.enabled": ("kept", True, False, True),
        "mig.strategy": ("old default", "single", "single", "single"),
        "toolkit.foo": ("unknown", None, 1, None),
    }


def test_16_values_that_may_be_secret_are_in_no_text() -> None:
    overrides = of({"driver.env": [{"name": "TOKEN", "value": "hunter2"}], "driver.tokn": "hunter2"})
    assert "hunter2" not in repr(review(overrides).notices)


def gpus(*names: str) -> Cluster:
    return Cluster(gpus={name: MATRIX.gpu.architectures[name] for name in names})


@pytest.mark.parametrize(
    ("told", "overrides", "driver", "fix"),
    [
        (gpus("volta"), {}, "580.173.02", ""),
        (gpus("pascal", "hopper"), {}, "580.173.02", "describe drivers by NVIDIADriver objects"),
        (gpus("hopper"), {}, None, ""),
        (NOTHING_KNOWN, {}, None, ""),
        (gpus("volta"), tree(driver__version="580.126.20"), "580.173.02", ""),
        (gpus("volta"), tree(driver__version="580.178.04"), "580.178.04", ""),
        (gpus("volta"), tree(driver__enabled=False), None, ""),
    ],
)
def test_4_a_driver_of_the_last_branch_for_old_gpus_is_kept(told: Any, overrides: Any, driver: Any, fix: str) -> None:
    found = review(overrides, told)
    assert trees.get(found.overrides, "driver.version") == driver
    assert fix in "".join(each.fix for each in found.notices if each.kind == "add")
    if driver == "580.173.02":
        assert said(found, "add", "drop") == [("add", "driver.version")]


def test_4_a_precompiled_driver_is_kept_by_its_branch() -> None:
    found = review(tree(driver__usePrecompiled=True), gpus("volta"))
    assert found.overrides == tree(driver__usePrecompiled=True, driver__version="580")


def test_4_nothing_is_added_against_the_administrators_will() -> None:
    assert review({}, gpus("volta"), keep=("driver.version",)).overrides == {}


def test_5_3_what_the_new_chart_refuses_is_told_first() -> None:
    found = review(tree(cdi__nriPluginEnabled=True, toolkit__enabled=False))
    assert found.refused
    assert [each.text for each in found.notices if each.kind == "refused"] == [
        "cdi.nriPluginEnabled needs the container toolkit, which runs the NRI plugin"
    ]
    assert not review({}).refused


def test_notices_are_worst_first() -> None:
    levels = [each.level for each in review(tree(cdi__default=True, driver__version="1.0")).notices]
    assert levels == sorted(levels)
    assert levels[0] == Level.BREAKS


def test_a_release_that_the_matrix_does_not_list_has_no_components() -> None:
    assert values.Releases.of(MATRIX, V26_3, Version(26, 7, 9)).components == {}


@pytest.mark.parametrize("release", [V26_3, V26_7])
def test_groundplanes_own_chart_as_of_a_release(release: Version) -> None:
    chart = ROOT / "deploy/chart"
    written = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    by_release = yaml.safe_load((chart / "files/releases.yaml").read_text(encoding="utf-8"))
    found = values.chart_defaults(written, by_release, release)
    theirs = nvidia(release.number)
    for path in ("driver.version", "toolkit.version", "dcgmExporter.serviceMonitor.enabled", "dcgm.version"):
        assert trees.get(found, path) == trees.get(theirs, path)


PATHS = ["driver.version", "driver.enabled", "cdi.enabled", "toolkit.env", "mig.strategy", "operator.labels.a", "x.y"]
SOME = st.sampled_from([True, False, "580.126.20", "595.91.07", "single", [], [1]])
OVERRIDES = st.dictionaries(st.sampled_from(PATHS), SOME).map(of)


@given(OVERRIDES)
def test_dropping_what_is_proposed_changes_nothing_on_the_old_chart(overrides: Any) -> None:
    proposed = {
        trees.parse(each.path) for each in values.differences(overrides, OLD, NEW) if each.state == "old default"
    }
    left = trees.without(overrides, proposed)
    assert trees.same(trees.merge(OLD, left), trees.merge(OLD, overrides))


@given(OVERRIDES)
def test_a_review_of_its_own_outcome_proposes_nothing_more(overrides: Any) -> None:
    once = values.review(overrides, OLD, NEW, RELEASES)
    again = values.review(once.overrides, NEW, NEW, RELEASES._replace(source=V26_7))
    assert again.overrides == once.overrides
    assert said(again, "drop", "move", "add") == []


@given(OVERRIDES)
def test_only_proposals_change_what_the_new_chart_gets(overrides: Any) -> None:
    found = values.review(overrides, OLD, NEW, RELEASES)
    free = {each.path for each in found.differences if each.state == "old default"}
    before, after = trees.merge(NEW, overrides), trees.merge(NEW, found.overrides)
    for path, value in trees.leaves(before):
        assert trees.dotted(path) in free or trees.same(trees.get(after, path), value)
