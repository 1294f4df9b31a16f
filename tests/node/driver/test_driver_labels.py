"""The pause protocol (contracts/driver-lifecycle.md 5.2): all rows of its table, what is written and waited for."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.node.driver import labels
from groundplane.node.driver.labels import PAUSED

V26_3, V26_7 = Release.V26_3, Release.V26_7
PREFIX = "nvidia.com/gpu.deploy."
CUSTOM = "example.com/agent"

VALUES = [
    # found, pause writes, restore writes
    ("", "", ""),
    ("true", "paused-for-driver-upgrade", "true"),
    ("false", "false", "false"),
    ("paused-for-driver-upgrade", "paused-for-driver-upgrade", "true"),
    ("x_paused-for-driver-upgrade", "x_paused-for-driver-upgrade", "x"),
    ("paused-for-driver-upgrade_x", "paused-for-driver-upgrade_x", "x"),
    ("x_paused-for-driver-upgrade_y", "x_paused-for-driver-upgrade_y", "x_y"),
    ("paused-for-mig-change", "paused-for-mig-change_paused-for-driver-upgrade", "paused-for-mig-change"),
    ("pre-installed", "pre-installed_paused-for-driver-upgrade", "pre-installed"),
    ("True", "True_paused-for-driver-upgrade", "True"),
    ("a_b", "a_b_paused-for-driver-upgrade", "a_b"),
]


@pytest.mark.parametrize(("found", "paused", "restored"), VALUES)
def test_5_2_values(found: str, paused: str, restored: str) -> None:
    assert labels.paused(found) == paused
    assert labels.restored(found) == restored
    assert labels.restored(paused) == restored


alphanumeric = st.sampled_from(string.ascii_letters + string.digits)
values = st.one_of(
    st.sampled_from([found for found, *_ in VALUES]),
    st.tuples(alphanumeric, st.text(string.ascii_lowercase + "-_.", max_size=30), alphanumeric).map("".join),
)


@given(values)
def test_5_2_what_was_paused_comes_back_as_it_was(value: str) -> None:
    assert labels.restored(labels.paused(value)) == labels.restored(value)
    assert labels.paused(labels.paused(value)) == labels.paused(value)
    assert labels.restored(labels.restored(value)) == labels.restored(value)
    assert PAUSED not in labels.restored(value)
    assert labels.paused(value) != "true"  # operands select on true: none runs while paused


ALWAYS = {
    *("operator-validator", "container-toolkit", "device-plugin", "gpu-feature-discovery", "dcgm-exporter", "dcgm"),
    *("nvsm", "sandbox-validator", "sandbox-device-plugin", "vgpu-device-manager"),
}
DRA = {"dra-validator", "dcgm-dra", "dcgm-exporter-dra"}
IF_SET = {"mig-manager"}
KEYS = {
    # release: written without a value when pausing, when restoring; written only with a value when pausing
    V26_3: (ALWAYS, ALWAYS, IF_SET),
    V26_7: (ALWAYS | DRA, ALWAYS | DRA | {"dra-driver"}, IF_SET | {"client"}),
}
NEVER = {"driver", "vgpu-manager", "node-status-exporter", "operands", "vfio-manager", "kata-manager", "cc-manager"}
EVERY = ALWAYS | DRA | IF_SET | NEVER | {"client", "dra-driver"}


def short(changes: dict[str, str]) -> set[str]:
    return {key.removeprefix(PREFIX) for key in changes}


@pytest.mark.parametrize("release", [V26_3, V26_7])
def test_5_2_keys(release: Release) -> None:
    on_pause, on_restore, if_set = KEYS[release]
    assert short(labels.pause({}, release, CUSTOM)) == on_pause
    assert short(labels.restore({}, release, CUSTOM)) == on_restore
    assert set(labels.pause({}, release).values()) == set(labels.restore({}, release).values()) == {""}
    full = {f"{PREFIX}{name}": "true" for name in EVERY} | {CUSTOM: "true"}
    assert short(labels.pause(full, release, CUSTOM)) == on_pause | if_set | {CUSTOM}
    assert short(labels.restore(full, release, CUSTOM)) == on_restore | if_set | {CUSTOM}
    assert CUSTOM not in labels.pause(full, release)
    empty = dict.fromkeys(full, "")
    assert short(labels.pause(empty, release, CUSTOM)) == on_pause


@given(
    st.dictionaries(st.sampled_from(sorted(EVERY)), values), st.sampled_from(list(Release)), st.text("ab", max_size=1)
)
def test_5_2_a_run_that_was_killed_is_healed_by_the_next(found: dict[str, str], release: Release, custom: str) -> None:
    node = {f"{PREFIX}{name}": value for name, value in found.items()} | {"a": "true"}
    killed = node | labels.pause(node, release, custom) | labels.pause_dra(node, release)
    healed = killed | labels.restore(killed, release, custom)
    assert healed == node | labels.restore(node, release, custom)
    for key in healed.keys() & labels.restore(node, release, custom).keys():
        assert PAUSED not in healed[key]


def test_5_4_the_dra_plugin_is_paused_by_itself() -> None:
    key = names.DEPLOY_DRA_DRIVER
    assert labels.pause_dra({key: "true"}, V26_7) == {key: PAUSED}
    assert labels.pause_dra({key: PAUSED}, V26_7) == {key: PAUSED}
    assert labels.pause_dra({key: "false"}, V26_7) == {key: "false"}
    assert labels.pause_dra({key: ""}, V26_7) == labels.pause_dra({}, V26_7) == {}
    assert labels.pause_dra({key: "true"}, V26_3) == {}
    assert labels.DRA_PLUGIN.app == "nvidia-dra-driver-kubelet-plugin"


FIRST = [
    *("nvidia-operator-validator", "nvidia-container-toolkit-daemonset", "nvidia-device-plugin-daemonset"),
    *("gpu-feature-discovery", "nvidia-dcgm-exporter", "nvidia-dcgm"),
]
LATER = [
    (names.DEPLOY_MIG_MANAGER, "nvidia-mig-manager"),
    (names.DEPLOY_SANDBOX_VALIDATOR, "nvidia-sandbox-validator"),
    (names.DEPLOY_SANDBOX_DEVICE_PLUGIN, "nvidia-sandbox-device-plugin-daemonset"),
    (names.DEPLOY_VGPU_DEVICE_MANAGER, "nvidia-vgpu-device-manager"),
]


@pytest.mark.parametrize(("release", "more"), [(V26_3, []), (V26_7, ["nvidia-dcgm-exporter-dra", "nvidia-dcgm-dra"])])
def test_5_2_waits_in_order(release: Release, more: list[str]) -> None:
    assert labels.apps({}, release) == FIRST + more
    assert labels.apps({key: "false" for key, _ in LATER}, release) == FIRST + more + [app for _, app in LATER]
    for key, app in LATER:
        assert labels.apps({key: "true"}, release) == [*FIRST, *more, app]
        assert labels.apps({key: ""}, release) == FIRST + more
    assert labels.clients({names.DEPLOY_CLIENT: "x"}, release) is (release is V26_7)
    assert not labels.clients({names.DEPLOY_CLIENT: ""}, release)


def test_a_value_that_has_no_room_for_the_mark() -> None:
    fits, not_so = "x" * 37, "x" * 38
    assert len(labels.pause({CUSTOM: fits}, V26_7, CUSTOM)[CUSTOM]) == 63
    with pytest.raises(ValueError, match="too long to be paused"):
        labels.pause({CUSTOM: not_so}, V26_7, CUSTOM)
