"""Pods on a simulated kubelet, end to end on the lab's API."""

import asyncio
from typing import Any

import pytest
from lab.kubelet_bench import bench, container

from groundplane.lab import resources
from groundplane.lab.status import StatusError

SLEEP = "trap 'exit 0' TERM; sleep 100000 & wait"


async def test_node_registers_with_labels_and_lease() -> None:
    async with bench(served=True) as b:
        b.node(gpus=(), labels={"rack": "a"})
        await b.until(lambda: b.api.find(resources.LEASES, "n1", "kube-node-lease"), "the lease")
        await b.until(
            lambda: (
                "feature.node.kubernetes.io/kernel-version.full"
                in b.kubelets["n1"].node_document()["metadata"]["labels"]
            ),
            "NFD labels",
        )
        node = b.api.get(resources.NODES, "n1")
        assert node["metadata"]["labels"]["rack"] == "a"
        assert node["metadata"]["labels"]["feature.node.kubernetes.io/system-os_release.VERSION_ID"] == "24.04"
        assert node["status"]["nodeInfo"]["containerRuntimeVersion"] == "containerd://2.1.4"
        assert {c["type"]: c["status"] for c in node["status"]["conditions"]}["Ready"] == "True"


async def test_pod_runs_to_its_end() -> None:
    async with bench() as b:
        b.node()
        env = [
            {"name": "A", "value": "x"},
            {"name": "B", "value": "$(A)-y"},
            {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ]
        b.pod("p", container(script="echo $B $N; echo bad >&2", env=env), restartPolicy="Never")
        await b.until(lambda: b.status("p").get("phase") == "Succeeded", "success")
        assert b.log("p") == "x-y n1\nbad\n"
        terminated = b.status("p")["containerStatuses"][0]["state"]["terminated"]
        assert (terminated["exitCode"], terminated["reason"]) == (0, "Completed")
        assert b.reasons("p") == ["Pulling", "Pulled", "Created", "Started"]


async def test_init_containers_run_in_order_and_sidecars_stay() -> None:
    async with bench() as b:
        b.node()
        volume = {"volumes": [{"name": "d", "emptyDir": {}}]}
        mount = {"volumeMounts": [{"name": "d", "mountPath": "/d"}]}
        inits = [
            container("one", "sleep 5; echo one >> /d/order", **mount),
            container("side", "echo side >> /d/order; " + SLEEP, restartPolicy="Always", **mount),
            container("two", "echo two >> /d/order", **mount),
        ]
        b.pod("p", container(script="cat /d/order", **mount), initContainers=inits, restartPolicy="Never", **volume)
        await b.until(lambda: b.status("p").get("phase") == "Succeeded", "success")
        assert b.log("p").split() == ["one", "side", "two"]
        initial = {s["name"]: s["state"] for s in b.status("p")["initContainerStatuses"]}
        assert initial["one"]["terminated"]["exitCode"] == 0


async def test_crash_loop_backs_off_and_keeps_the_previous_log() -> None:
    async with bench() as b:
        b.node()
        b.pod("p", container(script="echo run; exit 3"))
        await b.until(lambda: b.waiting("p") == "CrashLoopBackOff" and b.restarts("p") >= 2, "crash loop")
        status = b.status("p")["containerStatuses"][0]
        assert status["lastState"]["terminated"]["exitCode"] == 3
        assert "back-off" in status["state"]["waiting"]["message"]
        assert "BackOff" in b.reasons("p")
        assert b.status("p")["phase"] == "Running"
        lines = [line async for line in b.kubelets["n1"].logs("default", "p", previous=True, timestamps=True)]
        assert lines[0].endswith(b"Z run\n")


@pytest.mark.parametrize(("policy", "code", "phase"), [("Never", 1, "Failed"), ("OnFailure", 0, "Succeeded")])
async def test_restart_policy(policy: str, code: int, phase: str) -> None:
    async with bench() as b:
        b.node()
        b.pod("p", container(script=f"exit {code}"), restartPolicy=policy)
        await b.until(lambda: b.status("p").get("phase") == phase, phase)
        assert b.restarts("p") == 0


async def test_failed_init_container_holds_the_pod() -> None:
    async with bench() as b:
        b.node()
        b.pod("p", container(script=SLEEP), initContainers=[container("first", "exit 1")])
        await b.until(lambda: b.waiting("p") == "CrashLoopBackOff PodInitializing", "init crash loop")
        assert b.status("p")["phase"] == "Pending"


READINESS = {"exec": {"command": ["test", "-f", "/ready"]}, "periodSeconds": 1}


async def test_readiness_follows_the_probe() -> None:
    async with bench() as b:
        b.node()
        b.pod("p", container(script=SLEEP, readinessProbe=READINESS))
        await b.until(lambda: "Unhealthy" in b.reasons("p"), "an unready probe")
        assert not b.ready("p")
        assert await b.exec("p", "touch", "/ready") == (0, "")
        await b.until(lambda: b.ready("p"), "ready")
        await b.exec("p", "rm", "/ready")
        await b.until(lambda: not b.ready("p"), "unready again")


async def test_liveness_failure_restarts_the_container() -> None:
    async with bench() as b:
        b.node()
        probe = {"httpGet": {"path": "/x", "port": "web"}, "periodSeconds": 1, "failureThreshold": 2}
        good = {
            "name": "web",
            "image": "nginx",
            "ports": [{"name": "web", "containerPort": 8080}],
            "livenessProbe": probe,
        }
        b.pod("good", good)
        b.pod("bad", container(script=SLEEP, livenessProbe={"tcpSocket": {"port": 81}, "periodSeconds": 1}))
        await b.until(lambda: b.restarts("bad") >= 1, "a restart")
        assert {"Unhealthy", "Killing"} <= set(b.reasons("bad"))
        assert b.restarts("good") == 0
        assert b.ready("good")


async def test_startup_probe_holds_back_the_others() -> None:
    async with bench() as b:
        b.node()
        probe = {"exec": {"command": ["test", "-f", "/up"]}, "periodSeconds": 1, "failureThreshold": 1000}
        live = {"exec": {"command": ["test", "-f", "/up"]}, "periodSeconds": 1, "failureThreshold": 1}
        b.pod("p", container(script="sleep 20; touch /up; " + SLEEP, startupProbe=probe, livenessProbe=live))
        await b.until(lambda: b.ready("p"), "ready")
        assert b.restarts("p") == 0


async def test_config_map_volume_appears_later() -> None:
    async with bench() as b:
        b.node()
        volumes = [{"name": "c", "configMap": {"name": "cm", "items": [{"key": "k", "path": "sub/file"}]}}]
        mount = {"volumeMounts": [{"name": "c", "mountPath": "/etc/one", "subPath": "sub/file"}]}
        b.pod("p", container(script="cat /etc/one", **mount), volumes=volumes, restartPolicy="Never")
        await b.until(lambda: "FailedMount" in b.reasons("p"), "a failed mount")
        assert b.waiting("p") == "ContainerCreating"
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm"}, "data": {"k": "text\n"}}
        b.api.create(resources.CONFIG_MAPS, config, "default")
        await b.until(lambda: b.status("p").get("phase") == "Succeeded", "success")
        assert b.log("p") == "text\n"


async def test_host_path_types() -> None:
    async with bench() as b:
        host = b.node().host
        made = {"name": "v", "hostPath": {"path": "/run/made/here", "type": "DirectoryOrCreate"}}
        mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
        b.pod("a", container(script="echo hello > /v/f", **mount), volumes=[made], restartPolicy="Never")
        wanted = {"name": "v", "hostPath": {"path": "/not/there", "type": "Directory"}}
        b.pod("b", container(script="true", **mount), volumes=[wanted])
        await b.until(lambda: b.status("a").get("phase") == "Succeeded", "success")
        assert host.root.read_text("/run/made/here/f") == "hello\n"
        await b.until(lambda: "FailedMount" in b.reasons("b"), "a failed mount")


PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"image": "registry.lab/nobody-has-this:1"}, "ImagePullBackOff"),
    ({"image": "registry.lab/busybox:1", "imagePullPolicy": "Never"}, "ErrImageNeverPull"),
    (
        {"image": "busybox", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
        "CreateContainerConfigError",
    ),
    ({"image": "busybox", "command": ["no-such-program"]}, "CrashLoopBackOff"),
]


