"""Who may do what: users from tokens, and the RBAC evaluation of roles and bindings.

`Api.rbac` decides whether requests are checked at all; access reviews (`kubectl auth can-i`) always answer as the rules
say when checks are on, and yes when they are off.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from . import resources, status
from .objects import Document
from .resources import Resource

if TYPE_CHECKING:
    from .api import Api

MASTERS, AUTHENTICATED, UNAUTHENTICATED = "system:masters", "system:authenticated", "system:unauthenticated"
_ACCOUNT = "system:serviceaccount:"


class User(msgspec.Struct, frozen=True):
    """An authenticated caller."""

    name: str
    groups: tuple[str, ...] = ()

    def encode(self) -> str:
        """Return the user as one text, for `Options.user`."""
        return "\n".join((self.name, *self.groups))

    @staticmethod
    def decode(text: str) -> User:
        """Return the user of `encode`; the administrator for an empty text."""
        name, *groups = text.split("\n")
        return User(name, tuple(groups)) if name else ADMIN


ADMIN = User("kubernetes-admin", (MASTERS, AUTHENTICATED))
ANONYMOUS = User("system:anonymous", (UNAUTHENTICATED,))


class Attributes(msgspec.Struct, frozen=True):
    """What a request wants to do: a verb on a resource, or on a path."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def full_resource(self) -> str:
        """`pods/log`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def of_token(api: Api, token: str, known: dict[str, User], token_prefix: str) -> User | None:
    """Return the user of a bearer token: a static one, or one that TokenRequest issued; None when unknown."""
    if token in known:
        return known[token]
    if not token.startswith(token_prefix):
        return None
    try:
        text = token.removeprefix(token_prefix)
        content = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        subject, uid, expires = content["sub"], content["uid"], content["exp"]
    except (ValueError, KeyError, TypeError):
        return None
    namespace, _, name = subject.removeprefix(_ACCOUNT).partition(":")
    account = api.find(resources.SERVICE_ACCOUNTS, name, namespace)
    expired = expires < api.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    if account is None or account["metadata"]["uid"] != uid or expired:
        return None
    return account_user(namespace, name)


def account_user(namespace: str, name: str) -> User:
    """Return the user that a service account is."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
    return User(f"{_ACCOUNT}{namespace}:{name}", groups)


def _rules(api: Api, user: User, namespace: str) -> Iterator[Document]:
    """Yield the policy rules that apply to a user, cluster-wide ones first."""
    for item in api.store.table(resources.CLUSTER_ROLE_BINDINGS.storage).values(None):
        if _binds(item.document, user, ""):
            yield from _role_rules(api, item.document["roleRef"], "")
    if namespace:
        for item in api.store.table(resources.ROLE_BINDINGS.storage).values(namespace):
            if _binds(item.document, user, namespace):
                yield from _role_rules(api, item.document["roleRef"], namespace)


def _role_rules(api: Api, reference: Document, namespace: str) -> list[Document]:
    if reference["kind"] == "ClusterRole":
        role = api.find(resources.CLUSTER_ROLES, reference["name"])
    else:
        role = api.find(resources.ROLES, reference["name"], namespace)
    rules: list[Document] = (role or {}).get("rules") or []
    return rules


def _binds(binding: Document, user: User, namespace: str) -> bool:
    for subject in binding.get("subjects") or []:
        kind, name = subject["kind"], subject["name"]
        if kind == "User" and name == user.name:
            return True
        if kind == "Group" and name in user.groups:
            return True
        space = subject.get("namespace", namespace)
        if kind == "ServiceAccount" and user.name == f"{_ACCOUNT}{space}:{name}":
            return True
    return False


def _covers(rule: Document, wanted: Attributes) -> bool:
    if not {"*", wanted.verb} & set(rule.get("verbs") or ()):
        return False
    if wanted.path:
        return any(_path_matches(pattern, wanted.path) for pattern in rule.get("nonResourceURLs") or ())
    if not {"*", wanted.group} & set(rule.get("apiGroups") or ()):
        return False
    named = {"*", wanted.full_resource}
    if wanted.subresource:
        named.add(f"*/{wanted.subresource}")
    if not named & set(rule.get("resources") or ()):
        return False
    names = rule.get("resourceNames")
    return not names or wanted.name in names


def _path_matches(pattern: str, path: str) -> bool:
    return pattern in ("*", path) or (pattern.endswith("*") and path.startswith(pattern[:-1]))


def allowed(api: Api, user: User, wanted: Attributes) -> bool:
    """Whether RBAC lets a user do something."""
    if MASTERS in user.groups:
        return True
    return any(_covers(rule, wanted) for rule in _rules(api, user, wanted.namespace))


