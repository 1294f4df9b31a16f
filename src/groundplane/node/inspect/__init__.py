"""`groundplane-inspect`: look at a node and say what is there, as one JSON document; nothing is judged or changed.

What it finds is named by ``diagnose.evidence.NODE_FACTS``; preflight and the doctor judge it. ``view`` is how all
of it reads (bounded, and what could not be read is said), ``hardware``, ``system``, ``packages`` and ``runtimes`` are
what is read, ``commands`` what is asked of the node's own programs, ``reach`` what is tried over the network.
"""
