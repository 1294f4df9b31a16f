"""The host's program under each of its names, built once, and bundles to run it on."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import unavailable

from deploy import golang, hostprogram

NAMES = (
    "nvidia-cdi-hook",
    "nvidia-ctk",
    "nvidia-container-runtime",
    "nvidia-container-runtime.cdi",
    "nvidia-container-runtime.legacy",
    "nvidia-container-runtime-hook",
)


@pytest.fixture(scope="session")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the program is installed as the toolkit does: hard links, each also as NAME.real."""
    try:
        program = hostprogram.host_program()
    except golang.UnavailableError as error:
        unavailable(str(error))
    folder = tmp_path_factory.mktemp("toolkit")
    shutil.copy(program, folder / hostprogram.NAME)
    for name in NAMES:
        os.link(folder / hostprogram.NAME, folder / name)
        os.link(folder / hostprogram.NAME, folder / f"{name}.real")
    return folder


@dataclass
class Bundle:
    """A container's bundle: its folder, configuration and root file system."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The root file system."""
        return self.folder / "rootfs"

    @property
    def path(self) -> Path:
        """The configuration's file."""
        return self.folder / "config.json"

    def write(self, **changes: Any) -> None:
        """Write the configuration."""
        base = {
            "ociVersion": "1.2.0",
            "root": {"path": "rootfs"},
            "process": {"args": ["sh"], "cwd": "/", "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}},
        }
        self.config = {**base, **changes}
        self.path.write_text(json.dumps(self.config, indent="\t"))

    def read(self) -> Any:
        """The configuration that is there now."""
        return json.loads(self.path.read_text())

    def file(self, path: str, content: bytes | str = b"", mode: int = 0o644) -> Path:
        """Write a file of the image."""
        made = self.root / path.lstrip("/")
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_bytes(content.encode() if isinstance(content, str) else content)
        made.chmod(mode)
        return made

    def link(self, path: str, target: str) -> Path:
        """Make a symbolic link of the image."""
        made = self.root / path.lstrip("/")
        made.parent.mkdir(parents=True, exist_ok=True)
        made.symlink_to(target)
        return made

    def names(self, folder: str = "/") -> list[str]:
        """The names in a folder of the image, sorted."""
        return sorted(path.name for path in (self.root / folder.lstrip("/")).iterdir())

    def linked(self, path: str) -> str:
        """The text of a symbolic link of the image."""
        return str((self.root / path.lstrip("/")).readlink())

    def state(self) -> str:
        """What a runtime gives a hook on standard input."""
        return json.dumps(
            {"ociVersion": "1.2.0", "id": "c", "status": "creating", "pid": 1, "bundle": str(self.folder)}
        )


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """A bundle with an empty root file system."""
    made = Bundle(tmp_path / "bundle")
    made.root.mkdir(parents=True)
    made.write()
    return made


@dataclass(frozen=True)
class Hooks:
    """Runs hooks of a bundle as a runtime does."""

    toolkit: Path
    bundle: Bundle

    def __call__(
        self,
        *arguments: str,
        name: str = "nvidia-cdi-hook",
        env: Mapping[str, str] | None = None,
        ok: bool | None = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run one. It must succeed, or fail, or either (None)."""
        done = subprocess.run(
            [str(self.toolkit / name), *arguments],
            input=self.bundle.state(),
            env=dict(env or {}),
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert ok in (None, done.returncode == 0), done.stderr
        return done


@pytest.fixture
def hook(toolkit: Path, bundle: Bundle) -> Hooks:
    """Run a hook of the bundle: `hook("create-symlinks", "--link", "a::/b")`."""
    return Hooks(toolkit, bundle)
