"""The GPUs of a machine: a model of plain data, and two sources of it, NVML and a simulation, behind one protocol.

``model`` holds the data, ``source`` the protocol and its errors, ``nvml`` and ``simulated`` the sources, ``simfile``
the file of a simulated machine, ``models`` what is known of each GPU model, ``profiles`` how MIG instances are named,
``geometry`` where they fit and ``mig`` how they are changed (by ``nvmlmig`` and ``simulatedmig``); ``telemetry`` is
what GPUs at work show of themselves (read by ``nvmltelemetry`` and ``simtelemetry``); ``nvmlerrors`` and ``placements``
serve both sources. What is made of the data (resources, labels, CDI devices, metrics) is the programs' part.
"""
