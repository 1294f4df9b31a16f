"""`driver-manager`: clears a node of what uses the driver, and of the driver, before another is installed.

``main`` is the program, ``uninstall`` the order of its work; ``labels`` says what pausing operands means (pure),
``cluster`` and ``host`` reach the API server and the machine, ``guidance`` tells a person what to do where it cannot go
on. The driver itself is installed by NVIDIA's image. contracts/driver-lifecycle.md 5.
"""
