"""Options (contracts/mig-exporter-validator.md 4)."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node.fakeprocess import FakeProcess

from groundplane.api.release import Release
from groundplane.node.metrics import sampler, settings
from groundplane.node.metrics.settings import Selection, Settings
from groundplane.node.options import Asked, Leave, OptionError


def load(tmp_path: Path, *flags: str, release: Release = Release.DEFAULT, **env: str) -> Settings:
    process = FakeProcess(tmp_path, ["dcgm-exporter", *flags], env, release=release)
    process.write_kernel("/proc/sys/kernel/hostname", "the-host\n")
    return settings.load(process)


TABLE = [
    ("collectors", "f", "DCGM_EXPORTER_COLLECTORS", "/etc/dcgm-exporter/default-counters.csv"),
    ("address", "a", "DCGM_EXPORTER_LISTEN", ":9400"),
    ("collect-interval", "c", "DCGM_EXPORTER_INTERVAL", 30000),
    ("kubernetes", "k", "DCGM_EXPORTER_KUBERNETES", False),
    ("kubernetes-gpu-id-type", "", "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE", "uid"),
    ("kubernetes-enable-pod-labels", "", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", False),
    ("kubernetes-enable-pod-uid", "", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", False),
    ("kubernetes-pod-label-allowlist-regex", "", "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", ()),
    (
        "pod-resources-kubelet-socket",
        "",
        "DCGM_POD_RESOURCES_KUBELET_SOCKET",
        "/var/lib/kubelet/pod-resources/kubelet.sock",
    ),
    ("nvidia-resource-names", "", "NVIDIA_RESOURCE_NAMES", ()),
    ("kubernetes-virtual-gpus", "", "KUBERNETES_VIRTUAL_GPUS", False),
    ("kubernetes-enable-dra", "", "KUBERNETES_ENABLE_DRA", False),
    ("use-old-namespace", "o", "DCGM_EXPORTER_USE_OLD_NAMESPACE", False),
    ("configmap-data", "m", "DCGM_EXPORTER_CONFIGMAP_DATA", "none"),
    ("remote-hostengine-info", "r", "DCGM_REMOTE_HOSTENGINE_INFO", "localhost:5555"),
    ("devices", "d", "DCGM_EXPORTER_DEVICES_STR", "f"),
    ("switch-devices", "s", "DCGM_EXPORTER_OTHER_DEVICES_STR", "f"),
    ("cpu-devices", "p", "DCGM_EXPORTER_CPU_DEVICES_STR", "f"),
    ("no-hostname", "n", "DCGM_EXPORTER_NO_HOSTNAME", False),
    ("replace-blanks-in-model-name", "rbmn", "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME", False),
    ("xid-count-window-size", "x", "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE", 300000),
    ("clock-events-count-window-size", "", "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE", 300000),
    ("hpc-job-mapping-dir", "", "DCGM_HPC_JOB_MAPPING_DIR", ""),
    ("web-config-file", "", "DCGM_EXPORTER_WEB_CONFIG_FILE", ""),
    ("web-systemd-socket", "", "DCGM_EXPORTER_SYSTEMD_SOCKET", False),
    ("debug", "", "DCGM_EXPORTER_DEBUG", False),
    ("log-format", "", "DCGM_EXPORTER_LOG_FORMAT", "text"),
    ("enable-dcgm-log", "", "DCGM_EXPORTER_ENABLE_DCGM_LOG", False),
    ("dcgm-log-level", "", "DCGM_EXPORTER_DCGM_LOG_LEVEL", "NONE"),
    ("fake-gpus", "", "DCGM_EXPORTER_USE_FAKE_GPUS", False),
    ("disable-startup-validate", "", "DISABLE_STARTUP_VALIDATE", False),
    ("dump-enabled", "", "DCGM_EXPORTER_DUMP_ENABLED", False),
    ("dump-directory", "", "DCGM_EXPORTER_DUMP_DIRECTORY", "/tmp/dcgm-exporter-debug"),
    ("dump-retention", "", "DCGM_EXPORTER_DUMP_RETENTION", 24),
    ("dump-compression", "", "DCGM_EXPORTER_DUMP_COMPRESSION", True),
    ("enable-gpu-bind-unbind-watch", "", "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH", False),
    ("gpu-bind-unbind-poll-interval", "", "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL", "1s"),
    ("enable-pprof", "", "DCGM_EXPORTER_ENABLE_PPROF", False),
]


def test_4_every_option() -> None:
    known = {option.name: option for option in settings.COMMAND.options}
    ours = {"hostname-label", "kubeconfig"}
    assert known.keys() - ours == {row[0] for row in TABLE}
    for name, short, env, default in TABLE:
        option = known[name]
        assert option.flags == (name, *filter(None, [short])), name
        assert option.env == (env,)
        assert (str(option.default) if name.endswith("poll-interval") else option.default) == default


def test_4_defaults(tmp_path: Path) -> None:
    found = load(tmp_path)
    assert (found.host, found.port, found.interval_s, found.kubernetes) == (None, 9400, 30.0, False)
    assert (found.selection, found.config_map, found.bind_poll_s, found.dump_dir) == (Selection("f"), None, None, "")
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f", Selection("f")),
        ("g", Selection("g")),
        ("i", Selection("i")),
        ("g:0", Selection("g", (0,))),
        ("g:0,2-4", Selection("g", (0, 2, 3, 4))),
        ("i:3,1,1-2", Selection("i", (1, 2, 3))),
    ],
)
def test_4_device_strings(text: str, expected: Selection) -> None:
    assert settings.parse_selection(text) == expected


@pytest.mark.parametrize(
    "text", ["", "x", "gi", "f:0", "g:", "g:a", "g:3-1", "g:0:1", "g,i", "g:-1", "G", "g:0-99999999999"]
)
def test_4_wrong_device_strings(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|no numbers"):
        settings.parse_selection(text)
    with pytest.raises(OptionError, match=r"--devices, from the command line"):
        load(tmp_path, f"-d={text}")


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [(":9400", None, 9400), ("127.0.0.1:1", "127.0.0.1", 1), ("[::1]:80", "::1", 80), ("localhost:0", "localhost", 0)],
)
def test_4_addresses(tmp_path: Path, address: str, host: str | None, port: int) -> None:
    found = load(tmp_path, "-a", address)
    assert (found.host, found.port) == (host, port)


@pytest.mark.parametrize("address", ["", "9400", ":", ":65536", f":{'9' * 5000}", "::1:80", "[::1]", ":9400x", ":-1"])
def test_4_wrong_addresses(tmp_path: Path, address: str) -> None:
    with pytest.raises(OptionError, match=r"is no address to serve at; expected \[host\]:port"):
        load(tmp_path, f"--address={address}")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), "the-host"),
        (("-n",), ""),
        (("-r", "engine:5555"), "engine"),
        (("-r", "[fd00::1]:5555"), "fd00::1"),
        (("-r", "engine"), "engine"),
        (("-r", "engine:5555", "-k"), "the-host"),
    ],
)
def test_4_host_name(tmp_path: Path, flags: tuple[str, ...], expected: str) -> None:
    assert load(tmp_path, *flags).hostname == expected
    if expected == "the-host":
        assert load(tmp_path, *flags, NODE_NAME="node-7").hostname == "node-7"


@pytest.mark.parametrize(("release", "name"), [(Release.V26_3, "Hostname"), (Release.V26_7, "hostname")])
def test_4_the_hosts_label_is_named_by_release_and_can_be_chosen(tmp_path: Path, release: Release, name: str) -> None:
    assert load(tmp_path, release=release).hostname_label == name
    assert load(tmp_path, "--hostname-label", "host", release=release).hostname_label == "host"


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("--fake-gpus", "GROUNDPLANE_SIMULATION"),
        ("--web-systemd-socket", "not taken from systemd"),
        ("--switch-devices=g:0", "no figures of NVSwitches"),
        ("--cpu-devices=i:1", "no figures of CPUs"),
        ("--address=9400", r"expected \[host\]:port"),
        ("--address=:99999", "is no address"),
        ("--collect-interval=0", "0 is too little"),
        ("--kubernetes-gpu-id-type=index", "expected one of uid, device-name"),
        ("--log-format=xml", "expected one of text, json"),
        ("--dcgm-log-level=LOUD", "expected one of NONE"),
        ("--configmap-data=name", "<namespace>:<name>"),
        ("--hostname-label=a-b", "cannot be the name of a label"),
        ("--dump-retention=-1", "too little"),
        ("--no-such", "not defined"),
    ],
)
def test_4_what_cannot_be_is_refused(tmp_path: Path, flag: str, problem: str) -> None:
    with pytest.raises(Leave, match=problem):
        load(tmp_path, flag)


def test_what_has_no_effect_is_told(tmp_path: Path) -> None:
    found = load(tmp_path, "--enable-dcgm-log", "-r", "x:1", "--kubernetes-enable-pod-uid")
    assert len(found.warnings) == 3
    assert "this machine's driver" in found.warnings[0]


def test_5_5_regular_expressions_that_are_none_are_skipped(tmp_path: Path) -> None:
    found = load(tmp_path, "-k", "--kubernetes-pod-label-allowlist-regex", "^app, (, team")
    assert [each.pattern for each in found.label_allowlist] == ["^app", "team"]
    assert "'('" in found.warnings[0]
    assert all(isinstance(each, re.Pattern) for each in found.label_allowlist)


def test_help(tmp_path: Path) -> None:
    with pytest.raises(Asked, match="--collect-interval, -c int"):
        load(tmp_path, "--help")


@given(st.sets(st.integers(0, 40), min_size=1))
def test_4_numbers_and_ranges_are_the_same(numbers: set[int]) -> None:
    listed = settings.parse_selection("g:" + ",".join(map(str, numbers)))
    ranged = settings.parse_selection("g:" + ",".join(f"{number}-{number}" for number in numbers))
    assert listed == ranged == Selection("g", tuple(sorted(numbers)))


@pytest.mark.parametrize(
    ("interval_s", "age_s"), [(0.05, 5.1), (1, 7), (30, 65), (290, 585), (300, 600), (500, 600), (3600, 3605)]
)
def test_4_samples_are_shown_for_two_intervals_and_ten_minutes_at_most(interval_s: float, age_s: float) -> None:
    assert sampler.max_age(interval_s) == pytest.approx(age_s)
