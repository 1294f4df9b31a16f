"""The files that a policy puts into driver containers: repositories, certificates, licences, module parameters.

Every function answers with an :class:`Attachment`, mounts and the volumes they need, empty when the policy does
not ask for it. Paths differ by distribution and are tables here. Source: contracts/control-plane.md 4.6, 5.4, 1.3.
A ConfigMap or Secret that the policy names and that does not exist is a RenderError that names the field, instead of
a pod that waits for its volume for ever.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from lightkube.models.core_v1 import (
    EnvFromSource,
    KeyToPath,
    SecretEnvSource,
    SecretVolumeSource,
    Volume,
    VolumeMount,
)

from ..api import clusterpolicy as cp
from ..api.release import Release
from . import build
from .driver_frame import Fields
from .driver_pools import Kind, Pool
from .errors import problem
from .facts import ClusterFacts

DRIVERS_DIR: Final = "/drivers"

_RED_HAT: Final = ("centos", "ol", "rhcos", "rhel", "rocky")
_DEBIAN: Final = ("debian", "ubuntu")
_SUSE: Final = ("sl-micro", "sles")

REPOSITORY_DIRS: Final[Mapping[str, str]] = {
    **dict.fromkeys(_RED_HAT, "/etc/yum.repos.d"),
    **dict.fromkeys(_DEBIAN, "/etc/apt/sources.list.d"),
    **dict.fromkeys(_SUSE, "/etc/zypp/repos.d"),
}
CERTIFICATE_DIRS: Final[Mapping[str, str]] = {
    **dict.fromkeys(_RED_HAT, "/etc/pki/ca-trust/extracted/pem"),
    **dict.fromkeys(_DEBIAN, "/usr/local/share/ca-certificates"),
    **dict.fromkeys(_SUSE, "/etc/pki/trust/anchors"),
}

# (path in the container, path on the host, hostPath type), in order of the container's path.
_RHEL_SUBSCRIPTION: Final = (
    ("/run/secrets/etc-pki-entitlement", "/etc/pki/entitlement", "Directory"),
    ("/run/secrets/redhat.repo", "/etc/yum.repos.d/redhat.repo", "File"),
    ("/run/secrets/rhsm", "/etc/rhsm", "Directory"),
)
_SUSE_SUBSCRIPTION: Final = (
    ("/etc/SUSEConnect", "/etc/SUSEConnect", "FileOrCreate"),
    ("/etc/zypp/credentials.d", "/etc/zypp/credentials.d", "Directory"),
)

LICENCE_VOLUME: Final = "licensing-config"
LICENCE_FILE: Final = "gridd.conf"
LICENCE_TOKEN: Final = "client_configuration_token.tok"
TOPOLOGY_VOLUME: Final = "topology-config"
TOPOLOGY_FILE: Final = "nvidia-topologyd.conf"
TRUSTED_CA: Final = "gpu-operator-trusted-ca"
TRUSTED_CA_LABELS: Final = {"config.openshift.io/inject-trusted-cabundle": "true"}
TRUSTED_CA_KEY: Final = "ca-bundle.crt"
TRUSTED_CA_DIR: Final = "/etc/pki/ca-trust/extracted/pem"
TRUSTED_CA_FILE: Final = "tls-ca-bundle.pem"


class Attachment(msgspec.Struct, frozen=True):
    """Mounts for a container and the pod volumes behind them."""

    mounts: tuple[VolumeMount, ...] = ()
    volumes: tuple[Volume, ...] = ()

    def __add__(self, other: "Attachment") -> "Attachment":
        """Both; a volume that both need (one ConfigMap for two purposes) is there once."""
        volumes = {volume.name: volume for volume in (*self.volumes, *other.volumes)}
        return Attachment((*self.mounts, *other.mounts), tuple(volumes.values()))


NOTHING: Final = Attachment()


# --- Looking things up ------------------------------------------------------------------------------------------------
def keys_of(kind: str, name: str, field: str, facts: ClusterFacts) -> tuple[str, ...]:
    """The keys of a ConfigMap or Secret; RenderError naming ``field`` when it does not exist."""
    keys = (facts.config_maps if kind == "ConfigMap" else facts.secrets).get(name)
    if keys is None:
        raise problem(
            f"{field}: {kind} {name!r} does not exist in namespace {facts.namespace!r}: "
            "create it there, or clear the field"
        )
    return keys


def check_files(kind: str, name: str, field: str, files: Iterable[str], facts: ClusterFacts) -> None:
    """RenderError when an object that was looked up lacks one of ``files``, which a pod would wait for in vain.

    An object that nobody looked up (rendering without a cluster) passes.
    """
    if name not in (facts.config_maps if kind == "ConfigMap" else facts.secrets):
        return
    keys = keys_of(kind, name, field, facts)
    for file in files:
        if file not in keys:
            raise problem(f"{field}: {kind} {name!r} in namespace {facts.namespace!r} has no key {file!r}: add it")


# Volumes of driver pods whose name a ConfigMap may have too; such a ConfigMap's volume is named after its purpose.
TAKEN: Final = frozenset(
    {
        *("dev-log", "driver-startup-probe-script", "firmware-search-path", "host-os-release", "host-root", "host-sys"),
        *("host-sys-devices-system", "mlnx-ofed-usr-src", "nv-firmware", "run-mellanox-drivers", "run-nvidia"),
        *("run-nvidia-fabricmanager", "run-nvidia-topologyd", "run-nvidia-validations", "sysfs-memory-online"),
        *("var-log", "cgroup", "vfio", "lib-modules", "shared-nvidia-driver-toolkit"),
        *(LICENCE_VOLUME, TOPOLOGY_VOLUME, TRUSTED_CA),
    }
)


def _volume_name(config_map: str, purpose: str) -> str:
    """The ConfigMap's own name where a volume may bear it (a DNS label, not taken), else ``purpose``."""
    usable = re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", config_map) and config_map not in TAKEN
    return config_map if usable and not config_map.startswith("subscription-config-") else purpose


