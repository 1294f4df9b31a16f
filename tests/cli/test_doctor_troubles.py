"""``groundplane doctor`` where a cluster is read in part or not at all: what was seen is judged, the rest is told."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner

from groundplane.cli.main import main
from groundplane.cluster import client as clients

SPACE = "gpu-operator"
CONTAINERS = {
    "nvidia-driver-daemonset": "nvidia-driver-ctr",
    "nvidia-container-toolkit-daemonset": "nvidia-container-toolkit-ctr",
    "nvidia-operator-validator": "nvidia-operator-validator",
}
APPS = tuple(CONTAINERS)
LOG = "Creating directory NVIDIA-Linux-x86_64-580.95.05\nCould not resolve Linux kernel version\n"
DIAL = (
    'Get "https://10.0.0.7:10250/containerLogs/gpu-operator/{pod}/nvidia-driver-ctr?tailLines=200": '
    "dial tcp 10.0.0.7:10250: connect: connection refused"
)


def pod(app: str, node: str) -> dict[str, Any]:
    crashes = app == APPS[0]
    state = {"waiting": {"reason": "CrashLoopBackOff" if crashes else "PodInitializing"}}
    status = {"name": CONTAINERS[app], "ready": False, "restartCount": 7 if crashes else 0, "state": state}
    if crashes:
        status |= {"containerID": "x", "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    return {
        "metadata": {"name": f"{app}-{node}", "namespace": SPACE, "labels": {"app": app}},
        "spec": {"nodeName": node, "containers": [{"name": CONTAINERS[app], "image": "i"}]},
        "status": {"phase": "Running" if crashes else "Pending", "containerStatuses": [status]},
    }


def node(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true"}},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "capacity": {}, "allocatable": {}},
    }


class Cluster:
    """An API server with two nodes whose drivers crash. ``answers`` has its own answer for some of the plurals."""

    def __init__(self) -> None:
        self.objects = {
            "nodes": [node("gpu-1"), node("gpu-2")],
            "pods": [pod(app, name) for app in APPS for name in ("gpu-1", "gpu-2")],
        }
        self.answers: dict[str, Callable[[web.Request], Any]] = {}
        self.kubeconfig = Path()
        self.over = asyncio.Event()

    async def silent(self, _: web.Request) -> web.Response:
        """No answer as long as the test lasts."""
        await self.over.wait()
        return web.Response(status=503)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        what = request.path.rpartition("/")[2]
        own = self.answers.get(what) or self.answers.get("*")
        if own is not None:
            made = own(request)
            response: web.StreamResponse = await made if asyncio.iscoroutine(made) else made
            return response
        if what == "version":
            return web.json_response({"gitVersion": "v1.33.1"})
        if what == "log":
            return web.Response(text=LOG)
        if what == "exec":
            return refused(request)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": self.objects.get(what, [])})

    async def doctor(self, *argv: str) -> tuple[int, str]:
        """The command, in a thread as it has a loop of its own."""
        command = ["doctor", "--kubeconfig", str(self.kubeconfig), *argv]
        result = await asyncio.to_thread(CliRunner().invoke, main, command)
        assert isinstance(result.exception, SystemExit | None), result.exception
        return result.exit_code, result.output

    async def found(self, *argv: str) -> tuple[int, dict[str, dict[str, Any]], list[str]]:
        """Exit code, causes by id, and the sentences of what is unknown."""
        code, text = await self.doctor("-o", "json", *argv)
        report = json.loads(text)
        said = [
            quote["excerpt"]
            for each in report["findings"]
            if each["outcome"] == "unknown"
            for quote in each["evidence"]
        ]
        return code, {each["id"]: each for each in report["causes"]}, said


def status(code: int, reason: str, message: str, **headers: str) -> web.Response:
    document = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return web.json_response(document, status=code, headers=headers)


def refused(request: web.Request) -> web.Response:
    """RBAC's refusal, in its own words."""
    parts = request.path.strip("/").split("/")
    group = parts[1] if parts[0] == "apis" else ""
    rest = parts[3:] if group else parts[2:]
    where = "at the cluster scope"
    if rest[0] == "namespaces" and len(rest) > 2:
        where, rest = f'in the namespace "{rest[1]}"', rest[2:]
    resource = f"{rest[0]}/{rest[2]}" if len(rest) > 2 else rest[0]
    verb = "get" if len(rest) > 2 else "list"
    who = 'User "system:serviceaccount:ops:reader" cannot'
    return status(
        403, "Forbidden", f'{resource} is forbidden: {who} {verb} resource "{resource}" in API group "{group}" {where}'
    )


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr(clients, "DEFAULT_RETRY", None)
    monkeypatch.setattr(clients.Client.__init__, "__kwdefaults__", {
        **(clients.Client.__init__.__kwdefaults__ or {}), "retry": clients.Retry(attempts=2, first_s=0.01, max_s=0.01),
    })  # fmt: skip
    cluster = Cluster()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", cluster.answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    cluster.kubeconfig = kubeconfig(tmp_path, f"http://127.0.0.1:{runner.addresses[0][1]}")
    yield cluster
    cluster.over.set()
    await runner.cleanup()


def kubeconfig(folder: Path, server: str) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "expired"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


async def test_all_can_be_read_but_nodes_from_inside(cluster: Cluster) -> None:
    code, causes, unknown = await cluster.found()
    assert (code, list(causes)) == (3, ["S10"])
    assert causes["S10"]["nodes"] == ["gpu-1", "gpu-2"]
    code, causes, unknown = await cluster.found("--no-exec")
    assert (code, list(causes), unknown) == (3, ["S10"], [])


