"""The container toolkit: it makes a node's containers see GPUs (contracts/toolkit-cdi.md 4, 5 and 7).

`main` is the operand's program: it installs the host's programs, writes CDI specs, configures the container runtime
(`runtimes`) or serves it as an NRI plugin (`nri`), and takes the runtime's configuration back at its end.
"""