def _every_key(config_map: str, field: str, purpose: str, directory: str, facts: ClusterFacts) -> Attachment:
    """Each key of a ConfigMap as a file of ``directory``, which keeps what the image has there."""
    keys = sorted(keys_of("ConfigMap", config_map, field, facts))
    name = _volume_name(config_map, purpose)
    mounts = [
        VolumeMount(name=name, mountPath=posixpath.join(directory, key), subPath=key, readOnly=True) for key in keys
    ]
    return Attachment(tuple(mounts), (build.config_volume(name, config_map, items={key: key for key in keys}),))


# --- One function a purpose -------------------------------------------------------------------------------------------
def module_parameters(config: cp.NamedConfig, field: str, facts: ClusterFacts) -> Attachment:
    """Kernel module parameters: each key of the ConfigMap at ``/drivers/<key>``."""
    if not config.name:
        return NOTHING
    return _every_key(config.name, f"{field}.name", "kernel-module-config", DRIVERS_DIR, facts)


def licence(config: cp.Licensing, facts: ClusterFacts, fields: Fields) -> Attachment:
    """vGPU licensing: ``gridd.conf`` and, with the NVIDIA licence system on, the client's token."""
    files = (LICENCE_FILE, LICENCE_TOKEN) if build.on(config.nlsEnabled) else (LICENCE_FILE,)
    if config.secretName:
        check_files("Secret", config.secretName, fields.licence_secret, files, facts)
        items = [KeyToPath(key=file, path=file) for file in files]
        volume = Volume(name=LICENCE_VOLUME, secret=SecretVolumeSource(secretName=config.secretName, items=items))
    elif config.configMapName:
        check_files("ConfigMap", config.configMapName, fields.licence_config_map, files, facts)
        volume = build.config_volume(LICENCE_VOLUME, config.configMapName, items={file: file for file in files})
    else:
        return NOTHING
    paths = {
        LICENCE_FILE: f"{DRIVERS_DIR}/{LICENCE_FILE}",
        LICENCE_TOKEN: f"{DRIVERS_DIR}/ClientConfigToken/{LICENCE_TOKEN}",
    }
    rows = [f"{LICENCE_VOLUME}:{paths[file]}:ro sub={file}" for file in files]
    return Attachment(tuple(build.mounts(*rows)), (volume,))


def topology(config: cp.VirtualTopology, facts: ClusterFacts, fields: Fields) -> Attachment:
    """The vGPU topology daemon's configuration."""
    if not config.config:
        return NOTHING
    check_files("ConfigMap", config.config, fields.topology, (TOPOLOGY_FILE,), facts)
    return Attachment(
        tuple(build.mounts(f"{TOPOLOGY_VOLUME}:/etc/nvidia/{TOPOLOGY_FILE}:ro sub={TOPOLOGY_FILE}")),
        (build.config_volume(TOPOLOGY_VOLUME, config.config, items={TOPOLOGY_FILE: TOPOLOGY_FILE}),),
    )


