"""`python -m testing.realcluster`: build what real clusters need, or say what this machine lacks (exit status 1).

With names of binaries just these are built: `python -m testing.realcluster promtool` makes what only tests of alert
rules and metrics use.
"""

import sys

from . import build, node


def main() -> int:
    """Check and build."""
    names = sys.argv[1:]
    if not names and (lacking := node.missing()):
        print(f"real clusters cannot run here: {lacking}", file=sys.stderr)
        return 1
    try:
        binaries = build.ensure(names or (*build.CONTROL_PLANE, *build.NODE))
    except KeyError as error:
        print(f"no binary is called {error}; there are {', '.join(build.NAMES)}", file=sys.stderr)
        return 1
    except build.UnavailableError as error:
        print(f"{'this cannot be built' if names else 'real clusters cannot run'} here: {error}", file=sys.stderr)
        return 1
    for name, path in sorted(binaries.paths.items()):
        print(f"{name:26} {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
