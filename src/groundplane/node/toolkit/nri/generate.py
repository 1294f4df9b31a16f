"""Generates `stubs/` from the .proto files beside this module: `python -m groundplane.node.toolkit.nri.generate`.

The stubs are committed, so that nothing needs grpcio-tools at run time; a test generates them again and compares.
"""

import sys
from pathlib import Path

from groundplane.node.kubeletapi import generate as protoc

HERE = Path(__file__).parent
STUBS = HERE / "stubs"
PROTOS = ("nri", "ttrpc")


def generate(into: Path) -> None:
    """Write the stubs of all .proto files into a folder; RuntimeError if protoc refuses one, naming it."""
    protoc.generate(into, folder=HERE, protos=PROTOS, services=False)


if __name__ == "__main__":
    generate(STUBS)
    sys.stdout.write(f"wrote {STUBS}\n")
