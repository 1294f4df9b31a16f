"""Upgrading drivers node by node: a pure state machine, and the thin shell that carries its decisions out.

``machine`` is a function from what is (``model.Snapshot``) to what to do next (``model.Pass``); ``scope`` says which
machines there are and what each is about; ``slots`` counts; ``states`` names the states. None of these talks to a
cluster, has a clock or remembers an earlier pass: the nodes' labels and annotations are the whole memory
(contracts/driver-lifecycle.md 1 to 3).
"""
