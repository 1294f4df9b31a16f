"""A real Kubernetes on this machine: kube-apiserver, etcd, controller manager, scheduler, and whole nodes.

`build` makes the binaries from Go modules, once, in a cache folder. `controlplane` runs a control plane on loopback (no
root needed). `node` runs whole nodes (containerd and kubelet in namespaces of their own), joined to one control plane.
Everything ends with the process that started it, however that ends. Nothing here knows of GPUs.
"""
