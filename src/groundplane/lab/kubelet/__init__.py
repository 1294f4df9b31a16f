"""Simulated kubelets: `Kubelet` runs pods' programs on a simulated host, `HollowKubelet` only marks pods as running.

`NodePool` is the door to all kubelets for logs and commands.
"""

from .hollow import HollowKubelet
from .kubelet import Kubelet
from .pool import NodePool

__all__ = ["HollowKubelet", "Kubelet", "NodePool"]
