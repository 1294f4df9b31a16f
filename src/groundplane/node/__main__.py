"""`python -m groundplane.node PROGRAM [ARGUMENTS]`: run a node program, as the executables of the image do."""

import os
import sys
from collections.abc import Sequence

from ..api.release import Release
from . import ownprocess, programs

_MISUSE, _NOT_FOUND = 2, 127


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program that the first argument names (by default: the name this was called by, and its arguments)."""
    words = list(sys.argv if argv is None else argv)
    name = words[0].rpartition("/")[2] if words else ""
    program = programs.find(name)
    if program is None:
        sys.stderr.write(f"{name or 'node'}: no such node program; there are {', '.join(sorted(programs.PROGRAMS))}\n")
        return _NOT_FOUND
    release = os.environ.get(ownprocess.RELEASE_ENV, "")
    try:
        Release.parse(release or str(Release.DEFAULT))
    except ValueError as error:
        sys.stderr.write(f"{name}: {ownprocess.RELEASE_ENV}: {error}\n")
        return _MISUSE
    return ownprocess.run(program, words, os.environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
