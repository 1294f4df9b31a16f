"""WHAT to run: pure functions from a policy and the facts of a cluster to Kubernetes objects.

One module an operand; ``stack.py`` puts them in order. No I/O, no client, no clock.
"""
