"""Distributions of Kubernetes that keep containerd's configuration elsewhere (contracts/toolkit-cdi.md 5.7).

Nothing is guessed: where the configured file is not there but a distribution's is, a person is told what to set
(section 8, row 14). The folder behind a mount is recognised by its file system and number.
"""

import os
from typing import Final

import msgspec

from ...process import Process
from ..settings import RuntimeSettings


class Distribution(msgspec.Struct, frozen=True):
    """Host paths: the file by which it is known, and the values to set."""

    name: str
    marker: str
    config: str
    socket: str
    sources: str = ""
    generated: bool = False
    """Whether it writes its containerd's configuration anew at each start."""

    @property
    def remedy(self) -> str:
        """The values to set, as a person writes them."""
        values = {"CONTAINERD_CONFIG": self.config, "CONTAINERD_SOCKET": self.socket}
        if self.sources:
            values["RUNTIME_CONFIG_SOURCE"] = self.sources
        return ", ".join(f"{name}={value}" for name, value in values.items())


_K3S_SOCKET: Final = "/run/k3s/containerd/containerd.sock"
_RANCHER: Final = "/var/lib/rancher/{}/agent/etc/containerd/config.toml"
_MICROK8S: Final = "/var/snap/microk8s/current/args"
DISTRIBUTIONS: Final = (
    Distribution("K3s", _RANCHER.format("k3s"), _RANCHER.format("k3s"), _K3S_SOCKET, generated=True),
    Distribution("RKE2", _RANCHER.format("rke2"), _RANCHER.format("rke2"), _K3S_SOCKET, generated=True),
    Distribution("k0s", "/etc/k0s/containerd.toml", "/etc/k0s/containerd.d/nvidia.toml", "/run/k0s/containerd.sock"),
    Distribution(
        "MicroK8s",
        f"{_MICROK8S}/containerd-template.toml",
        f"{_MICROK8S}/containerd-template.toml",
        "/var/snap/microk8s/common/run/containerd.sock",
        f"file={_MICROK8S}/containerd.toml",
    ),
)
USUAL: Final = "/etc/containerd/config.toml"


def on_host(settings: RuntimeSettings, path: str) -> str:
    """A host path as the process sees it."""
    return path if settings.host_root in ("", "/") else settings.host_root.rstrip("/") + path


def present(process: Process, settings: RuntimeSettings) -> Distribution | None:
    """The distribution whose file is on the host, if its folder is not where the configured file is."""
    for each in DISTRIBUTIONS:
        if process.path(on_host(settings, each.marker)).exists():
            own = host_path(process, settings) or settings.config
            return None if os.path.dirname(own) == os.path.dirname(each.config) else each  # noqa: PTH120
    return None


def of_config(process: Process, settings: RuntimeSettings) -> Distribution | None:
    """The distribution whose folder the configured file is in."""
    own = host_path(process, settings)
    return next((each for each in DISTRIBUTIONS if each.config == own), None)


def host_path(process: Process, settings: RuntimeSettings) -> str:
    """The configured file's path on the host; empty if it is not known."""
    folder, _, name = settings.config.rpartition("/")
    if settings.host_root in ("", "/"):
        return settings.config
    known = [USUAL, *(each.config for each in DISTRIBUTIONS), settings.config]
    if settings.drop_in_host_path:
        known.append(os.path.dirname(os.path.dirname(settings.drop_in_host_path)) + "/" + name)  # noqa: PTH120
    for candidate in dict.fromkeys(os.path.dirname(each) for each in known):  # noqa: PTH120
        if _same_folder(process, folder or "/", on_host(settings, candidate)):
            return f"{candidate.rstrip('/')}/{name}"
    return ""


def _same_folder(process: Process, one: str, other: str) -> bool:
    try:
        return process.path(one).samefile(process.path(other))
    except OSError:
        return False
