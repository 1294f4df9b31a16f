"""Flags, environment, logs, metrics and the executable's entry."""

import asyncio
import io
import json
import logging
import os
import signal
from collections.abc import Iterator

import pytest
import yaml
from operator_harness import NS, Cluster

from groundplane.api.release import Release
from groundplane.operator import logs, main, settings
from groundplane.operator.metrics import COUNTERS, GAUGES, Metrics
from groundplane.operator.settings import SettingsError

ENV = {"OPERATOR_NAMESPACE": "gpu", "DRIVER_IMAGE": "drv:1", "GFD_IMAGE": "", "OTHER_IMAGE": "x"}


def test_defaults() -> None:
    found = settings.parse([], ENV)
    assert (found.namespace, found.metrics_address, found.health_address) == ("gpu", ":8080", ":8081")
    assert (found.leader_elect, found.lease_namespace) == (False, "gpu")
    assert (found.renew_deadline_s, found.lease_duration_s) == (10, 15)
    assert found.release is Release.DEFAULT
    assert found.default_images == {"DRIVER_IMAGE": "drv:1"}
    assert (found.log_level, found.log_devel, found.log_time) == (logging.INFO, False, "epoch")


def test_flags_of_the_chart() -> None:
    argv = ["--leader-elect", "--zap-time-encoding=epoch", "--zap-log-level=info"]
    assert settings.parse(argv, ENV).leader_elect


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["-leader-elect=false"], "leader_elect", False),
        (["--leader-elect", "true"], "leader_elect", True),
        (["--leader-elect-namespace", "kube-system"], "lease_namespace", "kube-system"),
        (["--leader-lease-renew-deadline=1m30s"], "renew_deadline_s", 90),
        (["--leader-lease-renew-deadline=2500ms"], "renew_deadline_s", 2.5),
        (["--leader-lease-renew-deadline", "0"], "renew_deadline_s", 10),
        (["--leader-lease-renew-deadline=20s"], "lease_duration_s", 25),
        (["--metrics-bind-address=0"], "metrics_address", ""),
        (["--health-probe-bind-address", "127.0.0.1:9"], "health_address", "127.0.0.1:9"),
        (["--release", "26.3"], "release", Release.V26_3),
        (["--zap-log-level", "error"], "log_level", logging.ERROR),
        (["--zap-log-level", "5"], "log_level", logging.DEBUG),
        (["--zap-devel"], "log_level", logging.DEBUG),
        (["--zap-devel"], "log_time", "iso8601"),
        (["--zap-devel", "--zap-time-encoding=millis"], "log_time", "millis"),
        (["--node-writes-in-flight", "4"], "node_writes_in_flight", 4),
    ],
)
def test_flags(argv: list[str], field: str, value: object) -> None:
    assert getattr(settings.parse(argv, ENV), field) == value


def test_the_release_comes_from_the_environment_too() -> None:
    assert settings.parse([], ENV | {"GROUNDPLANE_RELEASE": "v26.3.3"}).release is Release.V26_3


