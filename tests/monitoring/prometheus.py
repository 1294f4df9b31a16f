"""Prometheus' side of the tests: what a scrape becomes, names in PromQL, and promtool as the judge."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from testing.realcluster import build

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy" / "chart" / "files" / "monitoring"
RULES = FILES / "alerts.yaml"
DASHBOARD = FILES / "dashboard.json"
COUNTERS = FILES / "counters.csv"
RUNBOOK = ROOT / "docs" / "monitoring.md"

PROMTOOL = "promtool"


def rules() -> dict[str, dict[str, Any]]:
    """All alert rules by name."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in found}) == len(found)
    return {rule["alert"]: rule for rule in found}


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return document


def panels() -> list[dict[str, Any]]:
    """All panels, also those of rows that are closed at first."""
    return [each for panel in dashboard()["panels"] for each in (panel, *panel.get("panels", ()))]


# --- series -----------------------------------------------------------------------------------------------------------

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Key = tuple[str, tuple[tuple[str, str], ...]]


class Target(NamedTuple):
    """What Prometheus says of the process that it scrapes, and whether the process' own labels win."""

    job: str
    container: str
    honor_labels: bool = False

    def labels(self) -> dict[str, str]:
        return {
            "job": self.job,
            "instance": "10.244.0.7:9400",
            "namespace": "gpu-operator",
            "pod": f"{self.container}-x7k2p",
            "container": self.container,
            "service": self.job,
        }


EXPORTER = Target("nvidia-dcgm-exporter", "nvidia-dcgm-exporter")
NODE_STATUS = Target("nvidia-node-status-exporter", "nvidia-node-status-exporter")
OPERATOR = Target("gpu-operator", "gpu-operator")


def parse(body: str) -> dict[Key, float]:
    """The samples of a scrape by name and labels."""
    found = {}
    for line in body.splitlines():
        if line and not line.startswith("#"):
            match = _LINE.fullmatch(line)
            assert match is not None, line
            found[match[1], tuple(sorted(_LABEL.findall(match[2] or "")))] = float(match[3])
    return found


def stored(body: str, target: Target) -> dict[Key, float]:
    """The series that Prometheus keeps of a scrape of a target."""
    found = {}
    for (name, own), value in parse(body).items():
        labels = target.labels()
        for key, text in own:
            labels[f"exported_{key}" if key in target.labels() and not target.honor_labels else key] = text
        found[name, tuple(sorted(labels.items()))] = value
    found["up", tuple(sorted(target.labels().items()))] = 1.0
    return found


def series(key: Key) -> str:
    name, labels = key
    inner = ",".join(f'{label}="{value}"' for label, value in labels)
    return f"{name}{{{inner}}}"


# --- PromQL -----------------------------------------------------------------------------------------------------------

_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_MATCHERS = re.compile(r"\{([^{}]*)\}")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME = re.compile(r"(?<![\w$.])([a-zA-Z_:][\w:]*)\b(?!\s*\()")
_WORDS = frozenset(("and", "or", "unless", "offset", "bool", "inf", "nan"))


class Used(NamedTuple):
    """What an expression reads: names of series, and labels that it matches or groups by."""

    names: frozenset[str]
    labels: frozenset[str]


def used(expr: str) -> Used:
    """The names in an expression."""
    labels: set[str] = set()
    bare = _STRING.sub('""', expr)
    for matchers in _MATCHERS.findall(bare):
        labels |= {re.split(r"[=!~]", each, maxsplit=1)[0].strip() for each in matchers.split(",") if each}
    bare = _MATCHERS.sub("", bare)
    for grouping in _GROUPING.findall(bare):
        labels |= {each.strip() for each in grouping.split(",") if each.strip()}
    bare = re.sub(r"\[[^\]]*\]", "", _GROUPING.sub("", bare))
    names = {name for name in _NAME.findall(bare) if name.lower() not in _WORDS}
    return Used(frozenset(names), frozenset(labels))


VARIABLES = {"$cluster": ".*", "$host": "hostname", "$node": ".*", "$gpu": ".*", "$__rate_interval": "5m"}
"""What the dashboard's variables are when all is chosen."""


def filled(expr: str, **more: str) -> str:
    """An expression of the dashboard as Grafana sends it."""
    for name, value in {**VARIABLES, **{f"${key}": value for key, value in more.items()}}.items():
        expr = expr.replace(name, value)
    assert "$" not in _STRING.sub("", expr), expr
    return expr


# --- promtool ---------------------------------------------------------------------------------------------------------


def promtool() -> Path:
    """The promtool that is built or installed here; the test is skipped where there is none."""
    if build.built([PROMTOOL]):
        return build.ensure([PROMTOOL])[PROMTOOL]
    found = shutil.which(PROMTOOL)
    if found is None:
        pytest.skip(f"no {PROMTOOL}: build it with python -m testing.realcluster {PROMTOOL}, or put one on PATH")
    return Path(found)


def run(*arguments: str | Path, given: str = "") -> tuple[int, str]:
    """Run promtool; its exit status and all that it said."""
    done = subprocess.run(
        [str(promtool()), *map(str, arguments)], input=given, capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


MINUTES_BEFORE = 70
"""How long all is well first; longer than any rule looks back."""


class Course(NamedTuple):
    """What Prometheus has kept: all series before something happened, and after. ``grows``: and so on each minute."""

    before: Mapping[Key, float]
    after: Mapping[Key, float]
    grows: bool = False

    def inputs(self, minutes: int) -> list[dict[str, str]]:
        """The series, a value each minute."""
        return [
            {"series": series(key), "values": f"{self._first(key)} {self._then(key, minutes)}"}
            for key in sorted({*self.before, *self.after})
        ]

    def _first(self, key: Key) -> str:
        return f"{self.before[key]!r}+0x{MINUTES_BEFORE - 1}" if key in self.before else f"_x{MINUTES_BEFORE}"

    def _then(self, key: Key, minutes: int) -> str:
        if key not in self.after:
            return "stale"
        step = self.after[key] - self.before.get(key, self.after[key]) if self.grows else 0.0
        return f"{self.after[key]!r}+{step!r}x{minutes}" if step >= 0 else f"{self.after[key]!r}{step!r}x{minutes}"


def fires(course: Course, minutes: int, expected: Iterable[str]) -> dict[str, Any]:
    """A test for promtool: just these alerts fire after some minutes, and none before."""
    found = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(expected)]
    firing = 'group by (alertname) (ALERTS{alertstate="firing"})'
    return {
        "interval": "1m",
        "input_series": course.inputs(minutes + 5),
        "promql_expr_test": [
            {"expr": firing, "eval_time": f"{MINUTES_BEFORE - 1}m", "exp_samples": []},
            {"expr": firing, "eval_time": f"{MINUTES_BEFORE + minutes}m", "exp_samples": found},
        ],
    }


def check(folder: Path, tests: Sequence[Mapping[str, Any]]) -> None:
    """Have promtool run tests of the rules."""
    file = folder / "tests.yaml"
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": list(tests)}
    file.write_text(yaml.safe_dump(document, sort_keys=False, width=10000), encoding="utf-8")
    code, told = run("test", "rules", file)
    assert code == 0, told
