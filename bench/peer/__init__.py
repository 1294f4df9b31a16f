"""The race against NVIDIA's operator on a real kube-apiserver: `python -m bench.peer` (`make bench-peer`).

Every program under test gets a control plane of its own that is made the same way: the same node objects, the same
policy, nothing else running. The harness only watches, plays the DaemonSet controller, and counts requests from the API
server's audit log by user.

`python -m bench.peer.plugin` sets the device plugin and GPU features beside NVIDIA's on one machine without a GPU.
"""
