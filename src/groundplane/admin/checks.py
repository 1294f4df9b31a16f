"""The table of checks A1..A112: everything the users' guide makes an administrator check, decide, run or record.

Data only (contracts/admin-workflow.md 2): number, title, layer, what a check needs to look at, where it comes from and
the command that runs it. The functions live with their commands, such as preflight.py.
"""

import enum
from typing import Final, Literal

import msgspec

from ..diagnose.findings import Layer

Command = Literal[
    "preflight", "install", "verify", "cuda-test", "baseline", "upgrade", "rollback", "doctor", "must-gather"
]
Source = Literal["guide", "docs", "ours"]


class Access(enum.StrEnum):
    """How a check looks; any one of its modes is enough, with none of them it ends in ``unknown``."""

    API = "api"
    EXEC = "exec"
    """Commands and logs in operand pods."""
    NODE = "node"
    ARCHIVE = "archive"
    """An archive of must-gather or of NVIDIA's script."""


class Check(msgspec.Struct, frozen=True):
    """One row of the guide."""

    id: str
    title: str
    layer: Layer
    access: frozenset[Access]
    source: Source
    command: Command

    def can_look(self, modes: frozenset[Access]) -> bool:
        """Whether one of these modes is enough; a check that looks at nothing always can."""
        return not self.access or bool(self.access & modes)


_MODES: Final = {"a": Access.API, "e": Access.EXEC, "n": Access.NODE, "r": Access.ARCHIVE}
_SOURCES: Final[dict[str, Source]] = {"": "guide", "d": "docs", "o": "ours"}

