"""What the tests of the runtimes' configuration share: settings, a corpus of configurations, and a fake containerd."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from node.fakeprocess import FakeProcess

from groundplane.node.process import Completed
from groundplane.node.toolkit.runtimes.containerd import merged
from groundplane.node.toolkit.runtimes.documents import toml_text
from groundplane.node.toolkit.settings import Handler, RuntimeSettings

CORPUS = Path(__file__).parents[3] / "data" / "runtimes"
DEST = "/usr/local/nvidia/toolkit"
HANDLERS = (
    Handler("nvidia", f"{DEST}/nvidia-container-runtime"),
    Handler("nvidia-cdi", f"{DEST}/nvidia-container-runtime.cdi"),
    Handler("nvidia-legacy", f"{DEST}/nvidia-container-runtime.legacy"),
)
STATE = "/var/lib/toolkit-state.json"
CONFIGS = {
    "containerd": "/etc/containerd/config.toml",
    "crio": "/etc/crio/crio.conf",
    "docker": "/etc/docker/daemon.json",
}
DROP_INS = {"containerd": "/etc/containerd/conf.d/99-nvidia.toml", "crio": "/etc/crio/crio.conf.d/99-nvidia.conf"}
TABLES = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}


def corpus(runtime: str) -> list[Path]:
    return sorted((CORPUS / runtime).iterdir())


def settings(runtime: str, **changes: Any) -> RuntimeSettings:
    usual: dict[str, Any] = {
        "runtime": runtime,
        "config": CONFIGS[runtime],
        "drop_in": DROP_INS.get(runtime, ""),
        "sources": ("file",),
        "handlers": HANDLERS,
        "state": STATE,
    }
    return RuntimeSettings(**{**usual, **changes})


def files(process: FakeProcess) -> dict[str, tuple[bytes, int] | str]:
    """All files of the container with their modes, and its links."""
    base = process.root.base
    return {
        str(path.relative_to(base)): str(path.readlink())
        if path.is_symlink()
        else (path.read_bytes(), path.stat().st_mode & 0o7777)
        for path in sorted(base.rglob("*"))
        if not path.is_dir() or path.is_symlink()
    }


def toml(process: FakeProcess, path: str) -> dict[str, Any]:
    return tomllib.loads(process.root.read_text(path))


def docker(process: FakeProcess) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(process.root.read_text(CONFIGS["docker"]))
    return found


class FakeContainerd:
    """`containerd config dump` of a test: the files as they are, one over the other, as version `prints` has them.

    `cuts`: plugins' tables of an import replace those before, as in containerd before 2.1. A version newer than
    `newest` is refused. The host's root is the container's own.
    """

    def __init__(self, process: FakeProcess, *, prints: int = 3, newest: int = 3, cuts: bool = False) -> None:
        self.process, self.prints, self.newest, self.cuts = process, prints, newest, cuts
        self.lacks = False
        (process.root.base / "host").symlink_to("/")
        process.commands["chroot"] = self

    def __call__(self, argv: Sequence[str], env: Mapping[str, str], stdin: str) -> Completed:
        assert argv[:2] == ("chroot", "/host"), argv
        assert argv[-2:] == ("config", "dump"), argv
        path = argv[4] if argv[3] == "-c" else CONFIGS["containerd"]
        try:
            return Completed(0, toml_text(self.dump(path)), "")
        except ValueError as error:
            return Completed(1, "", f"time=now level=warning msg=migrated\ncontainerd: {error}\n")

    def dump(self, path: str) -> dict[str, Any]:
        root = self.process.root
        top: dict[str, Any] = {"version": self.prints}
        if root.exists(path):
            top = tomllib.loads(root.read_text(path))
        documents: list[dict[str, Any]] = [top]
        for pattern in top.get("imports", []):
            documents += [tomllib.loads(root.read_text(each)) for each in root.glob(pattern)]
        cri: dict[str, Any] = {"sandboxer": "podsandbox", "containerd": {"runtimes": {}}}
        for document in documents:
            version = document.get("version", 1)
            if version > self.newest:
                raise ValueError(f"expected containerd config version equal to or less than `{self.newest}`")
            table = document.get("plugins", {}).get(TABLES[version])
            if table is not None:
                cri = {**cri, **table} if self.cuts else merged(cri, table)
        if self.lacks:
            cri["containerd"]["runtimes"].pop("nvidia", None)
        return {"version": self.prints, "plugins": {TABLES[self.prints]: cri}}
