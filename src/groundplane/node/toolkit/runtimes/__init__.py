"""Configuration of the node's container runtime: containerd, CRI-O and Docker (contracts/toolkit-cdi.md 5).

``configure`` adds NVIDIA's handlers and ``revert`` takes them back, each telling whether the runtime must be restarted;
``low_level`` reads which runtimes are below, ``preview`` shows what would be written, ``socket``
where containerd listens. Restarting is left to the caller.
"""

from .main import configure, low_level, preview, revert, socket

__all__ = ["configure", "low_level", "preview", "revert", "socket"]