def check(api: Api, user: User, wanted: Attributes) -> None:
    """Raise the 403 when RBAC does not let a user do something."""
    if not api.rbac or allowed(api, user, wanted):
        return
    if wanted.path:
        text = f'User "{user.name}" cannot {wanted.verb} path "{wanted.path}"'
        raise status.StatusError(403, "Forbidden", f"forbidden: {text}", {})
    where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    what = f'resource "{wanted.full_resource}" in API group "{wanted.group}"'
    why = f'User "{user.name}" cannot {wanted.verb} {what} {where}'
    raise status.forbidden(wanted.resource, wanted.group, wanted.name, why)


RBAC = "rbac.authorization.k8s.io"


def check_escalation(api: Api, res: Resource, document: Document, user: User) -> None:
    """Raise the 403 of a role, or of a binding to one, that holds rights its writer does not hold.

    Who may `escalate` roles, or `bind` the role in question, is exempt.
    """
    namespace = document["metadata"].get("namespace", "")
    if res.plural.endswith("roles"):
        rules, exempt = document.get("rules") or [], Attributes("escalate", RBAC, res.plural, "", namespace)
    elif res.plural.endswith("bindings"):
        reference = document["roleRef"]
        plural = "clusterroles" if reference["kind"] == "ClusterRole" else "roles"
        rules = _role_rules(api, reference, namespace)
        exempt = Attributes("bind", RBAC, plural, "", namespace, reference["name"])
    else:
        return
    if allowed(api, user, exempt):
        return
    held = list(_rules(api, user, namespace))
    lacking = [text for rule in rules for text in _lacking(held, rule)]
    if lacking:
        groups = " ".join(f'"{group}"' for group in user.groups)
        why = f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not currently held:\n'
        raise status.forbidden(res.plural, res.group, document["metadata"]["name"], why + "\n".join(lacking))


def _lacking(held: list[Document], rule: Document) -> Iterator[str]:
    """Yield what of a rule is not covered by the rules that are held, as the API server prints it."""
    names = rule.get("resourceNames") or [""]
    named = f", ResourceNames:{_quoted(names)}" if rule.get("resourceNames") else ""
    for group in rule.get("apiGroups") or ():
        for resource in rule.get("resources") or ():
            plural, _, sub = resource.partition("/")
            verbs = [
                verb
                for verb in rule["verbs"]
                if not all(
                    any(_covers(mine, Attributes(verb, group, plural, sub, "", name)) for mine in held)
                    for name in names
                )
            ]
            if verbs:
                what = f"APIGroups:{_quoted([group])}, Resources:{_quoted([resource])}{named}"
                yield f"{{{what}, Verbs:{_quoted(verbs)}}}"
    for path in rule.get("nonResourceURLs") or ():
        verbs = [v for v in rule["verbs"] if not any(_covers(mine, Attributes(v, path=path)) for mine in held)]
        if verbs:
            yield f"{{NonResourceURLs:{_quoted([path])}, Verbs:{_quoted(verbs)}}}"


def _quoted(texts: list[str]) -> str:
    return "[" + " ".join(f'"{text}"' for text in texts) + "]"


def review(api: Api, res: Resource, sent: Document, caller: str) -> Document:
    """Return the status of a review object."""
    user = User.decode(caller)
    if res.plural == "selfsubjectreviews":
        return {"userInfo": {"username": user.name, "groups": list(user.groups)}}
    spec = sent.get("spec") or {}
    if res.plural == "selfsubjectrulesreviews":
        return _rules_status(api, user, spec.get("namespace", ""))
    if res.plural == "tokenreviews":
        return _token_status(api, spec.get("token", ""))
    if res.plural != "selfsubjectaccessreviews":
        user = User(spec.get("user", ""), tuple(spec.get("groups") or ()))
    wanted = _wanted(spec)
    yes = not api.rbac or allowed(api, user, wanted)
    return {"allowed": yes} if yes else {"allowed": False, "reason": ""}


def _token_status(api: Api, token: str) -> Document:
    user = of_token(api, token, {}, "lab.")
    if user is None:
        return {"authenticated": False, "user": {}, "error": "invalid bearer token"}
    return {"authenticated": True, "user": {"username": user.name, "groups": list(user.groups)}}


def _wanted(spec: dict[str, Any]) -> Attributes:
    asked = spec.get("resourceAttributes")
    if asked is None:
        path = spec.get("nonResourceAttributes") or {}
        return Attributes(path.get("verb", ""), path=path.get("path", ""))
    return Attributes(
        asked.get("verb", ""), asked.get("group", ""), asked.get("resource", ""), asked.get("subresource", ""),
        asked.get("namespace", ""), asked.get("name", ""),
    )  # fmt: skip


def _rules_status(api: Api, user: User, namespace: str) -> Document:
    rules = list(_rules(api, user, namespace))
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    if MASTERS in user.groups or not api.rbac:
        rules.append(everything)
    return {
        "resourceRules": [rule for rule in rules if "resources" in rule],
        "nonResourceRules": [rule for rule in rules if "nonResourceURLs" in rule],
        "incomplete": False,
    }
