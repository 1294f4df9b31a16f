"""Taking a former writer's fields over, so that server-side apply can remove them.

Apply removes a field that its manager owned and no longer names, unless somebody else owns it too. What a former writer
set by create or update is somebody else's for ever: an environment variable, a label, a volume that nobody wants any
more would stay. So its entries in ``managedFields`` are made ours before we apply (as kubectl does for objects that
were once applied on the client's side); the apply that follows then drops what we do not name. Pure: documents in, a
list out. Who counts as a former writer is the caller's to say.
"""

import copy
from collections.abc import Collection, Mapping
from typing import Any

Entry = Mapping[str, Any]
Fields = dict[str, Any]


def former_entries(obj: Mapping[str, Any], former: Collection[str]) -> list[Entry]:
    """The entries in which managers of ``former`` hold fields by create or update, not through a subresource."""
    entries = (obj.get("metadata") or {}).get("managedFields") or []
    return [each for each in entries if _is_former(each, former)]


def handed_over(obj: Mapping[str, Any], former: Collection[str], to: str) -> list[dict[str, Any]]:
    """The object's ``managedFields`` with all that ``former`` managers own in the hands of ``to``, as if applied by it.

    Entries of other managers, and all of subresources, are as they were.
    """
    entries = [dict(each) for each in obj["metadata"].get("managedFields") or ()]
    taken = [each for each in entries if _is_former(each, former)]
    kept = [each for each in entries if not _is_former(each, former)]
    mine = next((each for each in kept if _applied_by(each, to)), None)
    if taken and mine is None:
        mine = {**taken[0], "manager": to, "operation": "Apply"}
        kept.insert(0, mine)
    for each in taken:
        if mine is not None:
            mine["fieldsV1"] = union(mine.get("fieldsV1") or {}, each.get("fieldsV1") or {})
    return kept


def union(one: Fields, other: Fields) -> Fields:
    """All fields of both sets; a set is a tree whose leaves are empty."""
    both = copy.deepcopy(one)
    for key, below in other.items():
        both[key] = union(both.get(key) or {}, below or {})
    return both


def _is_former(entry: Entry, former: Collection[str]) -> bool:
    return entry.get("manager") in former and entry.get("operation") == "Update" and not entry.get("subresource")


def _applied_by(entry: Entry, manager: str) -> bool:
    return entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource")
