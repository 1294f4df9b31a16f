"""Which of several ClusterPolicies counts (contracts/control-plane.md 1.8).

The oldest one, ties broken by name: an answer that every replica and every restart reaches alike. What happens to
the others is ``status.py``'s and ``policy.py``'s business.
"""

from collections.abc import Iterable

import msgspec


class Candidate(msgspec.Struct, frozen=True, order=True):
    """A ClusterPolicy in the election. The API server's timestamps (RFC 3339 in UTC) sort as text."""

    created: str
    name: str


def active(candidates: Iterable[Candidate]) -> str | None:
    """Name of the ClusterPolicy that is reconciled, ``None`` without any.

    A policy that is being deleted stays active until it is gone: its objects are still there, and promoting another
    before they are collected would have two owners fight over the same names.
    """
    first = min(candidates, default=None)
    return first.name if first else None
