"""MIG layouts of a node, from file to GPUs and back (contracts/mig-exporter-validator.md 1, 2).

Pure: ``layout`` (the file), ``planner`` (which instances where), ``compare`` (what differs), ``export`` and
``generate`` (layouts out of a machine). Thin: ``state`` reads a machine, ``change`` changes it, ``checkpoint`` keeps
and restores it, ``hooks`` runs commands around it. ``parted`` is the program ``nvidia-mig-parted``; its rooms serve the
MIG manager too.
"""