def packages(driver: cp.DriverSpec, pool: Pool, facts: ClusterFacts, fields: Fields) -> Attachment:
    """Package repositories and certificates where the pool's distribution keeps them; none for precompiled drivers.

    Without GPU nodes there is no distribution yet, and nothing to attach.
    """
    if pool.kind is Kind.PRECOMPILED or not pool.os_id:
        return NOTHING
    rows = (
        (driver.repoConfig.configMapName, fields.repositories, "repo-config", REPOSITORY_DIRS),
        (driver.certConfig.name, fields.certificates, "cert-config", CERTIFICATE_DIRS),
    )
    found = NOTHING
    for config_map, field, purpose, directories in rows:
        if config_map:
            found += _every_key(config_map, field, purpose, _directory(directories, pool, field), facts)
    return found


def _directory(directories: Mapping[str, str], pool: Pool, field: str) -> str:
    if pool.os_id in directories:
        return directories[pool.os_id]
    raise problem(
        f"{field}: not supported on operating system {pool.os_id!r} ({pool.os_tag}); it works on "
        f"{', '.join(sorted(directories))}: clear the field, or bake the files into the driver image"
    )


def subscriptions(driver: cp.DriverSpec, pool: Pool, facts: ClusterFacts) -> Attachment:
    """The host's entitlement to its distributor's packages, for containers that install some."""
    if pool.kind is Kind.PRECOMPILED:
        return NOTHING
    paths = _subscription_paths(driver, pool.os_id, facts)
    named = [(f"subscription-config-{number}", *row) for number, row in enumerate(paths)]
    return Attachment(
        tuple(VolumeMount(name=name, mountPath=path, readOnly=True) for name, path, _, _ in named),
        tuple(build.host_volume(name, host, kind) for name, _, host, kind in named),
    )


def _subscription_paths(driver: cp.DriverSpec, os_id: str, facts: ClusterFacts) -> tuple[tuple[str, str, str], ...]:
    if os_id in _SUSE:
        return _SUSE_SUBSCRIPTION
    own_repositories = bool(driver.repoConfig.configMapName) and facts.release is not Release.V26_3
    if os_id != "rhel" or facts.openshift or facts.runtime == "crio" or own_repositories:
        return ()
    return _RHEL_SUBSCRIPTION


def host_modules(pool: Pool) -> Attachment:
    """The host's modules: what SUSE's precompiled drivers are linked against when they are loaded."""
    if pool.kind is not Kind.PRECOMPILED or pool.os_id not in _SUSE:
        return NOTHING
    return Attachment(
        tuple(build.mounts("lib-modules:/run/host/lib/modules:ro")),
        tuple(build.host_volumes("lib-modules=/lib/modules(D)")),
    )


def trusted_ca(driver: cp.DriverSpec, pool: Pool, facts: ClusterFacts) -> Attachment:
    """OpenShift's bundle of trusted authorities, where the cluster-wide proxy names one.

    The folder is mounted as a whole, so that a renewed bundle arrives; but as a single file where
    certificates of the policy (:func:`packages`) go into the same folder.
    """
    if not trusts_own_ca(facts):
        return NOTHING
    shared = bool(driver.certConfig.name) and CERTIFICATE_DIRS.get(pool.os_id) == TRUSTED_CA_DIR
    row = f"{TRUSTED_CA}:{TRUSTED_CA_DIR}/{TRUSTED_CA_FILE}:ro sub={TRUSTED_CA_FILE}"
    return Attachment(
        tuple(build.mounts(row if shared else f"{TRUSTED_CA}:{TRUSTED_CA_DIR}:ro")),
        (build.config_volume(TRUSTED_CA, items={TRUSTED_CA_KEY: TRUSTED_CA_FILE}),),
    )


def trusts_own_ca(facts: ClusterFacts) -> bool:
    """The cluster is an OpenShift whose proxy comes with authorities of its own."""
    return bool(facts.openshift and facts.proxies and facts.proxies.trusted_ca)


def proxy_env(facts: ClusterFacts) -> list[str]:
    """OpenShift's cluster-wide proxy as environment rows, each in upper and lower case; unset ones left out.

    Elsewhere a proxy is set in ``spec.driver.env``.
    """
    if not facts.openshift or not facts.proxies:
        return []
    proxies = facts.proxies
    values = {"HTTPS_PROXY": proxies.https, "HTTP_PROXY": proxies.http, "NO_PROXY": proxies.no_proxy}
    return [f"{each}={value}" for name, value in values.items() if value for each in (name, name.lower())]


def secret_env(driver: cp.DriverSpec, pool: Pool, facts: ClusterFacts, fields: Fields) -> list[EnvFromSource] | None:
    """The Secret whose keys become environment variables; precompiled drivers take none."""
    if not driver.secretEnv or pool.kind is Kind.PRECOMPILED:
        return None
    keys_of("Secret", driver.secretEnv, fields.secret_env, facts)
    return [EnvFromSource(secretRef=SecretEnvSource(name=driver.secretEnv))]
