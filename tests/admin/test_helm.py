"""Helm behind its protocol: charts are pinned, fetched once and told when missing; failures have their kind."""

import asyncio
import functools
import http.server
import json
import shutil
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundplane.admin import helm

CHART = Path(__file__).parents[2] / "deploy" / "chart"


@pytest.fixture(autouse=True)
def _records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUNDPLANE_HOME", str(tmp_path / "records"))


def small_chart(folder: Path, version: str = "v26.3.3") -> Path:
    """A chart of one ConfigMap, as an archive."""
    source = folder / "source" / "gpu-operator"
    (source / "templates").mkdir(parents=True, exist_ok=True)
    (source / "Chart.yaml").write_text(f"apiVersion: v2\nname: gpu-operator\nversion: {version}\n")
    (source / "values.yaml").write_text("mood: calm\n")
    template = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\ndata:\n  mood: {{ .Values.mood | quote }}\n"
    (source / "templates" / "m.yaml").write_text(template)
    archive = folder / f"gpu-operator-{version}.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(source, "gpu-operator")
    return archive


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[str]:
    """A chart repository with one version of the chart."""
    folder = tmp_path / "repository"
    folder.mkdir()
    archive = small_chart(folder)
    entry = {"name": "gpu-operator", "version": "v26.3.3", "apiVersion": "v2", "urls": [archive.name]}
    index = {"apiVersion": "v1", "entries": {"gpu-operator": [entry]}}
    (folder / "index.yaml").write_text(yaml.safe_dump(index))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


# --- A51, A56: pinned, and there --------------------------------------------------------------------------------------


def test_a_remote_chart_without_a_version_is_refused() -> None:
    for reference, repository in (("", ""), ("oci://registry.example/charts/gpu-operator", ""), ("x", "https://e.io")):
        with pytest.raises(helm.Unpinned, match="--version"):
            helm.chart_of(reference, "", repository)


def test_a_pinned_chart_is_taken_nvidias_by_default() -> None:
    assert helm.chart_of("", "v26.3.3") == helm.Chart("gpu-operator", "v26.3.3", helm.NVIDIA_REPOSITORY)


def test_a_folder_pins_itself_and_is_held_to_what_was_asked() -> None:
    assert helm.chart_of(str(CHART)).version == "0.1.0"
    with pytest.raises(helm.ChartNotFound, match=r"is version 0\.1\.0, not 9\.9\.9"):
        helm.chart_of(str(CHART), "9.9.9")


def test_an_archive_pins_itself(tmp_path: Path) -> None:
    assert helm.chart_of(str(small_chart(tmp_path))).version == "v26.3.3"


@pytest.mark.parametrize("what", ["nothing", "folder", "archive"])
def test_what_is_no_chart_is_told(tmp_path: Path, what: str) -> None:
    place = tmp_path / what
    if what == "folder":
        place.mkdir()
    elif what == "archive":
        place.write_bytes(b"no archive")
    with pytest.raises(helm.ChartNotFound, match=str(place)):
        helm.chart_of(str(place))


async def test_a_chart_is_fetched_once_and_stays(repository: str) -> None:
    maker = helm.choose()
    chart = helm.chart_of("gpu-operator", "v26.3.3", repository)
    first = await maker.fetch(chart)
    assert await maker.fetch(chart) == first
    assert await maker.defaults(chart) == {"mood": "calm"}
    (document,) = await maker.render(chart, "r", "n", {"mood": "good"})
    assert document["data"] == {"mood": "good"}


async def test_a_version_that_does_not_exist_is_told_with_those_that_do(repository: str) -> None:
    with pytest.raises(helm.ChartNotFound, match=r"has no version v99\.0\.0 of gpu-operator; it has v26\.3\.3"):
        await helm.choose().fetch(helm.chart_of("gpu-operator", "v99.0.0", repository))


async def test_a_name_that_does_not_exist_is_told(repository: str) -> None:
    with pytest.raises(helm.ChartNotFound, match="has no chart other"):
        await helm.choose().fetch(helm.chart_of("other", "v1.0.0", repository))


async def test_a_repository_that_does_not_answer_is_told() -> None:
    with pytest.raises(helm.Unreachable, match=r"127\.0\.0\.1"):
        await helm.choose().fetch(helm.chart_of("gpu-operator", "v1.0.0", "http://127.0.0.1:1"))


# --- what a chart refuses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values, said",
    [
        ({"driver": {"enabled": "perhaps"}}, "/driver/enabled"),
        ({"cdi": {"enabled": False, "nriPluginEnabled": True}}, "nriPluginEnabled"),
    ],
    ids=["schema", "validate"],
)
async def test_values_that_the_chart_refuses(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.ValuesRefused, match=said):
        await helm.choose().render(helm.chart_of(str(CHART)), "r", "n", values)


SAID = {
    "cannot reuse a name that is still in use": helm.ReleaseExists,
    "another operation (install/upgrade/rollback) is in progress": helm.ReleasePending,
    'query: failed to query with labels: secrets is forbidden: User "x" cannot list resource "secrets"': helm.NoRights,
    "pre-upgrade hooks failed: 1 error occurred: timed out waiting for the condition": helm.HookFailed,
    "context deadline exceeded": helm.TimedOut,
    'ClusterPolicy "cluster-policy" exists and cannot be imported into the current release: invalid': helm.NotOwned,
    "uninstall: Release not loaded: gpu-operator: release: not found": helm.ReleaseMissing,
    "Kubernetes cluster unreachable: dial tcp 127.0.0.1:1: connect: connection refused": helm.Unreachable,
    "values don't meet the specifications of the schema(s) in the following chart(s)": helm.ValuesRefused,
}


