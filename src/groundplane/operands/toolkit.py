"""State ``state-container-toolkit``: teach the node's container runtime to hand out GPUs.

Source: contracts/control-plane.md 4.3, 4.4, 4.5 and 9.3. What the toolkit does to the runtime is its
own affair (contracts/toolkit-cdi.md); here it gets the runtime's configuration folders and socket.
"""

import posixpath
from collections.abc import Mapping
from typing import Final

import msgspec
from lightkube.models.apps_v1 import DaemonSet
from lightkube.models.core_v1 import Container, EnvVar, Volume, VolumeMount

from ..api import names
from ..api.clusterpolicy import ClusterPolicySpec
from ..api.release import Release
from . import build, images, rbac, scripts
from .errors import problem
from .facts import ClusterFacts

STATE: Final = "state-container-toolkit"
ACCOUNT: Final = "nvidia-container-toolkit"
NAME: Final = "nvidia-container-toolkit-daemonset"
ENTRYPOINT: Final = "nvidia-container-toolkit-entrypoint"

VALIDATION_ENV: Final = ("WITH_WAIT=true", "COMPONENT=driver", "OPERATOR_NAMESPACE<-metadata.namespace")
VALIDATION_MOUNTS: Final = (
    "driver-install-dir:/run/nvidia/driver:H",
    "run-nvidia-validations:/run/nvidia/validations:B",
    "host-root:/host:ro:H",
    "host-dev-char:/host-dev-char",
)

ENV: Final = (
    "ROOT=/usr/local/nvidia",
    f"NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND={names.MANAGEMENT_CDI_KIND}",
    "NVIDIA_VISIBLE_DEVICES=void",
    "TOOLKIT_PID_FILE=/run/nvidia/toolkit/toolkit.pid",
    "NRI_NAMESPACE<-metadata.namespace",
)
CDI_ENV: Final = (
    "CDI_ENABLED=true",
    "NVIDIA_RUNTIME_SET_AS_DEFAULT=false",
    "NVIDIA_CONTAINER_RUNTIME_MODE=cdi",
    "CRIO_CONFIG_MODE=config",
)
NRI_ENV: Final = "ENABLE_NRI_PLUGIN=true"
CRIO_WITHOUT_CDI_ENV: Final = "CRIO_CONFIG_MODE=hook"

MOUNTS: Final = (
    "nvidia-container-toolkit-entrypoint:/bin/entrypoint.sh:ro sub=entrypoint.sh",
    "toolkit-root:/run/nvidia/toolkit",
    "run-nvidia-validations:/run/nvidia/validations",
    "toolkit-install-dir:/usr/local/nvidia",
    "crio-hooks:/usr/share/containers/oci/hooks.d",
    "driver-install-dir:/driver-root:H",
    "host-root:/host:ro:H",
    "cdi-root:/var/run/cdi",
)
VOLUMES: Final = (
    "toolkit-root=/run/nvidia/toolkit(DC)",
    "run-nvidia-validations=/run/nvidia/validations(DC)",
    "driver-install-dir=/run/nvidia/driver(DC)",
    "host-root=/(-)",
    "toolkit-install-dir=/usr/local/nvidia(-)",
    "crio-hooks=/run/containers/oci/hooks.d(-)",
    "host-dev-char=/dev/char(-)",
    "cdi-root=/var/run/cdi(DC)",
)
CRIO_HOOKS: Final = "/usr/share/containers/oci/hooks.d"
"""Where CRI-O reads hooks on plain Kubernetes; elsewhere the folder of the table above stands in."""


class Runtime(msgspec.Struct, frozen=True):
    """Where a container runtime keeps its settings on a host (contract 4.5); empty: it has no such thing.

    ``config_env`` and ``socket_env`` name the toolkit's runtime-specific variables.
    """

    config: str
    config_env: str
    drop_in: str = ""
    socket: str = ""
    socket_env: str = ""


