"""Whatever happens to a cluster, it ends as a fresh start would: random edits, nodes, kills and faults.

``GROUNDPLANE_EXAMPLES=1000`` tries as many sequences, other ones each time.
"""

import asyncio
import os

from e2e.happenings import HAPPENINGS, Happening, carry_out
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("GROUNDPLANE_EXAMPLES", "0"))
"""Sequences to try; 0 for the few that every run of the tests can afford."""
FEW = 15
LONGEST = 14


@settings(
    max_examples=EXAMPLES or FEW,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
@given(happenings=st.lists(HAPPENINGS, min_size=4, max_size=LONGEST), lease=st.sampled_from((False, False, True)))
def test_every_sequence_ends_as_a_fresh_start(happenings: list[Happening], lease: bool) -> None:
    asyncio.run(carry_out(happenings, leader_elect=lease))
