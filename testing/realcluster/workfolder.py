"""Work folders and cgroups of clusters, named by the process that runs the cluster, so that leftovers can be told.

A cluster that is stopped removes its own. What one that was killed left behind is removed by the next that starts.
"""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from . import cgroups

PREFIX = "groundplane-cluster-"
CGROUP = "/groundplane"
KEEP_VARIABLE = "GROUNDPLANE_KEEP"
"""Set, folders with all logs stay when a cluster ends, for a person to read."""


def make() -> Path:
    """A fresh work folder of this process; what dead processes left is removed first."""
    remove_leftovers()
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))


def remove(folder: Path) -> None:
    """Remove a work folder, unless $GROUNDPLANE_KEEP asks to keep it."""
    if not os.environ.get(KEEP_VARIABLE):
        shutil.rmtree(folder, ignore_errors=True)


def cgroup(folder: Path) -> str:
    """The cgroup below which the nodes of the cluster in this folder are."""
    return f"{CGROUP}/{os.getpid()}-{folder.name}"


def remove_leftovers() -> None:
    """Remove the folders and cgroups of clusters whose process is gone."""
    for folder in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        if not _alive(folder.name.removeprefix(PREFIX)):
            remove(folder)
    with contextlib.suppress(OSError):  # no cgroups here: then there are none of ours
        for hierarchy in cgroups.hierarchies():
            for group in hierarchy.glob(f"{CGROUP.strip('/')}/*/"):
                if not _alive(group.name):
                    cgroups.remove(f"{CGROUP}/{group.name}", patience_s=0)


def _alive(name: str) -> bool:
    pid = name.partition("-")[0]
    return not pid.isdecimal() or Path(f"/proc/{pid}").exists()