RUNTIMES: Final[Mapping[str, Runtime]] = {
    "containerd": Runtime(
        config="/etc/containerd/config.toml",
        config_env="CONTAINERD_CONFIG",
        drop_in="/etc/containerd/conf.d/99-nvidia.toml",
        socket="/run/containerd/containerd.sock",
        socket_env="CONTAINERD_SOCKET",
    ),
    "crio": Runtime(
        config="/etc/crio/config.toml",
        config_env="CRIO_CONFIG",
        drop_in="/etc/crio/crio.conf.d/99-nvidia.conf",
    ),
    "docker": Runtime(
        config="/etc/docker/daemon.json",
        config_env="DOCKER_CONFIG",
        socket="/var/run/docker.sock",
        socket_env="DOCKER_SOCKET",
    ),
}
CONFIG_DIR: Final = "/runtime/config-dir/"
DROP_IN_DIR: Final = "/runtime/config-dir.d/"
SOCKET_DIR: Final = "/runtime/sock-dir/"
NRI_SOCKET_DIR: Final = "/runtime/nri-sock-dir/"
NRI_SOCKET: Final = "/var/run/nri/nri.sock"


def enabled(spec: ClusterPolicySpec, _facts: ClusterFacts) -> bool:
    """On unless switched off."""
    return build.on(spec.toolkit.enabled, True)


