"""The control groups of a node: below one name in every hierarchy, so that nodes on one machine stay apart.

Works with cgroup v1 (a hierarchy for each controller) and v2 (one for all).
"""

import contextlib
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
V1_INHERITED = ("cpuset.cpus", "cpuset.mems")
"""What a new v1 group does not take from its parent, and without which it can hold no process."""
V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")


def hierarchies() -> list[Path]:
    """The mount points of all hierarchies."""
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT]
    return sorted(path for path in ROOT.iterdir() if path.is_dir() and not path.is_symlink())


def create(name: str) -> None:
    """Make the group `name`, such as `/groundplane/x/node`, in every hierarchy."""
    for hierarchy in hierarchies():
        folder = hierarchy
        for part in name.strip("/").split("/"):
            _hand_down(folder)
            parent, folder = folder, folder / part
            folder.mkdir(exist_ok=True)
            for setting in V1_INHERITED:
                if (folder / setting).exists() and not (folder / setting).read_text().strip():
                    (folder / setting).write_text((parent / setting).read_text())
        _hand_down(folder)


def _hand_down(folder: Path) -> None:
    """v2: let the groups below have every controller that this one has."""
    if not (folder / "cgroup.controllers").exists():
        return
    has = (folder / "cgroup.controllers").read_text().split()
    wanted = " ".join(f"+{controller}" for controller in V2_CONTROLLERS if controller in has)
    if wanted:
        (folder / "cgroup.subtree_control").write_text(wanted)


def remove(name: str, *, patience_s: float = 5.0) -> list[Path]:
    """Remove a group and all below it in every hierarchy, once its processes are gone; what is left after that."""
    deadline = time.monotonic() + patience_s
    while True:
        for hierarchy in hierarchies():
            top = hierarchy / name.strip("/")
            below = sorted((path for path in top.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
            for folder in [*below, top]:
                with contextlib.suppress(OSError):  # still in use, or gone: seen below
                    folder.rmdir()
        left = [top for hierarchy in hierarchies() if (top := hierarchy / name.strip("/")).exists()]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)
