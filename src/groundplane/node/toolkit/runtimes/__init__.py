"""Configuration of the node's container runtime: containerd, CRI-O and Docker (contracts/toolkit-cdi.md 5)."""
