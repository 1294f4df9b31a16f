"""`nvidia-mig-manager`: keeps the node's GPUs as the label ``nvidia.com/mig.config`` wants them.

``main`` is the program and ``loop`` decides when something is to be done; ``run`` does it once, in its order, with
``gpus``, ``operands``, ``services``, ``cluster`` and ``cdi``. ``layouts`` makes the node's own layouts at the start.
contracts/mig-exporter-validator.md 2 and 3.
"""
