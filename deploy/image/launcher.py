"""The one executable behind all names of the image: it looks at the name it was called by and runs that program.

`source` is the text of the file that the build puts at `PATH`; every executable of the image is a link to it.
"""

from groundplane.lab.host import DRIVER_BIN

from . import contents

PATH = "usr/lib/groundplane/launcher"
DRIVER_PATH = DRIVER_BIN.lstrip("/")
"""A folder of executables that is on nobody's PATH but that of a driver image's stand-in."""

_TEXT = """\
#!/usr/bin/python3 -I
# The program is chosen by the name this file is called by (deploy/image/launcher.py).
import importlib
import sys

PROGRAMS = {programs}
name = sys.argv[0].rpartition("/")[2]
module, _, function = PROGRAMS.get(name, {stand_in!r}).partition(":")
sys.exit(getattr(importlib.import_module(module), function)())
"""


def source() -> str:
    """The launcher's text."""
    programs = "".join(f"    {name!r}: {target!r},\n" for name, target in contents.EXECUTABLES.items())
    return _TEXT.format(programs="{\n" + programs + "}", stand_in=contents.STAND_INS)


def links() -> dict[str, str]:
    """The links of the image, path to target: every executable's name on PATH, and the driver's own beside it."""
    names = (*contents.EXECUTABLES, *contents.stand_ins())
    found = {f"usr/bin/{name}": f"/{PATH}" for name in names}
    return found | {f"{DRIVER_PATH}/{name}": f"/{PATH}" for name in contents.DRIVER_ONLY}
