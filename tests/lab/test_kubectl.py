# ruff: noqa: E501
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from lab import kubectl_lab

from groundplane.lab import http, resources
from groundplane.lab.api import Api

pytestmark = pytest.mark.kubectl

DAEMON_SET = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, labels: {app: agent}}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: main, image: 'registry/agent:1'}]}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: main, image: 'web:1'}]}
"""
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}}
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Color, type: string, jsonPath: .spec.color, priority: 1}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: What the widget should be.
            required: [size]
            properties:
              size: {type: integer, minimum: 1, description: How big it is.}
              color: {type: string, enum: [red, blue], default: red}
          status:
            type: object
            properties: {size: {type: integer}, phase: {type: string}}
"""


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[kubectl_lab.Kubectl]:
    api = Api(seed=1)
    server = await http.serve(api, nodes=kubectl_lab.FakeNodes())
    yield kubectl_lab.Kubectl(api, server, tmp_path)
    await server.close()


def run_pod(api: Api, name: str) -> None:
    """Do what a scheduler and a kubelet would."""
    api.bind(name, "default", "node-1")
    container = {"name": "main", "ready": True, "restartCount": 0, "image": "web:1", "imageID": "x"}
    container["state"] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}  # type: ignore[assignment]
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "containerStatuses": [container], "conditions": conditions, "podIP": "10.0.0.7"}
    api.patch(resources.PODS, name, {"status": status}, ns="default", type="merge", subresource="status")


async def test_get_describe_and_edit(kubectl: kubectl_lab.Kubectl) -> None:
    assert "created" in await kubectl.ok("apply", "-f", "-", stdin=DAEMON_SET)
    table = await kubectl.ok("get", "ds", "-o", "wide")
    assert table.split("\n")[0].split()[:4] == ["NAME", "DESIRED", "CURRENT", "READY"]
    assert "registry/agent:1" in table
    assert "unchanged" in await kubectl.ok("apply", "-f", "-", stdin=DAEMON_SET)
    assert "configured" in await kubectl.ok("apply", "-f", "-", stdin=DAEMON_SET.replace("agent:1", "agent:2"))
    assert "registry/agent:2" in await kubectl.ok("describe", "ds", "agent")
    for kind, patch in {
        "strategic": '{"spec":{"template":{"spec":{"containers":[{"name":"main","env":[{"name":"A","value":"1"}]}]}}}}',
        "merge": '{"metadata":{"annotations":{"note":"x"}}}',
        "json": '[{"op":"add","path":"/spec/minReadySeconds","value":5}]',
    }.items():
        assert "patched" in await kubectl.ok("patch", "ds", "agent", f"--type={kind}", "-p", patch)
    live = yaml.safe_load(await kubectl.ok("get", "ds", "agent", "-o", "yaml"))
    container = live["spec"]["template"]["spec"]["containers"][0]
    assert (container["image"], container["env"]) == ("registry/agent:2", [{"name": "A", "value": "1"}])
    assert (live["spec"]["minReadySeconds"], live["metadata"]["annotations"]["note"]) == (5, "x")
    await kubectl.ok("label", "ds", "agent", "tier=low")
    await kubectl.ok("annotate", "ds", "agent", "note-")
    assert "agent" in await kubectl.ok("get", "ds", "-l", "tier=low", "-o", "name")


