"""`dcgm-exporter`: figures of every GPU in Prometheus' text format, tied to the pods and jobs that use it.

``counters`` reads which series are wanted, ``fields`` says how each comes out of a reading, ``sampler`` takes readings
in the background, ``families`` makes rows of them, ``derived`` those that need a history, ``mapping`` and ``pods`` say
whose a device is, ``jobs`` the same for batch systems; ``listen`` hears of errors; ``scrape`` puts an answer together,
``text`` prints it, ``server`` serves, and ``main`` is the program.
Source: contracts/mig-exporter-validator.md 4 and 5.
"""