_ROWS: Final = """
preflight
A1 L0 anr GPU model supported and visible
A2 L9 ar Kubernetes version in the release's matrix
A3 L1 ar Operating system supported on every GPU node
A4 L1 aner Kernel has headers, packages or a precompiled image
A5 L4 ar Container runtime at a supported version
A6 L0 ar Deployment model: bare metal, passthrough or supported vGPU
A7 L9 ar Secure Boot, SELinux and Pod Security understood
A8 L9 n Registries and package repositories reachable from nodes
A9 L2 anr Owner of existing driver and toolkit known
A10 L9 ar Cluster inventory
A11 L1 ar d All GPU nodes on one operating system when the ClusterPolicy manages the driver
A12 L0 aner Hardware visible on the node
A13 L0 aner No PCI device: stop
A14 L1 anr Running kernel
A15 L1 nr Kernel headers present (Ubuntu)
A16 L1 nr Kernel headers present (RHEL family)
A17 L1 n Missing headers: repository, mirror or precompiled
A18 L1 nr No uncontrolled kernel updates on GPU nodes
A19 L1 anr o No newer kernel installed and not running
A20 L2 anr Driver module of the host
A21 L2 anr Driver userspace of the host
A22 L2 ar driver.enabled decided from what the host has
A23 L2 anr Never two driver managers on a node
A24 L4 anr d Toolkit of the host
A25 L1 ner nouveau not loaded
A26 L1 nr nouveau denied, also in the initramfs
A27 L1 ner Secure Boot state
A28 L1 ner Secure Boot as a gate of the platform
A29 L4 nr containerd and its service
A30 L4 nr CRI-O and its service
A31 L5 anr kubelet healthy
A32 L4 nr Runtime socket present
A33 L9 n Registries and packages accessible from GPU nodes
A34 L9 anr Air-gapped design known from the start
A35 L2 ar Driver model chosen
A36 L9 ar Operator-managed driver has the privileges it needs
A37 L2 anr Preinstalled driver on every GPU node
A38 L4 anr Preinstalled driver and toolkit
A39 L2 ar Life of the host's driver stays with the node image
A40 L2 ar Precompiled image exists for operating system, kernel and branch
A41 L2 ar Form of driver.version fits the kind of image
A42 L2 ar Kernel module type fits GPU and driver
A43 L2 ar useOpenKernelModules not used
A44 L4 ar CDI mode
A45 L7 ar Ordinary pods need no runtimeClassName
A46 L7 ar Pods do not set NVIDIA_VISIBLE_DEVICES themselves
A47 L4 anr NRI on listed runtimes only
A48 L4 ar NRI left off at first
A49 L4 ar Toolkit told the paths of the distribution's containerd
A50 L4 ar Known which service regenerates the runtime's configuration
install
A51 L9 - Version pinned
A52 L9 - Chart repository
A53 L9 a Namespace
A54 L9 ar Pod Security label of the namespace
A55 L9 ar Only the operator in its namespace
A56 L9 - Chart version present in the repository
A57 L9 - Minimal values
A58 L9 - Further values only for a reason
A59 L9 - Chart defaults saved
A60 L9 a Install
A61 L9 - Waiting is not validation
A62 L9 ar Release deployed
verify
A63 L9 ar Components present
A64 L9 ar Pods running, CUDA validator completed
A65 L9 ar ClusterPolicy ready
A66 L9 ar Conditions of a ClusterPolicy that is not ready
A67 L9 ar DaemonSets ready and up to date
A68 L5 anr Expected GPUs allocatable
A69 L5 ar Capacity equals allocatable
A70 L6 ar Labels of GPU feature discovery
A71 L6 ar Label families
cuda-test
A72 L7 a vectorAdd pod on every GPU node
A73 L7 a vectorAdd ends
A74 L7 a vectorAdd passes
A75 L7 a Test pods deleted
A76 L7 - Test images mirrored if needed
A77 L7 a nvidia-smi pod
A78 L7 a nvidia-smi shows GPU and driver
A79 L7 a CUDA of the image fits the driver
baseline
A80 L9 ar Values recorded
A81 L9 ar ClusterPolicy recorded
A82 L5 ar Capacity recorded
A83 L9 ar Pods and digests recorded
A84 L9 aner Further facts recorded
upgrade
A85 L9 ar Same family or the next
A86 L9 - Release notes and components of the hop
A87 L9 aner Platform fits the target release
A88 L9 a Values and ClusterPolicy exported
A89 L9 a Canary pool
A90 L7 ar Workloads that stop are known
A91 L9 - Rollback boundaries of the hop
A92 L9 n Images and packages of the target available
A93 L8 er GPU health and metrics before the upgrade
A94 L9 - Defaults of the target chart
A95 L9 ar Values compared three ways
A96 L9 a Upgrade with merged values
A97 L9 ar CRDs are the target's
A98 L9 ar Validation repeated
A99 L2 ar Driver upgrade progresses
A100 L2 ar Upgrade state of every node
A101 L2 ar Upgrade done on every managed node
A102 L2 ar Host drivers are not upgraded
rollback
A103 L9 a Chart rollback
A104 L9 ar What Helm does not reverse
A105 L9 ar Plan for chart, driver, kernel, runtime and node image
doctor
A106 L0 aner Layers judged from the bottom up
A107 L9 ar Operator state
A108 L2 aner Driver layer
A109 L4 aner Toolkit layer
A110 L5 aer Device plugin
A111 L7 ar Workload
must-gather
A112 L9 aner Evidence gathered and reviewed for secrets
"""
"""A heading for each command; then number, layer, access (``-``: looks at nothing), source if not the guide, title."""


def _table() -> dict[str, Check]:
    checks: dict[str, Check] = {}
    command = ""
    for line in _ROWS.split("\n"):
        words = line.split(" ", 3)
        if len(words) == 1:
            command = line or command
            continue
        number, layer, access, title = words
        source, _, rest = title.partition(" ")
        given = source if source in ("d", "o") else ""
        checks[number] = msgspec.convert(
            {
                "id": number,
                "title": rest if given else title,
                "layer": layer,
                "access": frozenset(_MODES[letter] for letter in access if letter != "-"),
                "source": _SOURCES[given],
                "command": command,
            },
            Check,
        )
    return checks


CHECKS: Final = _table()
"""All checks by number, in the guide's order."""


def of_command(command: Command) -> list[Check]:
    """The checks that a command runs, in the guide's order."""
    return [check for check in CHECKS.values() if check.command == command]
