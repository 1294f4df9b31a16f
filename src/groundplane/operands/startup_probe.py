"""The driver container's startup probe: a script in the ConfigMap ``nvidia-driver-startup-probe``.

The probe passes once the driver works, and then leaves ``.driver-ctr-ready`` on the node, by which the
validator learns that a driver container runs and which extras belong to it. Source of the order of its
checks and of the file: contracts/control-plane.md 4.3 and 9.10, contracts/driver-lifecycle.md 6.8, 6.9 and
6.11 (the texts that the doctor looks for).
"""

from typing import Final

from lightkube.models.core_v1 import ConfigMap, ExecAction, Lifecycle, LifecycleHandler, Probe

from ..api import names
from ..api.release import Release
from . import build

CONFIG_MAP: Final = "nvidia-driver-startup-probe"
SCRIPT: Final = "startup-probe.sh"
MOUNT_PATH: Final = f"/usr/local/bin/{SCRIPT}"
READY_FILE: Final = f"{names.VALIDATIONS_DIR}/.driver-ctr-ready"
DAEMONS_FILE: Final = f"{names.VALIDATIONS_DIR}/.driver-daemons-status"
MODULE_FILE: Final = "/sys/module/nvidia/refcnt"

_START: Final = f"""\
#!/bin/sh
# Passes once the NVIDIA driver on this node works; then says which extras belong to it.
set -eu

fail() {{
    echo "$1"
    exit 1
}}

mkdir -p {names.VALIDATIONS_DIR}
[ -f {MODULE_FILE} ] || fail "NVIDIA kernel module not loaded"
"""

_DAEMONS: Final = f"""\
if [ -f {DAEMONS_FILE} ]; then
    daemons="$(cat {DAEMONS_FILE})"
    [ "$daemons" = Ready ] || fail "NVIDIA driver daemons are not ready (status: $daemons)"
fi
"""

_END: Final = f"""\
nvidia-smi || fail "nvidia-smi failed"

for flag in GDRCOPY_ENABLED GDS_ENABLED GPU_DIRECT_RDMA_ENABLED; do
    eval "echo \\"$flag: \\${{$flag:-false}}\\""
done > {READY_FILE}.tmp
mv {READY_FILE}.tmp {READY_FILE}
"""


def script(release: Release) -> str:
    """The probe's text; since 26.7 it also waits for the daemons that the driver container starts."""
    return _START + ("" if release is Release.V26_3 else _DAEMONS) + _END


def config_map(release: Release, labels: dict[str, str]) -> ConfigMap:
    """The ConfigMap that holds :func:`script`."""
    return build.config_map(CONFIG_MAP, {SCRIPT: script(release)}, labels)


def probe() -> Probe:
    """The startup probe with its own timing: up to 21 minutes before the container is restarted."""
    return Probe(
        exec=ExecAction(command=["sh", MOUNT_PATH]),
        initialDelaySeconds=60,
        timeoutSeconds=60,
        periodSeconds=10,
        successThreshold=1,
        failureThreshold=120,
    )


def liveness() -> Probe:
    """Added only when the policy sets ``livenessProbe``: the kernel module is loaded."""
    return Probe(exec=ExecAction(command=["sh", "-c", f"[ -f {MODULE_FILE} ]"]))


def readiness() -> Probe:
    """Added only when the policy sets ``readinessProbe``: the startup probe's file is still there."""
    return Probe(exec=ExecAction(command=["sh", "-c", f"[ -f {READY_FILE} ]"]))


def forget(release: Release) -> Lifecycle:
    """The preStop hook: nobody may take a driver that is going away for a working one."""
    files = READY_FILE if release is Release.V26_3 else f"{READY_FILE} {DAEMONS_FILE}"
    return Lifecycle(preStop=LifecycleHandler(exec=ExecAction(command=["/bin/sh", "-c", f"rm -f {files}"])))
