"""Helm's releases out of their Secrets: what is read, and what is told of those that cannot be."""

import base64
import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.admin.hops import Version
from groundplane.admin.releases import NVIDIAS, OURS, ReleaseError, history, of_secret
from groundplane.diagnose.survey import Survey

NVIDIA = {"name": "gpu-operator", "version": "v26.3.3", "appVersion": "v26.3.3", "description": "NVIDIA GPU Operator"}
GROUNDPLANE = {"name": "gpu-operator", "version": "0.1.0", "description": "Installs groundplane's operator"}


def release(
    revision: int = 1, status: str = "deployed", chart: Any = NVIDIA, name: str = "gpu-operator", **more: Any
) -> Any:
    return {
        "name": name,
        "namespace": "gpu-operator",
        "version": revision,
        "info": {"status": status, "last_deployed": "2026-12-01T00:00:00Z", "description": "done"},
        "chart": {"metadata": chart, "values": {"operator": {"release": "26.7.0"}}, "templates": None},
        "config": {"driver": {"enabled": False}},
        "manifest": "---\n",
        "hooks": [{"name": "upgrade-crd", "kind": "Job", "manifest": "x", "events": ["pre-upgrade"]}],
        **more,
    }


def secret(stored: Any, packed: bool = True) -> dict[str, Any]:
    text = stored if isinstance(stored, bytes) else json.dumps(stored).encode()
    inner = base64.b64encode(gzip.compress(text) if packed else text)
    name = f"sh.helm.release.v1.{stored['name']}.v{stored['version']}" if isinstance(stored, dict) else "broken"
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "helm.sh/release.v1",
        "metadata": {"name": name, "namespace": "gpu-operator"},
        "data": {"release": base64.b64encode(inner).decode()},
    }


@pytest.mark.parametrize("packed", [True, False], ids=["gzip", "plain"])
def test_a_revision_is_read(packed: bool) -> None:
    found = of_secret(secret(release(3), packed))
    assert (found.where, found.revision, found.status) == ("gpu-operator/gpu-operator", 3, "deployed")
    assert (found.chart_version, found.maker, found.behaves_like) == ("v26.3.3", NVIDIAS, Version(26, 3, 3))
    assert found.values == {"driver": {"enabled": False}} and found.hooks[0].events == ("pre-upgrade",)


@pytest.mark.parametrize(
    ("values", "like"), [({}, "26.7.0"), ({"operator": {"release": "26.3.3"}}, "26.3.3"), ({"operator": {}}, "26.7.0")]
)
def test_our_chart_behaves_like_the_release_that_it_was_told(values: Any, like: str) -> None:
    found = of_secret(secret(release(chart=GROUNDPLANE, config=values)))
    assert found.maker == OURS and found.behaves_like is not None and found.behaves_like.number == like


def test_the_history_is_newest_first_and_knows_what_is_in_force() -> None:
    stored = [release(1, "superseded"), release(3, "pending-upgrade"), release(2), release(10, "failed")]
    other = release(1, chart={"name": "nginx", "version": "1"}, name="web")
    found = history(Survey.of([*map(secret, stored), secret(other), secret(b"no json")]))
    assert [each.revision for each in found.revisions] == [10, 3, 2, 1]
    last, deployed = found.last(), found.deployed()
    assert last is not None and last.status == "failed" and deployed is not None and deployed.revision == 2
    assert found.releases == ("gpu-operator/gpu-operator",) and found.unread == ""
    (broken,) = found.broken
    assert "Secret gpu-operator/broken does not hold a release" in broken


def test_secrets_that_were_not_read_are_told() -> None:
    assert history(Survey.of([])).unread == "it was not captured"
    assert history(Survey.of([], unread={"secrets": "forbidden"})).unread == "forbidden"
    assert history(Survey.of([], read=["secrets"])).unread == ""


@pytest.mark.parametrize("data", [None, {}, {"release": ""}, {"release": "!"}, {"release": "AAAA"}, {"release": 1}])
def test_a_secret_that_is_no_release_is_named(data: Any) -> None:
    with pytest.raises(ReleaseError, match="Secret n/s does not hold"):
        of_secret({"metadata": {"name": "s", "namespace": "n"}, "data": data})


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(ReleaseError, match="more than"):
        of_secret(secret(b" " * ((64 << 20) + 10)))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_release_or_a_told_error(noise: bytes) -> None:
    try:
        of_secret(secret(noise))
        of_secret({"metadata": {}, "data": {"release": base64.b64encode(base64.b64encode(noise)).decode()}})
    except ReleaseError:
        pass
