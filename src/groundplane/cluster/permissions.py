"""What a refusal of the API server says is missing: verb, resource, API group, scope and user.

RBAC's refusals have one wording in every Kubernetes (``User "u" cannot list resource "nodes" in API group "" at the
cluster scope``), and it names all that a person needs in order to grant the permission. Other refusals with the same
code (an admission webhook, a quota, a namespace that is being deleted) are not about permissions and give none.
Collecting, telling and waiting are left to the operator.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from .errors import ClusterError, Forbidden

_WORDING: Final = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)"| at the cluster scope)'
)

_ESCALATION: Final = re.compile(r'user "(?P<user>[^"]*)".* is attempting to grant RBAC permissions not currently held')
_RULE: Final = re.compile(
    r"\{APIGroups:\[(?P<groups>[^\]]*)\], Resources:\[(?P<resources>[^\]]*)\]"
    r"(?:, ResourceNames:\[[^\]]*\])?, Verbs:\[(?P<verbs>[^\]]*)\]\}"
)
_QUOTED: Final = re.compile(r'"([^"]*)"')
_NAMESPACE: Final = re.compile(r"^\S+ namespaces/([^/]+)/")

LISTED_MAX: Final = 10
"""So many permissions are named in a text; the rest are counted."""
ABOUT_MAX: Final = 2
"""So many objects are named for one permission; the rest are counted."""


class Permission(msgspec.Struct, frozen=True, order=True):
    """A permission that somebody lacks. ``namespace`` is empty for the whole cluster, ``group`` for the core group."""

    user: str
    group: str
    resource: str
    verb: str
    namespace: str = ""

    def __str__(self) -> str:
        where = f'in namespace "{self.namespace}"' if self.namespace else "in the whole cluster"
        return f'{self.verb} {self.resource} in API group "{self.group}" {where}'


class Denied(msgspec.Struct, frozen=True, order=True):
    """A permission and what could not be done for want of it: an object, with its state; empty if that says it all."""

    permission: Permission
    about: str = ""


def missing(error: ClusterError | None) -> tuple[Permission, ...]:
    """The permissions that ``error`` says are missing, none if it is about something else.

    RBAC lets nobody hand on what he does not hold: a refusal of that kind names whole rules.
    """
    if not isinstance(error, Forbidden):
        return ()
    if found := _WORDING.search(error.message):
        return (Permission(found["user"], found["group"], found["resource"], found["verb"], found["namespace"] or ""),)
    if found := _ESCALATION.search(error.message):
        where = _NAMESPACE.match(error.message)
        return tuple(sorted(_held_by_nobody(found["user"], error.message, where[1] if where else "")))
    return ()


def _held_by_nobody(user: str, message: str, namespace: str) -> set[Permission]:
    return {
        Permission(user, group, resource, verb, namespace)
        for rule in _RULE.finditer(message)
        for group in _QUOTED.findall(rule["groups"])
        for resource in _QUOTED.findall(rule["resources"])
        for verb in _QUOTED.findall(rule["verbs"])
    }


def tell(denied: Iterable[Denied]) -> str:
    """All missing permissions of one user in one text, each with its objects, both bounded; what to do at the end.

    The text is the same for the same permissions, whatever order they were found in.
    """
    by_user: dict[str, dict[Permission, set[str]]] = {}
    for each in denied:
        wanted = by_user.setdefault(each.permission.user, {})
        wanted.setdefault(each.permission, set()).update({each.about} - {""})
    parts = [f'forbidden: user "{user}" lacks the permission to {_list(by_user[user])}' for user in sorted(by_user)]
    return "; ".join(parts)


def _list(wanted: Mapping[Permission, set[str]]) -> str:
    lines = [_bounded(str(permission), sorted(wanted[permission])) for permission in sorted(wanted)]
    more = f"; and {len(lines) - LISTED_MAX} more" if len(lines) > LISTED_MAX else ""
    return "; ".join(lines[:LISTED_MAX]) + more


def _bounded(text: str, about: list[str]) -> str:
    if not about:
        return text
    more = f" and {len(about) - ABOUT_MAX} more" if len(about) > ABOUT_MAX else ""
    return f"{text} ({', '.join(about[:ABOUT_MAX])}{more})"
