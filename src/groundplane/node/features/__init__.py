"""The program gpu-feature-discovery: what a node's GPUs are, as node labels (contracts/device-plugin-gfd.md 1.6, 8).

``labels`` computes them, purely, from what ``discovery`` found and ``machine`` read; ``output`` hands them to node
feature discovery, which labels the node; ``main`` repeats it.
"""
