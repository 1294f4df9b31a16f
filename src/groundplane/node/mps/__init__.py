"""CUDA MPS: several containers use one GPU at the same time, each with its part of the memory and of the threads.

``daemon`` and ``main`` are the program `mps-control-daemon`; ``client`` is what the device plugin must know of it.
Which resources are shared is read from the config file that both programs have (``node/config``).
"""
