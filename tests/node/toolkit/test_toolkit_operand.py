"""The toolkit reads what the operator's DaemonSet tells it: contracts/toolkit-cdi.md 4.1 and 4.2."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from node.fakeprocess import FakeProcess
from operands import notation
from operands.rendering import DEFAULTS, RELEASES, daemon_set, release_of

from groundplane.api.release import Release
from groundplane.node.toolkit.options import CdiSettings, Settings, load
from groundplane.node.toolkit.restart import Mode

NAME, CONTAINER = "nvidia-container-toolkit-daemonset", "nvidia-container-toolkit-ctr"
READY = {
    "IS_HOST_DRIVER": "false",
    "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
    "DRIVER_ROOT_CTR_PATH": "/driver-root",
    "NVIDIA_DEV_ROOT": "/run/nvidia/driver",
    "DEV_ROOT_CTR_PATH": "/driver-root",
}
"""What the entry script adds where the driver is a container's (contracts/mig-exporter-validator.md 6.2)."""
FILES = {
    "containerd": ("config.toml", "99-nvidia.toml", "/etc/containerd/conf.d/99-nvidia.toml"),
    "crio": ("config.toml", "99-nvidia.conf", "/etc/crio/crio.conf.d/99-nvidia.conf"),
    "docker": ("daemon.json", "", ""),
}


def settings(
    folder: Path, release: Release, runtime: str, changes: Mapping[str, Any] | None = None
) -> tuple[Settings, dict[str, str]]:
    rendered = daemon_set(NAME, DEFAULTS[release], changes or {}, runtime=runtime)
    container = notation.container(rendered, CONTAINER)
    env = {
        each["name"]: each.get("value", "gpu-operator" if each["name"] == "NRI_NAMESPACE" else "")
        for each in container["env"]
    }
    process = FakeProcess(folder, ("nvidia-toolkit",), {**env, **READY}, release=release_of(release.value))
    found = load(process)
    return found, {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}


@pytest.mark.parametrize("release", RELEASES, ids=str)
@pytest.mark.parametrize("runtime", list(FILES))
def test_4_2_by_default(runtime: str, release: Release, tmp_path: Path) -> None:
    found, mounts = settings(tmp_path, release, runtime)
    config, drop_in, host_path = FILES[runtime]
    told = found.runtime
    assert told is not None
    assert found.nri is None
    assert (told.config, told.drop_in) == (
        f"/runtime/config-dir/{config}",
        f"/runtime/config-dir.d/{drop_in}" if drop_in else "",
    )
    assert told.drop_in_host_path == host_path
    assert (told.name, told.default, told.enable_cdi) == ("nvidia", "", True)
    assert found.cdi == CdiSettings("management.nvidia.com/gpu", "/var/run/cdi")
    assert found.control_nodes
    assert found.restart.mode is (Mode.SYSTEMD if runtime == "crio" else Mode.SIGNAL)
    assert (found.roots.driver, found.roots.host_driver) == ("/driver-root", "/run/nvidia/driver")
    for path in (told.config, told.drop_in, found.restart.socket if runtime != "crio" else ""):
        assert not path or any(path.startswith(mount.rstrip("/") + "/") for mount in mounts), path
    assert found.folder == "/usr/local/nvidia/toolkit"
    assert {"/usr/local/nvidia", "/var/run/cdi", "/run/nvidia/toolkit", "/driver-root", found.host_root} <= set(mounts)


@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_4_2_nri(release: Release, tmp_path: Path) -> None:
    found, mounts = settings(tmp_path, release, "containerd", {"cdi": {"nriPluginEnabled": True}})
    assert found.runtime is None
    assert found.nri is not None
    assert (found.nri.socket, found.nri.namespace) == ("/runtime/nri-sock-dir/nri.sock", "gpu-operator")
    assert "/runtime/nri-sock-dir/" in mounts
    assert ("/runtime/config-dir/" in mounts) is (release is Release.V26_3)


def test_4_2_without_cdi(tmp_path: Path) -> None:
    found, _ = settings(tmp_path, Release.V26_7, "crio", {"cdi": {"enabled": False}})
    assert found.cdi is None
    assert not found.control_nodes
    assert found.runtime is not None
    assert (found.runtime.config_mode, found.runtime.enable_cdi, found.runtime.default) == ("hook", False, "nvidia")
    assert found.runtime.hook_path == "/usr/local/nvidia/toolkit/nvidia-container-runtime-hook"


def test_4_2_what_the_user_says(tmp_path: Path) -> None:
    changes = {
        "operator": {"runtimeClass": "gpu"},
        "toolkit": {
            "installDir": "/opt/nvidia",
            "env": [
                {"name": "CONTAINERD_SOCKET", "value": "/run/k3s/containerd/containerd.sock"},
                {"name": "CONTAINERD_CONFIG", "value": "/var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl"},
                {"name": "RUNTIME_CONFIG_SOURCE", "value": "file=/var/lib/rancher/rke2/config.toml"},
                {"name": "CDI_LIBRARIES", "value": "hooks"},
            ],
        },
    }
    found, _ = settings(tmp_path, Release.V26_7, "containerd", changes)
    assert found.folder == "/opt/nvidia/toolkit"
    told = found.runtime
    assert told is not None
    assert (told.name, told.config) == ("gpu", "/runtime/config-dir/config.toml.tmpl")
    assert told.sources == ("file=/host/var/lib/rancher/rke2/config.toml",)
    assert found.restart.socket == "/runtime/sock-dir/containerd.sock"
    assert found.libraries.value == "hooks"
