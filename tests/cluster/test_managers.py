"""Whose fields are taken over, and what the list of managers is afterwards."""

from typing import Any

from groundplane.cluster import managers

FORMER = frozenset({"gpu-operator"})
OURS = "groundplane-operator"


def entry(manager: str, operation: str, fields: dict[str, Any], subresource: str = "") -> dict[str, Any]:
    made = {"manager": manager, "operation": operation, "apiVersion": "apps/v1", "time": "t", "fieldsType": "FieldsV1"}
    return {**made, "fieldsV1": fields, **({"subresource": subresource} if subresource else {})}


def obj(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "x", "managedFields": list(entries)}}


LEFT = entry("gpu-operator", "Update", {"f:spec": {"f:a": {}, "f:b": {"f:c": {}}}})
STATUS = entry("gpu-operator", "Update", {"f:status": {}}, "status")
EDITED = entry("kubectl-edit", "Update", {"f:spec": {"f:z": {}}})
APPLIED = entry(OURS, "Apply", {"f:spec": {"f:a": {}, "f:d": {}}})


def test_only_what_a_former_manager_set_by_update_is_its() -> None:
    assert managers.former_entries(obj(LEFT, STATUS, EDITED, APPLIED), FORMER) == [LEFT]
    assert managers.former_entries(obj(entry("gpu-operator", "Apply", {}), EDITED), FORMER) == []
    assert managers.former_entries({"metadata": {}}, FORMER) == []


def test_its_fields_are_added_to_ours_and_others_keep_theirs() -> None:
    found = managers.handed_over(obj(EDITED, LEFT, APPLIED, STATUS), FORMER, OURS)
    joined = {**APPLIED, "fieldsV1": {"f:spec": {"f:a": {}, "f:d": {}, "f:b": {"f:c": {}}}}}
    assert found == [EDITED, joined, STATUS]
    assert APPLIED["fieldsV1"] == {"f:spec": {"f:a": {}, "f:d": {}}}, "the input is not touched"


def test_where_we_have_applied_nothing_yet_its_entry_becomes_ours() -> None:
    found = managers.handed_over(obj(LEFT, EDITED), FORMER, OURS)
    assert found == [{**LEFT, "manager": OURS, "operation": "Apply"}, EDITED]


def test_several_former_managers_are_joined() -> None:
    other = entry("older", "Update", {"f:spec": {"f:y": {}}})
    found = managers.handed_over(obj(LEFT, other), FORMER | {"older"}, OURS)
    assert [each["manager"] for each in found] == [OURS]
    assert found[0]["fieldsV1"] == {"f:spec": {"f:a": {}, "f:b": {"f:c": {}}, "f:y": {}}}


def test_without_a_former_manager_nothing_changes() -> None:
    assert managers.handed_over(obj(EDITED, APPLIED), FORMER, OURS) == [EDITED, APPLIED]
    assert managers.handed_over({"metadata": {}}, FORMER, OURS) == []
