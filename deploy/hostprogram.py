"""The host's program (native/): one static executable, built once per state of its sources and architecture.

`python -m deploy.hostprogram` builds it and prints its path.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from . import golang

SOURCE = Path(__file__).resolve().parents[1] / "native"
NAME = "groundplane-host"
ARCHITECTURES = ("amd64", "arm64")
"""In Debian's words, which are Go's."""

_COMPONENT = golang.Component("1", {NAME: "."})


def host_program(
    architecture: str = "", *, source: Path = SOURCE, log: Callable[[str], None] = golang.log_to_stderr
) -> Path:
    """The executable for an architecture, by default this machine's. Raises golang.UnavailableError."""
    if architecture not in ("", *ARCHITECTURES):
        raise golang.UnavailableError(
            f"the host's program is not built for {architecture}; known are {', '.join(ARCHITECTURES)}"
        )
    title = f"host-{architecture or 'native'}"
    folder = golang.cache_folder("host") / f"{title}-{golang.digest(_COMPONENT, source)}"
    variables = {"GOOS": "linux", "GOARCH": architecture} if architecture else {}
    return golang.ensure(title, _COMPONENT, source=source, folder=folder, environment=lambda: variables, log=log) / NAME


def main() -> int:
    """Build and print the path."""
    parser = argparse.ArgumentParser(prog="python -m deploy.hostprogram", description=__doc__)
    parser.add_argument("architecture", nargs="?", default="", choices=("", *ARCHITECTURES))
    try:
        print(host_program(parser.parse_args().architecture))
    except golang.UnavailableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
