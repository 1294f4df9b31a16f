"""State ``state-kata-manager``, which only release 26.3.3 has: contracts/control-plane.md 1.2 and 4.1."""

import pytest
import yaml
from operands import notation, rendering

FILE = "26.3.3-default"
NAME = "nvidia-kata-manager"
CLASSES = [
    {"name": "kata-a", "artifacts": {"url": "r/a:1", "pullSecret": ""}},
    {"name": "kata-b", "artifacts": {"url": "r/b:1"}, "nodeSelector": {"zone": "x"}},
]


def policy(classes=CLASSES, **section):
    config = {"runtimeClasses": classes, "artifactsDir": section.pop("artifactsDir", None)}
    return {
        "sandboxWorkloads": {"enabled": True, "mode": "kata"},
        "kataManager": {
            "enabled": True,
            "repository": "r",
            "image": "k",
            "version": "1",
            "config": config,
            **section,
        },
    }


def render(changes=None, **more):
    return rendering.objects(FILE, changes or policy(), **more)


def test_daemon_set():
    found = render()["DaemonSet", NAME]
    assert found["spec"]["selector"] == {"matchLabels": {"name": NAME}}
    assert found["metadata"]["labels"]["app"] == NAME
    pod, container = notation.pod(found), notation.container(found, NAME)
    assert (pod["hostPID"], pod["terminationGracePeriodSeconds"]) == (True, 30)
    assert pod["nodeSelector"] == {"nvidia.com/gpu.deploy.kata-manager": "true"}
    assert "initContainers" not in pod
    assert container["image"] == "r/k:1"
    assert (container["command"], container["args"]) == (["/bin/sh", "-c"], ["/bin/entrypoint.sh"])
    directory = "/opt/nvidia-gpu-operator/artifacts/runtimeclasses"
    assert notation.env(container) == [
        "NODE_NAME<-spec.nodeName",
        "CONFIG_FILE=/etc/kata-manager/config.yaml",
        "LOAD_KERNEL_MODULES=true",
        "CDI_ENABLED=true",
        f"KATA_ARTIFACTS_DIR={directory}",
        "RUNTIME=containerd",
        "CONTAINERD_RUNTIME_CLASS=nvidia",
        "RUNTIME_CONFIG=/runtime/config-dir/config.toml",
        "CONTAINERD_CONFIG=/runtime/config-dir/config.toml",
        "RUNTIME_SOCKET=/runtime/sock-dir/containerd.sock",
        "CONTAINERD_SOCKET=/runtime/sock-dir/containerd.sock",
    ]
    assert notation.mounts(container) == [
        "nvidia-kata-manager-entrypoint:/bin/entrypoint.sh:ro (sub=entrypoint.sh)",
        "nvidia-kata-manager-config:/etc/kata-manager/config.yaml (sub=config.yaml)",
        "host-root:/host:ro:H",
        "cdi-root:/var/run/cdi",
        "run-nvidia-validations:/run/nvidia/validations",
        f"kata-artifacts:{directory}",
        "containerd-config:/runtime/config-dir/",
        "containerd-socket:/runtime/sock-dir/",
    ]
    assert notation.volumes(pod) == [
        "nvidia-kata-manager-entrypoint=nvidia-kata-manager-entrypoint(0700)",
        "nvidia-kata-manager-config=nvidia-kata-manager-config(0700)",
        "host-root=/(-)",
        "cdi-root=/var/run/cdi(DC)",
        "run-nvidia-validations=/run/nvidia/validations(DC)",
        f"kata-artifacts={directory}(DC)",
        "containerd-config=/etc/containerd(DC)",
        "containerd-socket=/run/containerd(-)",
    ]
    assert notation.security(container) == "privileged S0"
    probe = container["readinessProbe"]
    assert (probe["initialDelaySeconds"], probe["periodSeconds"]) == (5, 5)
    assert "k8s-kata-manager.pid" in probe["exec"]["command"][2]


