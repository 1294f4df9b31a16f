"""groundplane: the NVIDIA GPU Operator's whole system, in Python.

The rooms of the package and who may import whom are described in ``docs/architecture.md``.
"""

__version__ = "0.1.0"
