"""What is kept before an upgrade or a rollback: values, custom resources, history, nodes, workloads, a baseline (A88).

A folder below the administrator's records, readable by its owner only: values and custom resources are kept as they
are, secrets included, as they may be needed to come back; whoever shows them redacts. A folder is whole or not there:
it is written beside and then renamed.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from ..cluster import gpupods
from ..cluster.eviction import Pod
from ..diagnose.survey import Object, Survey
from . import baseline, releases

MANIFEST: Final = "savepoint.json"


class SavepointError(Exception):
    """There is no savepoint at a path, or a damaged one; the message says what to do."""


class Workload(msgspec.Struct, frozen=True):
    """A pod that held a GPU; ``controller`` is empty if nothing makes it anew."""

    pod: str
    node: str
    controller: str = ""


class Savepoint(msgspec.Struct, frozen=True, kw_only=True):
    """What was kept, without the files' contents."""

    server: str
    release: str
    source: str
    target: str
    revision: int
    at: float
    workloads: tuple[Workload, ...] = ()


def save(
    folder: Path, survey: Survey, release: str, source: str, target: str, taken: baseline.Baseline
) -> Savepoint:  # fmt: skip
    """Write a savepoint to a folder that is not there yet, or replace one. Raises OSError."""
    history = releases.history(survey).of(release)
    last = next((each for each in history if each.status == "deployed"), history[0])
    made = Savepoint(
        server=survey.server,
        release=release,
        source=source,
        target=target,
        revision=last.revision,
        at=time.time(),
        workloads=tuple(_workloads(survey)),
    )
    files: dict[str, str] = {
        "values.yaml": _yaml(dict(last.values)),
        "clusterpolicies.yaml": _documents(survey.of_kind("clusterpolicies")),
        "nvidiadrivers.yaml": _documents(survey.of_kind("nvidiadrivers")),
        "history.json": json.dumps([_line(each) for each in history], indent=1),
        "nodes.json": json.dumps([_node(each) for each in survey.of_kind("nodes")], indent=1),
        MANIFEST: json.dumps(msgspec.to_builtins(made), indent=1),
    }
    beside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True, mode=0o700)
    for name, text in files.items():
        _write(beside / name, text)
    baseline.save(taken, beside / "baseline")
    _close(beside)
    if folder.exists():
        shutil.rmtree(folder)
    beside.rename(folder)
    return made


def _write(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _close(folder: Path) -> None:
    """For the owner only, whatever wrote it."""
    for each in folder.rglob("*"):
        each.chmod(0o700 if each.is_dir() else 0o600)


def load(folder: Path) -> Savepoint:
    """Read what was kept. Raises :class:`SavepointError`."""
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Savepoint)
    except (OSError, msgspec.DecodeError) as error:
        raise SavepointError(f"{folder} is no savepoint: {error}") from None


def newest(place: Path, target: str = "") -> Path | None:
    """The newest savepoint in a folder: of an upgrade to ``target``, if that is given."""
    for each in sorted(place.glob("*"), reverse=True):
        try:
            if not target or load(each).target == target:
                return each
        except SavepointError:
            continue
    return None


def _workloads(survey: Survey) -> Iterator[Workload]:
    claims = None
    pods = [msgspec.convert(each, Pod) for each in survey.of_kind("pods")]
    for pod in gpupods.to_upgrade(pods, claims):
        owner = f"{pod.controller.kind} {pod.controller.name}" if pod.controller is not None else ""
        yield Workload(str(pod), pod.spec.nodeName, owner)


def _line(revision: releases.Revision) -> dict[str, Any]:
    return {
        "revision": revision.revision,
        "status": revision.status,
        "chart": f"{revision.chart} {revision.chart_version}",
        "updated": revision.updated,
        "description": revision.description,
    }


def _node(node: Object) -> dict[str, Any]:
    metadata, spec = node["metadata"], node.get("spec") or {}
    return {
        "name": metadata["name"],
        "labels": metadata.get("labels") or {},
        "annotations": metadata.get("annotations") or {},
        "taints": spec.get("taints") or [],
        "unschedulable": bool(spec.get("unschedulable")),
    }


def _documents(found: tuple[Object, ...]) -> str:
    return "".join(f"---\n{_yaml(each)}" for each in found)


def _yaml(document: Mapping[str, Any]) -> str:
    return str(yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=True, allow_unicode=True))