@pytest.mark.parametrize(
    "argv",
    [
        ["--leader-elect=perhaps"],
        ["--leader-lease-renew-deadline=soon"],
        ["--leader-lease-renew-deadline="],
        ["--zap-log-level=loud"],
        ["--zap-time-encoding=sundial"],
        ["--node-writes-in-flight=0"],
        ["--no-such-flag"],
    ],
)
def test_malformed_flags(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        settings.parse(argv, ENV)
    assert stopped.value.code == 2
    assert argv[0].partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "env", "said"),
    [
        ([], {}, "OPERATOR_NAMESPACE"),
        (["--release=25.1"], ENV, "25.1"),
        (["--leader-lease-renew-deadline=1s"], ENV, "--leader-lease-renew-deadline"),
    ],
)
def test_settings_that_cannot_work(argv: list[str], env: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        settings.parse(argv, env)


@pytest.mark.parametrize(
    ("text", "expected"), [(":8080", ("0.0.0.0", 8080)), ("[::1]:1", ("::1", 1)), ("127.0.0.1:0", ("127.0.0.1", 0))]
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert settings.split_address(text) == expected


@pytest.mark.parametrize("text", ["8080", ":http", ":99999"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(SettingsError, match="address"):
        settings.split_address(text)


# --- logs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("epoch", 1.5),
        ("millis", 1500.0),
        ("nano", 1500000000),
        ("iso8601", "1970-01-01T00:00:01.500Z"),
        ("rfc3339", "1970-01-01T00:00:01Z"),
        ("rfc3339nano", "1970-01-01T00:00:01.500000Z"),
    ],
)
def test_log_times(encoding: str, expected: object) -> None:
    record = logging.makeLogRecord({"name": "groundplane.operator.x", "msg": "hi", "levelno": 20, "created": 1.5})
    entry = json.loads(logs.JsonFormatter(encoding).format(record))
    assert entry == {"level": "info", "ts": expected, "logger": "operator.x", "msg": "hi"}


def test_every_encoding_of_the_flag_exists() -> None:
    assert set(logs.ENCODERS) == set(settings.TIME_ENCODINGS)


def test_log_lines(root_logger: None) -> None:
    for devel in (False, True):
        out = io.StringIO()
        logs.configure(level=logging.INFO, devel=devel, time_encoding="iso8601", stream=out)
        logging.getLogger("groundplane.t").debug("hidden")
        logging.getLogger("groundplane.t").info("seen")
        try:
            raise ValueError("broken")
        except ValueError:
            logging.getLogger("groundplane.t").exception("failed")
        first, second, *_ = out.getvalue().splitlines()
        if devel:
            assert first.endswith("\tINFO\tt\tseen")
            assert "ValueError: broken" in out.getvalue()
        else:
            assert json.loads(first)["msg"] == "seen"
            assert json.loads(second)["error"] == "broken"


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_metric_names() -> None:
    text = Metrics().expose().decode()
    for name in [*GAUGES, *(f"{counter}_total" for counter in COUNTERS)]:
        assert f"\ngpu_operator_{name} 0.0" in text


def test_metrics_are_counted() -> None:
    figures = Metrics()
    figures.count_pass(failed=True)
    figures.count_pass(failed=False)
    figures.set("gpu_nodes_total", 3)
    assert figures.get("reconciliation_total") == 2
    assert figures.get("reconciliation_failed_total") == 1
    assert figures.get("gpu_nodes_total") == 3
    with pytest.raises(KeyError, match="nonsense"):
        figures.get("nonsense")


# --- the executable ---------------------------------------------------------------------------------------------------


def test_without_its_namespace_it_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPERATOR_NAMESPACE", raising=False)
    assert main.main([]) == 1
    assert "OPERATOR_NAMESPACE" in capsys.readouterr().err


def test_a_bad_address_is_found_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPERATOR_NAMESPACE", "gpu")
    assert main.main(["--metrics-bind-address=nowhere"]) == 1
    assert "nowhere" in capsys.readouterr().err


async def test_it_runs_until_sigterm(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: object, root_logger: None
) -> None:
    kubeconfig = f"{tmp_path}/config"
    with open(kubeconfig, "w") as file:  # noqa: PTH123
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": cluster.api.url}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            },
            file,
        )
    cluster.nodes(1)
    cluster.policy()
    chosen = settings.parse(
        ["--kubeconfig", kubeconfig, "--metrics-bind-address=0", "--health-probe-bind-address=0"],
        {"OPERATOR_NAMESPACE": NS},
    )
    from groundplane.cluster.config import Config

    task = asyncio.create_task(main._run(chosen, Config.detect(kubeconfig=kubeconfig)))
    await cluster.until(lambda: cluster.status().get("state") == "ready")
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(task, 10)