@pytest.mark.parametrize("said", list(SAID))
def test_what_helm_says_becomes_an_error_of_its_kind_that_says_how_to_go_on(said: str) -> None:
    error = helm.classify(said)
    assert type(error) is SAID[said]
    assert said in str(error)


def test_what_nobody_knows_is_told_as_helm_said_it() -> None:
    error = helm.classify("something  new\nhappened")
    assert type(error) is helm.HelmError
    assert "something new happened" in str(error)


# --- a helm on the PATH -----------------------------------------------------------------------------------------------

FAKE = """#!{python}
import json, os, pathlib, sys, time
here = pathlib.Path(__file__).parent
argv = sys.argv[1:]
values = argv[argv.index("--values") + 1] if "--values" in argv else ""
seen = dict(argv=argv, values=json.loads(pathlib.Path(values).read_text()) if values else None,
            mode=oct(os.stat(values).st_mode & 0o777) if values else "")
with (here / "calls").open("a") as file:
    file.write(json.dumps(seen) + "\\n")
if (here / "slow").exists():
    (here / "began").touch()
    time.sleep(60)
if (here / "fails").exists():
    sys.stderr.write((here / "fails").read_text())
    sys.exit(1)
if argv[0] in ("install", "upgrade"):
    print(json.dumps(dict(name=argv[1], namespace="n", version=3, info=dict(status="deployed", notes="hello"))))
if argv[0] == "template":
    print("---\\napiVersion: v1\\nkind: ConfigMap\\nmetadata: {{name: m}}\\n---\\n# nothing\\n")
if argv[:2] == ["show", "values"]:
    print("mood: calm")
"""


class Fake:
    """A helm that notes how it was called."""

    def __init__(self, folder: Path) -> None:
        import sys

        self.folder = folder
        path = folder / "helm"
        path.write_text(FAKE.format(python=sys.executable))
        path.chmod(0o755)
        self.helm = helm.Executable(str(path), "/k/config", "prod")

    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    folder = tmp_path / "bin"
    folder.mkdir()
    return Fake(folder)


CLUSTER = ["--kubeconfig", "/k/config", "--kube-context", "prod"]
WAIT = ["--wait", "--timeout", "1200s"]


async def test_the_executable_gets_values_in_a_file_of_ours_and_never_as_arguments(fake: Fake) -> None:
    chart = helm.chart_of(str(CHART))
    secret = {"driver": {"licensingConfig": {"token": "hunter2"}}}
    done = await fake.helm.install(chart, "r", "n", secret, timeout_s=1200)
    assert done == helm.Done("r", "n", 3, "deployed", "hello")
    (call,) = fake.calls()
    file = call["argv"][call["argv"].index("--values") + 1]
    assert call["values"] == secret
    assert call["mode"] == "0o600"
    assert not Path(file).exists()
    assert "hunter2" not in " ".join(call["argv"])
    wanted = ["install", "r", str(CHART), "--namespace", "n", "--values", file, *WAIT, "--output", "json", *CLUSTER]
    assert call["argv"] == wanted


async def test_the_executable_is_called_as_a_person_would_call_it(fake: Fake) -> None:
    chart = helm.chart_of(str(CHART))
    await fake.helm.upgrade(chart, "r", "n", {}, timeout_s=1200, hooks=False)
    await fake.helm.rollback("r", "n", 2, timeout_s=1200)
    await fake.helm.uninstall("r", "n", timeout_s=1200, missing_ok=True)
    upgrade, rollback, uninstall = (call["argv"] for call in fake.calls())
    assert {"--reset-values", "--no-hooks", "--disable-openapi-validation"} <= set(upgrade)
    assert rollback == ["rollback", "r", "2", "--namespace", "n", *WAIT, *CLUSTER]
    assert uninstall == ["uninstall", "r", "--namespace", "n", *WAIT, "--ignore-not-found", *CLUSTER]


async def test_the_executable_renders_and_shows(fake: Fake) -> None:
    chart = helm.chart_of(str(CHART))
    assert [each["kind"] for each in await fake.helm.render(chart, "r", "n", {}, upgrade=True)] == ["ConfigMap"]
    assert await fake.helm.defaults(chart) == {"mood": "calm"}
    assert "--is-upgrade" in fake.calls()[0]["argv"]


async def test_the_executable_fails_with_an_error_of_its_kind(fake: Fake) -> None:
    (fake.folder / "fails").write_text("Error: INSTALLATION FAILED: cannot re-use a name that is still in use\n")
    with pytest.raises(helm.ReleaseExists):
        await fake.helm.install(helm.chart_of(str(CHART)), "r", "n", {}, timeout_s=1)


async def test_a_cancelled_call_ends_the_executable(fake: Fake) -> None:
    (fake.folder / "slow").touch()
    task = asyncio.create_task(fake.helm.rollback("r", "n", 1, timeout_s=1))
    async with asyncio.timeout(60):
        while not (fake.folder / "began").exists():
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_without_any_helm_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "helm_python", None)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(helm.HelmMissing, match="--print helm"):
        helm.choose()
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert helm.choose().name == "/bin/helm"