def test_config_map_and_its_hash():
    objects = render()
    document = yaml.safe_load(objects["ConfigMap", "nvidia-kata-manager-config"]["data"]["config.yaml"])
    assert document == {
        "artifactsDir": "/opt/nvidia-gpu-operator/artifacts/runtimeclasses",
        "runtimeClasses": [
            {"name": "kata-a", "artifacts": {"url": "r/a:1", "pullSecret": ""}},
            {"name": "kata-b", "artifacts": {"url": "r/b:1"}, "nodeSelector": {"zone": "x"}},
        ],
    }
    key = "nvidia.com/kata-manager.last-applied-hash"
    hashes = [
        each["DaemonSet", NAME]["spec"]["template"]["metadata"]["annotations"][key]
        for each in (objects, render(policy(CLASSES[:1])), render())
    ]
    assert hashes[0] == hashes[2] != hashes[1]


def test_artifacts_folder():
    found = render(policy(artifactsDir="/data/kata"))["DaemonSet", NAME]
    container = notation.container(found, NAME)
    assert notation.env_dict(container)["KATA_ARTIFACTS_DIR"] == "/data/kata"
    assert "kata-artifacts:/data/kata" in notation.mounts(container)
    assert "kata-artifacts=/data/kata(DC)" in notation.volumes(notation.pod(found))


def test_entrypoint():
    script = render()["ConfigMap", "nvidia-kata-manager-entrypoint"]["data"]["entrypoint.sh"]
    assert script.startswith("#!/bin/sh\n")
    assert "[ -f /run/nvidia/validations/vfio-pci-ready ]" in script
    assert script.rstrip().endswith("exec k8s-kata-manager")


def test_runtime_classes():
    objects = render()
    for name, selector in (("kata-a", {}), ("kata-b", {"zone": "x"})):
        found = objects["RuntimeClass", name]
        assert found["handler"] == name
        assert found["metadata"]["labels"]["nvidia.com/kata-runtime-class"] == "true"
        assert found["metadata"]["labels"]["app.kubernetes.io/component"] == "gpu-operator"
        assert found["scheduling"] == {"nodeSelector": {"nvidia.com/gpu.deploy.kata-manager": "true", **selector}}
    assert render(policy(None))["DaemonSet", NAME]


@pytest.mark.parametrize("names", [["nvidia"], ["kata-a", "nvidia-cdi"], ["kata-a", "kata-a"]])
def test_runtime_class_names_must_be_free(names):
    classes = [{"name": name, "artifacts": {"url": "u"}} for name in names]
    error = rendering.error(policy(classes), FILE)
    assert error.state == "state-kata-manager"
    assert f"runtimeClasses[{len(names) - 1}].name" in error.message
    assert f"'{names[-1]}'" in error.message


def test_crio_has_no_drop_in_either():
    found = render(runtime="crio")["DaemonSet", NAME]
    env = notation.env_dict(notation.container(found, NAME))
    assert env["RUNTIME"] == "crio"
    assert not any(name.startswith("RUNTIME_DROP_IN") for name in env)
    assert not any("drop-in" in row for row in notation.volumes(notation.pod(found)))


def test_since_26_7_nothing_is_left():
    objects = rendering.objects("26.7.0-default", policy())
    assert not [key for key in objects if "kata-manager" in key[1] or key[1].startswith("kata-")]


def test_runtime_files_are_the_sections_own_variables():
    env = [{"name": "CONTAINERD_CONFIG", "value": "/opt/containerd/c.toml"}]
    found = render(policy(env=env))["DaemonSet", NAME]
    assert "containerd-config=/opt/containerd(DC)" in notation.volumes(notation.pod(found))
    error = rendering.error(policy(env=[{"name": "CONTAINERD_CONFIG", "value": "relative.toml"}]), FILE)
    assert error.state == "state-kata-manager"
    assert error.message.startswith("spec.kataManager.env")
