"""The lab's stand-ins as real processes in real containers of a real kubelet.

`python -m groundplane.lab.onnode PROGRAM ARGS...` runs a program of `standins/` or `driver/` whose paths, arguments,
environment, signals and ports are the container's own. What no test node has, a kernel with GPUs, is simulated by files
that all containers of the node share. The cut:

- **simulated** (`ctx.host`): `/sys`, `/proc` and `/dev` of the GPUs and their modules, `/etc/os-release`, whether the
  host has a driver. They lie in `/run/groundplane/host`; if they are missing the first program makes them, as a boot
  would.
- **real** (`ctx.path`, `ctx.write`): every other file. `/run/nvidia`, `/var/run/cdi`, `/usr/local/nvidia`,
  `/var/lib/kubelet`, the runtime's configuration and `/host` are what the pod mounts of the node.

A GPU's device node in a container is the null device under another name; it is visible when CDI put it there or when
the driver's files were mounted and NVIDIA_VISIBLE_DEVICES names it. The driver's container shows the simulated modules
at `/sys/module`, where its probe looks.

The node must provide:

- the files of `host.node_files`, among them `/run/groundplane/node.yaml`, a node file (docs/reference/node-file.md) of
  this node alone,
- the folder `/run/groundplane` in every container at the same path (containerd: a mount of the `base_runtime_spec` of
  the runtime runc),
- a containerd that is started again when it ends and reads `/etc/containerd/conf.d/*.toml`,
- the image under the operands' names (`python -m deploy.image aliases`).
"""

import sys
from collections.abc import Sequence

FOLDER_ENV = "GROUNDPLANE_SIMULATED_HOST"
"""Overrides `FOLDER`."""

FOLDER = "/run/groundplane"
"""Where the node's description and its simulated files are, in every container."""

ROOT_ENV = "GROUNDPLANE_SIMULATED_ROOT"
"""Overrides `/` as the root of the container's own files, for tests."""

SPEED_ENV = "GROUNDPLANE_SIMULATED_SPEED"
"""How many times as fast as real time the stand-ins' own waits pass."""

IMAGE_ENV = "GROUNDPLANE_SIMULATED_IMAGE"
"""The lab's key of the image that a container runs (`images.IMAGES`); set by the image."""

REFERENCE_ENV = "GROUNDPLANE_SIMULATED_REFERENCE"
"""The reference of the image that a container runs; set by the image."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a program by its name and arguments, by default those of this process; its exit code."""
    from . import process  # the constants above are read where the lab is not needed

    return process.main(sys.argv if argv is None else argv)
