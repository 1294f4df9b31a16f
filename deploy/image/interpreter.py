"""The image's own Python, run on the build machine without chroot: to choose wheels for it and to compile for it.

The loader of the image's C library starts the image's interpreter with the image's libraries, so nothing of the build
machine's Python takes part.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from . import debian, tools
from .errors import ImageError


class Interpreter:
    """The Python of a root folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.library = debian.python_library(root)
        self.version = self.library.name.removeprefix("python")
        loaders = sorted(path for path in (root / "usr").glob("lib*/ld-linux-*.so.*"))
        if not loaders:
            raise ImageError(f"the base in {root} has no dynamic loader; is libc6 among its packages?")
        self._loader = loaders[0]
        self._libraries = [path for path in sorted((root / "usr/lib").glob("*-linux-gnu")) if path.is_dir()]

    @property
    def packages(self) -> str:
        """Where Python of the image looks for installed packages, as a path without leading slash."""
        return f"usr/local/lib/{self.library.name}/dist-packages"

    def command(self, program: str, *arguments: str | Path) -> list[str | Path]:
        """The command line that runs a program of the root."""
        libraries = ":".join(map(str, (*self._libraries, self.root / "usr/lib")))
        path = self.root / "usr/bin" / program
        return [self._loader, "--library-path", libraries, "--argv0", path, path, *arguments]

    def run(self, *arguments: str | Path, what: str, remedy: str = "", env: Mapping[str, str] | None = None) -> str:
        """Run the interpreter with arguments and return what it prints."""
        settings = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))},
            "PYTHONHOME": str(self.root / "usr"),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            **(env or {}),
        }
        return tools.run(self.command(self.library.name, *arguments), what=what, remedy=remedy, env=settings)
