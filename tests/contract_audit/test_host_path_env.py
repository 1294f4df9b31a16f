"""``hostPaths`` set variables on containers; what the policy's author wrote wins (contract 1.1, 4.4)."""

from pathlib import Path

import pytest
import yaml

from groundplane.api import codec
from groundplane.operands import stack
from groundplane.operands.facts import ClusterFacts, GpuNode

POLICY = Path(__file__).parent.parent / "data" / "clusterpolicy" / "26.7.0-default.yaml"
FACTS = ClusterFacts(
    namespace="gpu-operator", nodes=(GpuNode(name="gpu-1", kernel="6.8.0", os_id="ubuntu", os_version="24.04"),)
)
ROOT, DRIVER = "/custom", "/opt/driver"
ENV_OF = {
    "k8s-driver-manager": ("driver", "manager"),
    "nvidia-container-toolkit-ctr": ("toolkit",),
    "nvidia-device-plugin": ("devicePlugin",),
    "nvidia-mig-manager": ("migManager",),
    "driver-validation": ("validator", "driver"),
}
"""Containers beside a volume of the host's root, and the section whose ``env`` is theirs."""


def _containers(**env):
    document = yaml.safe_load(POLICY.read_text())
    document["spec"]["hostPaths"] = {"rootFS": ROOT, "driverInstallDir": DRIVER}
    for path in ENV_OF.values():
        section = document["spec"]
        for part in path:
            section = section.setdefault(part, {})
        section["env"] = [{"name": name, "value": value} for name, value in env.items()]
    spec = codec.load_cluster_policy(document).policy.spec
    for result in stack.render(spec, FACTS):
        for each in result.objects:
            if each["kind"] == "DaemonSet":
                pod = each["spec"]["template"]["spec"]
                volumes = {volume["name"] for volume in pod["volumes"]}
                for container in (*pod.get("initContainers", ()), *pod["containers"]):
                    yield volumes, container


def _names(container):
    return [variable["name"] for variable in container.get("env", ())]


def _values(container):
    return {variable["name"]: variable.get("value") for variable in container.get("env", ())}


def test_every_container_beside_the_hosts_root_is_told_of_it_once():
    for volumes, container in _containers():
        expected = 1 if "host-root" in volumes else 0
        assert _names(container).count("HOST_ROOT") == expected, container["name"]


@pytest.mark.parametrize("name", ENV_OF)
def test_the_users_value_of_the_root_wins(name):
    found = [container for _, container in _containers(HOST_ROOT="/theirs") if container["name"] == name]
    assert found
    for container in found:
        assert _values(container)["HOST_ROOT"] == "/theirs"
        assert _names(container).count("HOST_ROOT") == 1


def test_the_users_value_of_the_drivers_folder_wins():
    variables = {"DRIVER_INSTALL_DIR": "/a", "DRIVER_INSTALL_DIR_CTR_PATH": "/b"}
    found = [container for _, container in _containers(**variables) if container["name"] == "driver-validation"]
    assert len(found) == 2
    for container in found:
        assert variables.items() <= _values(container).items()


@pytest.mark.parametrize("name", ENV_OF)
def test_a_users_variable_may_refer_to_the_root(name):
    """Kubernetes expands ``$(NAME)`` only from variables that stand before."""
    for _, container in _containers(THEIRS="$(HOST_ROOT)/x"):
        if container["name"] == name:
            order = _names(container)
            assert order.index("HOST_ROOT") < order.index("THEIRS")