@pytest.mark.parametrize(("fields", "reason"), PROBLEMS, ids=lambda value: value if isinstance(value, str) else "")
async def test_containers_that_cannot_start(fields: dict[str, Any], reason: str) -> None:
    async with bench() as b:
        b.node()
        b.pod("p", {"name": "main", **fields})
        await b.until(lambda: b.waiting("p") == reason, reason)
        assert any(r in ("Failed", "ErrImageNeverPull") for r in b.reasons("p"))


async def test_missing_runtime_handler_fails_the_sandbox() -> None:
    async with bench() as b:
        b.node()
        body = {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "nvidia"},
            "handler": "nvidia",
        }
        b.api.create(resources.RUNTIME_CLASSES, body)
        b.pod("p", container(script="true"), runtimeClassName="nvidia")
        await b.until(lambda: "FailedCreatePodSandBox" in b.reasons("p"), "a failed sandbox")
        events = b.api.list(resources.EVENTS)["items"]
        assert any('no runtime for "nvidia" is configured' in event["message"] for event in events)


async def test_deletion_runs_pre_stop_and_frees_everything() -> None:
    async with bench() as b:
        host = b.node().host
        volumes = [{"name": "v", "hostPath": {"path": "/run/out", "type": "DirectoryOrCreate"}}]
        fields = {
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "echo bye > /v/bye"]}}},
        }
        b.pod("p", container(script=SLEEP, **fields), volumes=volumes)
        await b.until(lambda: b.ready("p"), "ready")
        uid = b.get("p")["metadata"]["uid"]
        b.api.delete(resources.PODS, "p", "default")
        await b.until(lambda: not b.get("p"), "the pod's end")
        assert host.root.read_text("/run/out/bye") == "bye\n"
        await b.until(lambda: not host.root.exists(f"/var/lib/kubelet/pods/{uid}"), "a clean host")