async def test_server_side_apply_conflicts_and_force(kubectl: kubectl_lab.Kubectl) -> None:
    await kubectl.ok("apply", "-f", "-", stdin=DAEMON_SET)
    changed = DAEMON_SET.replace("agent:1", "agent:3")
    error = await kubectl.fails("apply", "--server-side", "-f", "-", stdin=changed)
    text = 'conflict with "kubectl-client-side-apply" using apps/v1: .spec.template.spec.containers[name="main"].image'
    assert f"Apply failed with 1 conflict: {text}" in error
    await kubectl.ok("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=changed)
    assert "agent:3" in await kubectl.ok(
        "get", "ds", "agent", "-o", "jsonpath={.spec.template.spec.containers[0].image}"
    )


async def test_logs_exec_and_wait(kubectl: kubectl_lab.Kubectl) -> None:
    await kubectl.ok("apply", "-f", "-", stdin=POD)
    assert "does not have a host assigned" in await kubectl.fails("logs", "web")
    waiting = await kubectl.start("wait", "pod/web", "--for=condition=Ready", "--timeout=20s")
    run_pod(kubectl.api, "web")
    out, _ = await asyncio.wait_for(waiting.communicate(), 30)
    assert b"condition met" in out
    assert await kubectl.ok("logs", "web") == "web/main one\ntwo\n"
    assert await kubectl.ok("logs", "web", "--tail=1") == "two\n"
    assert "container nope is not valid for pod web" in await kubectl.fails("logs", "web", "-c", "nope")
    assert await kubectl.ok("exec", "web", "--", "echo", "hi") == "echo hi\n"
    assert await kubectl.ok("exec", "-i", "web", "--", "cat", stdin="some input") == "some input"
    code, _, err = await kubectl.run("exec", "web", "--", "false")
    assert code == 3
    assert "no luck" in err
    row = (await kubectl.ok("get", "pods", "-o", "wide")).split("\n")[1].split()
    assert row[:4] == ["web", "1/1", "Running", "0"]
    assert row[5:7] == ["10.0.0.7", "node-1"]
    await kubectl.ok("wait", "pod/web", "--for=jsonpath={.status.phase}=Running", "--timeout=5s")


async def test_delete_waits_for_the_kubelet(kubectl: kubectl_lab.Kubectl) -> None:
    await kubectl.ok("apply", "-f", "-", stdin=POD)
    run_pod(kubectl.api, "web")
    deleting = await kubectl.start("delete", "pod", "web")
    while not kubectl.api.get(resources.PODS, "web", "default")["metadata"].get("deletionTimestamp"):
        await asyncio.sleep(0.02)
    gone = await kubectl.start("wait", "pod/web", "--for=delete", "--timeout=20s")
    kubectl.api.delete(resources.PODS, "web", "default", grace_period_s=0)
    for process in (deleting, gone):
        await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0


async def test_watch_prints_changes(kubectl: kubectl_lab.Kubectl) -> None:
    await kubectl.ok("create", "configmap", "first", "--from-literal=a=b")
    process = await kubectl.start("get", "cm", "-w", "--no-headers")
    assert process.stdout is not None
    try:
        assert (await asyncio.wait_for(process.stdout.readline(), 20)).split()[:2] == [b"first", b"1"]
        kubectl.api.create(resources.CONFIG_MAPS, {"metadata": {"name": "second"}}, "default")
        assert (await asyncio.wait_for(process.stdout.readline(), 20)).split()[:2] == [b"second", b"0"]
    finally:
        process.terminate()
        await process.communicate()


async def test_custom_resources(kubectl: kubectl_lab.Kubectl) -> None:
    await kubectl.ok("apply", "-f", "-", stdin=CRD)
    await kubectl.ok("wait", "crd/widgets.example.com", "--for=condition=Established", "--timeout=5s")
    widget = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w}\nspec: {size: 2}\n"
    assert "created" in await kubectl.ok("apply", "-f", "-", stdin=widget)
    assert (await kubectl.ok("get", "wd", "-o", "wide")).split("\n")[1].split()[:3] == ["w", "2", "red"]
    assert "How big it is." in await kubectl.ok("explain", "widget.spec.size")
    await kubectl.ok("scale", "widget/w", "--replicas=5")
    assert await kubectl.ok("get", "widget", "w", "-o", "jsonpath={.spec.size}") == "5"
    bad = widget.replace("size: 2", "size: 0, color: green")
    error = await kubectl.fails("apply", "-f", "-", stdin=bad)
    assert "spec.size in body should be greater than or equal to 1" in error
    assert 'Unsupported value: "green": supported values: "red", "blue"' in error
    unknown = await kubectl.fails("create", "-f", "-", stdin=widget.replace("size: 2", "size: 2, sise: 3"))
    assert 'unknown field "spec.sise"' in unknown
    await kubectl.ok("delete", "crd", "widgets.example.com")
    assert "the server could not find the requested resource" in await kubectl.fails("get", "widgets")


@pytest.mark.parametrize(
    ("arguments", "document", "text"),
    [
        (["get", "pods", "nope"], "", 'pods "nope" not found'),
        (["get", "pods", "--field-selector", "spec.image=x"], "", "field label not supported: spec.image"),
        (["create", "-f", "-"], POD.replace("image", "imagge"), 'unknown field "spec.containers[0].imagge"'),
        (["create", "-f", "-"], POD.replace("'web:1'", "''"), "spec.containers[0].image: Required value"),
        (["create", "-f", "-"], POD.replace("name: web", "name: Web"), "a lowercase RFC 1123 subdomain must consist"),
        (["create", "-n", "nowhere", "-f", "-"], POD, 'namespaces "nowhere" not found'),
        (["create", "-f", "-"], DAEMON_SET.replace("{app: agent}}\n  template", "{app: other}}\n  template"),
         "`selector` does not match template `labels`"),
        (["create", "-f", "-"], POD.replace("spec: {", "spec: {priorityClassName: none, "), "no PriorityClass with name none"),
    ],
)  # fmt: skip
async def test_errors_read_as_the_real_ones(
    kubectl: kubectl_lab.Kubectl, arguments: list[str], document: str, text: str
) -> None:
    assert text in await kubectl.fails(*arguments, stdin=document)


async def test_dry_run_diff_and_typed_commands(kubectl: kubectl_lab.Kubectl) -> None:
    out = await kubectl.ok("create", "-f", "-", "--dry-run=server", "-o", "yaml", stdin=DAEMON_SET)
    assert yaml.safe_load(out)["spec"]["revisionHistoryLimit"] == 10
    assert await kubectl.ok("get", "ds", "-o", "name") == ""
    await kubectl.ok("apply", "-f", "-", stdin=DAEMON_SET)
    if kubectl_lab.has_diff():
        code, out, _ = await kubectl.run("diff", "-f", "-", stdin=DAEMON_SET.replace("agent:1", "agent:9"))
        assert code == 1
        assert "+      - image: registry/agent:9" in out
    await kubectl.ok("create", "deployment", "d", "--image=nginx:1", "--replicas=2")
    await kubectl.ok("scale", "deployment", "d", "--replicas=4")
    assert "0/4" in await kubectl.ok("get", "deploy", "d")
    await kubectl.ok("create", "secret", "generic", "s", "--from-literal=k=v")
    await kubectl.ok("create", "pdb", "b", "--selector=app=d", "--min-available=1")
    await kubectl.ok("create", "sa", "robot")
    assert (await kubectl.ok("create", "token", "robot")).startswith("lab.")


async def test_discovery_and_access(kubectl: kubectl_lab.Kubectl) -> None:
    names = (await kubectl.ok("api-resources", "-o", "name")).split()
    assert {"pods", "daemonsets.apps", "leases.coordination.k8s.io", "runtimeclasses.node.k8s.io"} <= set(names)
    assert "v1.37" in await kubectl.ok("version")
    assert "RollingUpdateDaemonSet" in await kubectl.ok("explain", "ds.spec.updateStrategy")
    assert await kubectl.ok("auth", "can-i", "create", "pods") == "yes\n"
    assert await kubectl.ok("get", "--raw", "/readyz") == "ok"
