"""`python -m testing.realcluster`: build what real clusters need, or say what this machine lacks (exit status 1)."""

import sys

from . import build, node


def main() -> int:
    """Check and build."""
    if lacking := node.missing():
        print(f"real clusters cannot run here: {lacking}", file=sys.stderr)
        return 1
    try:
        binaries = build.ensure((*build.CONTROL_PLANE, *build.NODE))
    except build.UnavailableError as error:
        print(f"real clusters cannot run here: {error}", file=sys.stderr)
        return 1
    for name, path in sorted(binaries.paths.items()):
        print(f"{name:26} {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
