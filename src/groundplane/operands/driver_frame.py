"""What driver DaemonSets of the two kinds that ask for them differ in: ClusterPolicy's section, and NVIDIADriver.

Both come to the same pod (driver.py makes it), under other names, on other nodes, with images that are looked up by
other rules, and with fields that stand elsewhere in the document, which an error has to name. An NVIDIADriver is read
as if a ClusterPolicy said the same (nvidiadriver.py), so that everything else is one code.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from lightkube.models.core_v1 import Affinity


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """Where in the document the fields of a driver stand, for errors."""

    driver: str
    manager: str
    repositories: str
    certificates: str
    modules: str
    topology: str
    licence_secret: str
    licence_config_map: str
    secret_env: str


CLUSTER_POLICY: Final = Fields(
    driver="spec.driver",
    manager="spec.driver.manager",
    repositories="spec.driver.repoConfig.configMapName",
    certificates="spec.driver.certConfig.name",
    modules="spec.driver.kernelModuleConfig",
    topology="spec.driver.virtualTopology.config",
    licence_secret="spec.driver.licensingConfig.secretName",
    licence_config_map="spec.driver.licensingConfig.configMapName",
    secret_env="spec.driver.secretEnv",
)
NVIDIA_DRIVER: Final = Fields(
    driver="spec",
    manager="spec.manager",
    repositories="spec.repoConfig.name",
    certificates="spec.certConfig.name",
    modules="spec.kernelModuleConfig",
    topology="spec.virtualTopologyConfig.name",
    licence_secret="spec.licensingConfig.secretName",
    licence_config_map="spec.licensingConfig.name",
    secret_env="spec.secretEnv",
)


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One pool's DaemonSet as far as its kind decides it.

    ``labels`` are on the object and on pods and hold ``app``, by which pods are selected. ``images`` are those of the
    extras by their field (``gds``, ``gdrcopy``). ``void`` keeps GPUs out of the driver's containers by a variable,
    where the images may not say so themselves. A ``host_manager`` is the driver of a hypervisor: its container gets
    what it needs to make virtual functions, and no probe that asks for a GPU of its own. ``toolkit_mounts`` are rows
    for OpenShift's driver toolkit, besides what it always needs.
    """

    fields: Fields
    account: str
    labels: Mapping[str, str]
    node_selector: Mapping[str, str]
    affinity: Affinity
    image: str
    images: Mapping[str, str]
    args: Sequence[str]
    void: bool = False
    host_manager: bool = False
    toolkit_mounts: Sequence[str] = ()
