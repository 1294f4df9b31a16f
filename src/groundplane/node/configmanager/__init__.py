"""The program config-manager: which of several configurations a node's programs use (contracts/device-plugin-gfd.md 7).

``selection`` chooses, purely; ``settings`` are the options; ``main`` puts the choice in place and signals the program.
"""
