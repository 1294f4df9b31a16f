"""Fail when branch coverage of the pure rooms falls under the project's floor, and report every room's figure."""

import json
import sys
from collections import defaultdict
from pathlib import Path

FLOOR = {"operands": 95.0, "operator": 95.0}  # percent of branches


def main(report: str) -> int:
    """Read a coverage JSON report; return 1 when a room is under its floor."""
    branches: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, data in json.loads(Path(report).read_text())["files"].items():
        parts = Path(name).parts
        room = parts[parts.index("groundplane") + 1] if "groundplane" in parts[:-1] else ""
        summary = data["summary"]
        branches[room][0] += summary["covered_branches"]
        branches[room][1] += summary["num_branches"]
    failed = 0
    for room in FLOOR:
        if not branches[room][1]:
            print(f"coverage: no branch of {room}/ was measured", file=sys.stderr)
            failed = 1
    for room, (covered, total) in sorted(branches.items()):
        if not total or room.endswith(".py"):
            continue
        percent = 100 * covered / total
        floor = FLOOR.get(room)
        verdict = "" if floor is None else f"  (floor {floor:.0f} %)"
        print(f"branch coverage {room:10} {percent:5.1f} %  {covered}/{total}{verdict}")
        if floor is not None and percent < floor:
            print(f"coverage: {room}/ is under its floor of {floor:.0f} % of branches", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
