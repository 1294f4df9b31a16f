"""The loops that make a policy so: node labelling, operand states, status, metrics. Observe, decide, act.

Deciding is pure and lives in modules of its own (``labels``, ``decide``, ``readiness``, ``status``); the rest is a
thin layer that listens and writes.
"""
