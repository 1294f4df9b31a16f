"""The reference of the lab's faults (docs/reference/lab-faults.md), made from their table.

``python -m groundplane.lab.faultbook.reference`` prints it.
"""

from collections.abc import Iterator
from itertools import groupby

from ...diagnose.layers import CRITERIA
from .table import FAULTS

_HEAD = """\
# Faults of the lab

Made from their table by `python -m groundplane.lab.faultbook.reference`; do not edit.

`groundplane lab fault apply FAULT --node NAME` brings a fault about in a running lab as it comes about in reality, and
`groundplane lab fault clear FAULT --node NAME` undoes it. `groundplane doctor` finds each; the last column has the ids
of the signatures by which it names the cause (`docs/how-to/troubleshoot.md`). One that is a note is told, and is no
failure. What is changed in the ClusterPolicy, or in the cluster as a whole, is of the whole cluster.
"""


def page() -> str:
    """The page's text."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD.rstrip()
    for layer, some in groupby(FAULTS.items(), key=lambda item: item[1].layer):
        yield f"\n## {layer.value}: {layer.name.lower().replace('_', ' ')}\n"
        yield f"Healthy means: {CRITERIA[layer]}.\n"
        yield "| Fault | What goes wrong | Where it can be | Found as |"
        yield "|---|---|---|---|"
        for name, fault in some:
            place = "the whole cluster, with " + fault.on.says if fault.cluster else fault.on.says
            found = ", ".join(fault.causes) + (" (a note)" if fault.note else "")
            yield f"| `{name}` | {fault.title} | {place} | {found} |"


if __name__ == "__main__":
    print(page(), end="")
