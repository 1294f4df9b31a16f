"""The kinds groundplane owns, and every name it shares with the rest of the cluster.

This room defines data and rules about data. It does no I/O and imports no other room.
"""