@pytest.mark.parametrize(
    ("plural", "lacks", "seen"),
    [
        ("log", 'get pods/log in API group "" in namespace "gpu-operator"', False),
        ("nodes", 'list nodes in API group "" in the whole cluster', True),
        ("events", 'list events in API group "" in the whole cluster', True),
        ("clusterpolicies", 'list clusterpolicies in API group "nvidia.com" in the whole cluster', True),
        ("daemonsets", 'list daemonsets in API group "apps" in namespace "gpu-operator"', True),
        ("pods", 'list pods in API group "" in the whole cluster', False),
    ],
)
async def test_a_permission_that_lacks_is_named_and_the_rest_is_judged(
    cluster: Cluster, plural: str, lacks: str, seen: bool
) -> None:
    cluster.answers[plural] = refused
    code, causes, unknown = await cluster.found("--no-exec")
    assert [each for each in unknown if lacks in each], unknown
    assert ("S10" in causes) == seen
    assert code == 3


async def test_who_may_not_exec_is_told_which_right_that_takes(cluster: Cluster) -> None:
    for each in cluster.objects["pods"]:
        if each["metadata"]["labels"]["app"] != APPS[0]:
            each["status"] |= {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            each["status"]["containerStatuses"][0] |= {"ready": True, "state": {"running": {}}}
    code, causes, unknown = await cluster.found()
    assert (code, list(causes)) == (3, ["S10"])
    assert [each for each in unknown if "pods/exec" in each and "gpu-1" in each], unknown


async def test_nobody_may_read_anything(cluster: Cluster) -> None:
    cluster.answers["*"] = refused
    cluster.answers["version"] = lambda _: web.json_response({"gitVersion": "v1.33.1"})
    code, causes, unknown = await cluster.found()
    assert (code, causes) == (4, {}) and len(unknown) >= 8


async def test_nodes_that_cannot_be_reached_are_named_once_each(cluster: Cluster) -> None:
    def unreachable(request: web.Request) -> web.Response:
        if "gpu-2" not in request.path:
            return web.Response(text=LOG)
        return status(500, "InternalError", DIAL.format(pod=request.path.split("/")[-2]))

    cluster.answers["log"] = unreachable
    code, causes, unknown = await cluster.found("--no-exec")
    assert code == 3 and causes["S10"]["nodes"] == ["gpu-1"]
    (sentence,) = unknown
    assert "2 logs of node gpu-2 could not be read" in sentence and "connection refused" in sentence


async def test_pods_that_go_between_listing_and_reading_are_no_trouble(cluster: Cluster) -> None:
    cluster.answers["log"] = lambda request: (
        web.Response(text=LOG)
        if "gpu-1" in request.path
        else status(404, "NotFound", f'pods "{request.path.split("/")[-2]}" not found')
    )
    code, causes, unknown = await cluster.found("--no-exec")
    assert (code, unknown) == (3, []) and causes["S10"]["nodes"] == ["gpu-1"]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda _: status(500, "InternalError", "etcdserver: leader changed"), "etcdserver: leader changed"),
        (lambda _: status(429, "TooManyRequests", "too many requests", **{"Retry-After": "0"}), "too many requests"),
        (lambda _: web.Response(text="<html>a proxy says no</html>", status=502), "502"),
        (lambda _: web.Response(text="<html>a portal says hello</html>"), "not what was asked for"),
    ],
)
async def test_kinds_that_the_server_fails_at_are_unknown(
    cluster: Cluster, answer: Callable[[web.Request], web.Response], told: str
) -> None:
    cluster.answers["events"] = cluster.answers["deployments"] = answer
    code, causes, unknown = await cluster.found("--no-exec")
    assert (code, list(causes)) == (3, ["S10"])
    for plural in ("events", "deployments"):
        assert [each for each in unknown if plural in each and told in each], unknown


@pytest.mark.parametrize("what", ["events", "log", "exec"])
async def test_what_hangs_is_unknown_when_the_time_is_over(cluster: Cluster, what: str) -> None:
    for each in cluster.objects["pods"]:  # somewhere to exec in
        if each["metadata"]["labels"]["app"] != APPS[0]:
            each["status"] |= {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            each["status"]["containerStatuses"][0] |= {"ready": True, "state": {"running": {}}}
    cluster.answers[what] = cluster.silent
    async with asyncio.timeout(30):
        code, causes, unknown = await cluster.found("--timeout", "1")
    assert code == 3
    assert [each for each in unknown if "no end of the answer" in each or "the time for it was over" in each], unknown
    assert ("S10" in causes) == (what != "log")


async def test_a_server_that_says_nothing_is_an_error_in_time(cluster: Cluster) -> None:
    cluster.answers["*"] = cluster.silent
    async with asyncio.timeout(30):
        code, text = await cluster.doctor("--timeout", "1")
    assert code == 1 and "said nothing for 0.5 s" in " ".join(text.split())


async def test_credentials_that_have_expired(cluster: Cluster) -> None:
    cluster.answers["*"] = lambda _: status(401, "Unauthorized", "Unauthorized")
    code, text = await cluster.doctor()
    assert code == 1 and "does not accept the credentials" in text and "log in again" in text
    cluster.answers = {"pods": cluster.answers["*"]}  # while the cluster is read
    code, text = await cluster.doctor()
    assert code == 1 and "log in again" in text


async def test_no_cluster(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.kubeconfig = tmp_path / "none"
    code, text = await cluster.doctor()
    assert code == 1 and "none" in text
    cluster.kubeconfig = kubeconfig(tmp_path, "http://127.0.0.1:1")
    code, text = await cluster.doctor()
    assert code == 1 and "Is the cluster up" in text