async def test_force_deletion_kills_at_once() -> None:
    async with bench(speed=1) as b:
        kubelet = b.node()
        b.pod("p", container(script="while true; do sleep 1000; done"))
        await b.until(lambda: b.ready("p"), "ready")
        b.api.delete(resources.PODS, "p", "default", grace_period_s=0)
        await b.until(lambda: not kubelet.runtime.pods(), "an empty runtime")


async def test_kubelet_restart_keeps_containers() -> None:
    async with bench() as b:
        kubelet = b.node()
        b.pod("p", container(script="echo started; " + SLEEP))
        await b.until(lambda: b.ready("p"), "ready")
        before = b.status("p")["containerStatuses"][0]["containerID"]
        await b.stop()
        b.pod("q", container(script="true"), restartPolicy="Never")
        b.start()
        await b.until(lambda: b.status("q").get("phase") == "Succeeded", "the new pod")
        await b.until(lambda: b.ready("p"), "still ready")
        assert b.status("p")["containerStatuses"][0]["containerID"] == before
        assert b.log("p") == "started\n"
        assert kubelet.runtime.last(b.get("p")["metadata"]["uid"], "main").attempt == 0  # type: ignore[union-attr]


async def test_reboot_starts_containers_again() -> None:
    async with bench() as b:
        kubelet = b.node()
        kubelet.host.load_module("nvidia")
        b.pod("p", container(script=SLEEP), initContainers=[container("init", "echo init")])
        await b.until(lambda: b.ready("p"), "ready")
        await b.stop()
        await kubelet.reboot()
        assert not kubelet.host.loaded("nvidia")
        b.start()
        await b.until(lambda: b.ready("p") and b.restarts("p") == 1, "running again")
        last = b.status("p")["containerStatuses"][0]["lastState"]["terminated"]
        assert (last["exitCode"], last["reason"]) == (255, "Unknown")


async def test_logs_follow_and_exec() -> None:
    async with bench() as b:
        kubelet = b.node()
        b.pod("p", container(script="echo a; echo b; sleep 20; echo c"), restartPolicy="Never")
        await b.until(lambda: b.ready("p"), "ready")
        lines: list[bytes] = []

        async def follow() -> None:
            lines.extend([line async for line in kubelet.logs("default", "p", follow=True, tail_lines=1)])

        await asyncio.wait_for(follow(), 10)
        assert lines == [b"b\n", b"c\n"]
        with pytest.raises(StatusError, match="completed pod"):
            await b.exec("p", "true")


async def test_exec_of_an_unknown_command_says_so() -> None:
    async with bench() as b:
        b.node()
        b.pod("p", container(script=SLEEP))
        await b.until(lambda: b.ready("p"), "ready")
        code, text = await b.exec("p", "gdb")
        assert code == 127
        assert 'exec: "gdb": executable file not found in $PATH' in text
        assert await b.exec("p", "sh", "-c", "echo $HOSTNAME | grep p && ls /proc | grep modules") == (
            0,
            "p\nmodules\n",
        )


async def test_a_host_path_below_a_file_is_a_failed_mount() -> None:
    async with bench() as b:
        b.node().host.root.write_atomic("/etc/file", "")
        volumes = [{"name": "v", "hostPath": {"path": "/etc/file/below", "type": "DirectoryOrCreate"}}]
        b.pod("p", container(script="true", volumeMounts=[{"name": "v", "mountPath": "/v"}]), volumes=volumes)
        await b.until(lambda: "FailedMount" in b.reasons("p"), "a failed mount")


async def test_a_crashing_program_is_its_containers_exit() -> None:
    async def crash(_ctx: object) -> int:
        raise ValueError("out of luck")

    async with bench() as b:
        b.programs.add_image("crash", ["crash"], {"crash": crash})
        b.node()
        b.pod("p", {"name": "main", "image": "lab/crash:1"}, restartPolicy="Never")
        await b.until(lambda: b.status("p").get("phase") == "Failed", "failure")
        assert "out of luck" in b.log("p")


async def test_resources_and_config_in_the_environment() -> None:
    async with bench() as b:
        b.node()
        data = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm"}, "data": {"KEY": "value"}}
        b.api.create(resources.CONFIG_MAPS, data, "default")
        env = [
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
            {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}}},
            {"name": "GONE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
        ]
        source = [{"configMapRef": {"name": "cm"}, "prefix": "P_"}]
        amounts = {"limits": {"cpu": "1500m"}, "requests": {"memory": "100Mi"}}
        script = 'echo $CPU $MEM $P_KEY "${GONE-unset}"'
        b.pod("p", container(script=script, env=env, envFrom=source, resources=amounts), restartPolicy="Never")
        await b.until(lambda: b.status("p").get("phase") == "Succeeded", "success")
        assert b.log("p") == "1500 100 value unset\n"
        assert b.status("p")["qosClass"] == "Burstable"