def render(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights, the entrypoint script and the DaemonSet."""
    script = build.config_map(ENTRYPOINT, {"entrypoint.sh": scripts.TOOLKIT_ENTRYPOINT}, {"app": NAME})
    made = [*rbac.objects(ACCOUNT, facts), script, _daemon_set(spec, facts)]
    return [build.finish(each, STATE, facts) for each in made]


def _daemon_set(spec: ClusterPolicySpec, facts: ClusterFacts) -> DaemonSet:
    section = spec.toolkit
    wiring = wire(environment(spec, facts), spec, facts)
    return build.daemon_set(
        spec,
        name=NAME,
        account=ACCOUNT,
        annotations={names.OPENSHIFT_SCC: "hostmount-anyuid"},
        node_selector={names.DEPLOY_TOOLKIT: "true"},
        init=[
            build.validation(
                spec,
                facts,
                "driver-validation",
                env=build.env(*VALIDATION_ENV),
                component=spec.validator.driver,
                mounts=build.mounts(*VALIDATION_MOUNTS),
                security="U0 S0",
            )
        ],
        containers=[_container(spec, facts, wiring)],
        volumes=[build.config_volume(ENTRYPOINT, mode=0o700), *_volumes(spec, facts), *wiring.volumes],
        pull_secrets=build.secrets_of(section, spec.validator),
        resources=section.resources,
        host_pid=True,
        host_network=build.on(section.hostNetwork),
    )


def _container(spec: ClusterPolicySpec, facts: ClusterFacts, wiring: "Wiring") -> Container:
    section = spec.toolkit
    mounts = build.mounts(*MOUNTS)
    for mount in mounts:
        if mount.name == "toolkit-install-dir":
            mount.mountPath = build.install_dir(spec)
    return build.container(
        "nvidia-container-toolkit-ctr",
        images.resolve(section, "spec.toolkit", "CONTAINER_TOOLKIT_IMAGE", facts.default_images),
        pull=section.imagePullPolicy,
        command=("/bin/sh", "-c"),
        args=section.args or ("/bin/entrypoint.sh",),
        env=wiring.env,
        mounts=[*mounts, *wiring.mounts],
        security="S0",
    )


def _volumes(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[Volume]:
    moved = {"toolkit-install-dir": build.install_dir(spec)}
    if facts.runtime == "crio" and not facts.openshift:
        moved["crio-hooks"] = CRIO_HOOKS
    volumes = build.host_volumes(*VOLUMES)
    for volume in volumes:
        if volume.hostPath and volume.name in moved:
            volume.hostPath.path = moved[volume.name]
    return volumes


def environment(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[EnvVar]:
    """The toolkit's variables before the runtime's are laid over them."""
    variables = build.env(*ENV)
    build.set_env(variables, "ROOT", build.install_dir(spec))
    if build.cdi_on(spec):
        build.set_all(variables, *CDI_ENV, *((NRI_ENV,) if build.nri_on(spec) else ()))
    elif facts.runtime == "crio":
        build.set_all(variables, CRIO_WITHOUT_CDI_ENV)
    build.user_env(variables, spec.toolkit.env)
    return variables


# --- Runtime wiring (contract 4.5) ------------------------------------------------------------------------------------


class Wiring(msgspec.Struct):
    """The toolkit's variables once they name container paths, and what brings the host's files there."""

    env: list[EnvVar]
    mounts: list[VolumeMount] = []
    volumes: list[Volume] = []
    where: str = "spec.toolkit.env"
    """The field of the policy that the variables come from, for errors."""

    def host_path(self, variable: str) -> str:
        """The host path that the user put into ``variable``, empty when it is unset."""
        return build.get_env(self.env, variable)

    def bring(self, volume: str, host_file: str, directory: str, kind: str | None, *variables: str) -> None:
        """Mount the folder of ``host_file`` at ``directory`` and point ``variables`` at the file there."""
        folder, name = posixpath.split(host_file)
        if not folder.startswith("/") or not name:
            raise problem(
                f"{self.where} {' or '.join(variables)}: expected an absolute file path on the host, "
                f"found {host_file!r}"
            )
        for variable in variables:
            build.set_env(self.env, variable, directory + name)
        self.mounts.append(VolumeMount(name=volume, mountPath=directory))
        self.volumes.append(build.host_volume(volume, folder, kind))


def wire(
    variables: list[EnvVar],
    spec: ClusterPolicySpec,
    facts: ClusterFacts,
    *,
    where: str = "spec.toolkit.env",
    drop_in: bool = True,
) -> Wiring:
    """Connect a container with the node's runtime; whatever the user set for these is a *host* path.

    ``where`` is the policy's field for ``variables``; without ``drop_in`` no drop-in folder is mounted.
    """
    if facts.runtime not in RUNTIMES:
        raise problem(f"container runtime {facts.runtime!r} is not supported; expected one of {', '.join(RUNTIMES)}")
    wiring = Wiring(env=list(variables), where=where)
    build.set_env(wiring.env, "RUNTIME", facts.runtime)
    if not build.nri_on(spec) or facts.release is Release.V26_3:
        if facts.runtime == "containerd":
            build.set_env(wiring.env, "CONTAINERD_RUNTIME_CLASS", build.runtime_class(spec))
        _wire_files(wiring, facts.runtime, RUNTIMES[facts.runtime], drop_in=drop_in)
    if build.nri_on(spec):
        socket = wiring.host_path("NRI_SOCKET") or NRI_SOCKET
        wiring.bring("nri-socket", socket, NRI_SOCKET_DIR, "DirectoryOrCreate", "NRI_SOCKET")
    return wiring


def _wire_files(wiring: Wiring, name: str, runtime: Runtime, *, drop_in: bool) -> None:
    config = wiring.host_path(runtime.config_env) or wiring.host_path("RUNTIME_CONFIG") or runtime.config
    wiring.bring(f"{name}-config", config, CONFIG_DIR, "DirectoryOrCreate", "RUNTIME_CONFIG", runtime.config_env)
    if drop_in and runtime.drop_in:
        file = wiring.host_path("RUNTIME_DROP_IN_CONFIG") or runtime.drop_in
        wiring.bring(f"{name}-drop-in-config", file, DROP_IN_DIR, "DirectoryOrCreate", "RUNTIME_DROP_IN_CONFIG")
        build.set_env(wiring.env, "RUNTIME_DROP_IN_CONFIG_HOST_PATH", file)
    if sources := wiring.host_path("RUNTIME_CONFIG_SOURCE"):
        build.set_env(wiring.env, "RUNTIME_CONFIG_SOURCE", ",".join(map(_source_in_container, sources.split(","))))
    if runtime.socket:
        socket = wiring.host_path(runtime.socket_env) or runtime.socket
        wiring.bring(f"{name}-socket", socket, SOCKET_DIR, None, "RUNTIME_SOCKET", runtime.socket_env)


def _source_in_container(source: str) -> str:
    kind, equals, path = source.partition("=")
    return f"file={posixpath.normpath('/host/' + path)}" if kind == "file" and equals else source
