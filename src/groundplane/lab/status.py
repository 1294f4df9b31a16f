"""The API server's errors: `StatusError` and one constructor for each way a request can fail.

Every constructor produces the code, reason, message and details that kube-apiserver puts into its `Status` object, so
that kubectl and client libraries print and branch on the same things. What a message talks about is the caller's
business; how it is sent over HTTP is `lab/http.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec


class Cause(msgspec.Struct, frozen=True):
    """One reason among several in `status.details.causes`: a machine word, a text, and the field path it is about."""

    reason: str
    message: str
    field: str = ""

    def document(self) -> dict[str, Any]:
        """Return the cause as the API encodes it."""
        doc = {"reason": self.reason, "message": self.message}
        return {**doc, "field": self.field} if self.field else doc


class StatusError(Exception):
    """A request failed; carries what the `Status` object says. `code` is the HTTP status."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details: dict[str, Any] = dict(details or {})

    @property
    def retry_after_s(self) -> int | None:
        """Seconds the client is asked to wait, or None."""
        return self.details.get("retryAfterSeconds")

    def document(self) -> dict[str, Any]:
        """Return the `Status` object."""
        doc: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if not self.reason:
            del doc["reason"]
        if self.details:
            doc["details"] = self.details
        return {**doc, "code": self.code}


def qualified(plural: str, group: str) -> str:
    """Return `daemonsets.apps`, or the bare plural for the core group."""
    return f"{plural}.{group}" if group else plural


def _details(plural: str, group: str, name: str, **more: Any) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    if plural:
        details["kind"] = plural
    return {**details, **more}


def not_found(plural: str, group: str, name: str) -> StatusError:
    """404: no such object."""
    text = f'{qualified(plural, group)} "{name}" not found'
    return StatusError(404, "NotFound", text, _details(plural, group, name))


def no_such_path() -> StatusError:
    """404: no such resource or path (kubectl: "the server could not find the requested resource")."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def already_exists(plural: str, group: str, name: str, *, deleted: bool = False) -> StatusError:
    """409: an object of that name is there, or is still there though it is being deleted."""
    text = "object is being deleted: " * deleted + f'{qualified(plural, group)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", text, _details(plural, group, name))


def conflict(plural: str, group: str, name: str, why: str) -> StatusError:
    """409: the object is not in the state the request was made for."""
    text = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}'
    return StatusError(409, "Conflict", text, _details(plural, group, name))


def stale(plural: str, group: str, name: str) -> StatusError:
    """409: the request's resourceVersion is not the stored one."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(plural, group, name, why)


def apply_conflict(causes: Sequence[Cause], text: str) -> StatusError:
    """409 of a server-side apply: fields are owned by other managers with other values."""
    details = {"causes": [cause.document() for cause in causes]}
    return StatusError(409, "Conflict", text, details)


def invalid(kind: str, group: str, name: str, causes: Iterable[Cause]) -> StatusError:
    """422: the object breaks rules of its kind; every broken rule is a cause."""
    found = list(causes)
    texts = [f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in found]
    what = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    details = _details(kind, group, name, causes=[cause.document() for cause in found])
    return StatusError(422, "Invalid", f'{qualified(kind, group)} "{name}" is invalid: {what}', details)


def bad_request(message: str) -> StatusError:
    """400: the request cannot be understood."""
    return StatusError(400, "BadRequest", message)


def forbidden(plural: str, group: str, name: str, why: str) -> StatusError:
    """403: not allowed, by authorization or by admission."""
    subject = f'{qualified(plural, group)} "{name}"' if name else qualified(plural, group)
    return StatusError(403, "Forbidden", f"{subject} is forbidden: {why}", _details(plural, group, name))


def unauthorized() -> StatusError:
    """401: the credentials are not known."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def method_not_supported() -> StatusError:
    """405: the resource does not offer that verb."""
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def not_acceptable(accepted: Sequence[str]) -> StatusError:
    """406: none of the media types the client accepts is served."""
    text = "only the following media types are accepted: " + ", ".join(accepted)
    return StatusError(406, "NotAcceptable", text)


def unsupported_media_type(accepted: Sequence[str]) -> StatusError:
    """415: the body's media type is not one this endpoint reads."""
    text = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
    return StatusError(415, "UnsupportedMediaType", text)


def gone(message: str) -> StatusError:
    """410 with reason Expired: the history asked for is compacted."""
    return StatusError(410, "Expired", message)


def too_old(asked: int, oldest: int) -> StatusError:
    """410: a watch or list from before the oldest revision kept."""
    return gone(f"too old resource version: {asked} ({oldest})")


def too_large(asked: int, current: int) -> StatusError:
    """504: the revision asked for is yet to come."""
    text = f"Too large resource version: {asked}, current: {current}"
    cause = Cause("ResourceVersionTooLarge", "Too large resource version")
    return StatusError(504, "Timeout", text, {"causes": [cause.document()], "retryAfterSeconds": 1})


def too_many_requests(message: str, *, retry_after_s: int = 0, causes: Sequence[Cause] = ()) -> StatusError:
    """429: try again later (throttling, or an eviction that a budget holds back)."""
    details: dict[str, Any] = {}
    if causes:
        details["causes"] = [cause.document() for cause in causes]
    if retry_after_s:
        details["retryAfterSeconds"] = retry_after_s
    return StatusError(429, "TooManyRequests", message, details)


def internal(message: str) -> StatusError:
    """500: the server itself failed."""
    text = f"Internal error occurred: {message}"
    return StatusError(500, "InternalError", text, {"causes": [{"message": message}]})


def not_implemented(message: str) -> StatusError:
    """501: the lab does not offer this part of the API; the message says what to do instead."""
    return StatusError(501, "NotImplemented", message)
