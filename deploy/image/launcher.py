"""The one executable behind all names of the image: it looks at the name it was called by and runs that program.

`source` is the text of the file that the build puts at `PATH`; every executable of the image is a link to it.
"""

from collections.abc import Mapping

from groundplane.lab.driverfiles import DRIVER_BIN

from . import contents

PATH = "usr/lib/groundplane/launcher"
DRIVER_PATH = DRIVER_BIN.lstrip("/")
"""A folder of executables that is on nobody's PATH but that of a driver image's stand-in."""

_TEXT = """\
#!/usr/bin/python3 -I
# The program is chosen by the name this file is called by (deploy/image/launcher.py).
import importlib
import os
import sys

PROGRAMS = {programs}
TITLES = {titles}
name = sys.argv[0].rpartition("/")[2]
title = TITLES.get(name)
if title and sys.orig_argv[0] != title:  # there stands the interpreter: start once more, under the right name
    os.execv(sys.executable, [title, "-I", *sys.argv])
module, _, function = PROGRAMS.get(name, {stand_in!r}).partition(":")
sys.exit(getattr(importlib.import_module(module), function)())
"""


def source() -> str:
    """The launcher's text."""
    return _TEXT.format(
        programs=_table(contents.EXECUTABLES), titles=_table(contents.TITLES), stand_in=contents.STAND_INS
    )


def _table(entries: Mapping[str, str]) -> str:
    return "{\n" + "".join(f"    {name!r}: {value!r},\n" for name, value in entries.items()) + "}"


def links() -> dict[str, str]:
    """The links of the image, path to target: every executable's name on PATH, and the driver's own beside it."""
    names = (*contents.EXECUTABLES, *contents.stand_ins())
    found = {f"usr/bin/{name}": f"/{PATH}" for name in names}
    return found | {f"{DRIVER_PATH}/{name}": f"/{PATH}" for name in contents.DRIVER_ONLY}
