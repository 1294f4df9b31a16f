"""What can go wrong between us and the API server, as exception types.

:func:`from_response` turns an HTTP answer (a Kubernetes ``Status`` or, from a proxy in between, any text) into the
most specific type; callers catch the type and never look at numbers. Deciding what is retried is the client's.
"""

# ruff: noqa: N818  (the names are the Status reasons)

from email.utils import parsedate_to_datetime
from time import time
from typing import Any

import msgspec


class ClusterError(Exception):
    """Base of everything this room raises about the API server."""


class ConfigError(ClusterError):
    """The kubeconfig or in-cluster configuration cannot be used; the message says which file and field."""


class ConnectionLost(ClusterError):
    """No (complete) HTTP answer: refused, reset, timed out, cut in mid-body. Whether the server acted is unknown."""

    unsent = False
    """The connection never came about: the server has certainly not acted."""


class Unreadable(ClusterError):
    """An answer arrived but is not the JSON that was asked for, or does not fit the view."""


class ApiError(ClusterError):
    """The API server refused a request.

    ``code`` is the HTTP status, ``reason`` the Status reason ("NotFound"; may be empty behind a proxy),
    ``retry_after_s`` the server's wish in seconds, ``details`` the Status details (name, kind, causes).
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        retry_after_s: float | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(code, reason, message, retry_after_s, details)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.details = details or {}

    @property
    def causes(self) -> list[tuple[str, str]]:
        """(field path, message) of every cause the server listed, e.g. the fields of an Invalid object."""
        causes = self.details.get("causes")
        if not isinstance(causes, list):
            return []
        return [(str(c.get("field", "")), str(c.get("message", ""))) for c in causes if isinstance(c, dict)]

    def __str__(self) -> str:
        return f"{self.message} ({self.code} {self.reason})" if self.reason else f"{self.message} ({self.code})"


class Unauthorized(ApiError):
    """401: the credentials are missing, wrong or expired."""


class Forbidden(ApiError):
    """403: RBAC, admission or quota forbids it; trying again does not help until somebody changes a rule."""


class NotFound(ApiError):
    """404: no such object, or no such resource type (its CRD is not installed)."""


class AlreadyExists(ApiError):
    """409 on create: an object of that name is there."""


class Conflict(ApiError):
    """409: a precondition (resourceVersion, uid) or another field manager stands against it."""


class Gone(ApiError):
    """410: the resourceVersion or continue token is too old; list again."""


class Invalid(ApiError):
    """422: the object breaks a validation rule, or changes an immutable field."""


class TooManyRequests(ApiError):
    """429: the server sheds load, or an eviction is held back by a PodDisruptionBudget."""

    @property
    def disruption_budget(self) -> bool:
        """A PodDisruptionBudget holds the eviction back: trying again soon does not help."""
        causes = self.details.get("causes")
        return isinstance(causes, list) and any(
            isinstance(c, dict) and c.get("reason") == "DisruptionBudget" for c in causes
        )


class ServerError(ApiError):
    """5xx: the server, or a webhook or proxy in front of it, failed."""


_BY_REASON: dict[str, type[ApiError]] = {
    "Unauthorized": Unauthorized,
    "Forbidden": Forbidden,
    "NotFound": NotFound,
    "AlreadyExists": AlreadyExists,
    "Conflict": Conflict,
    "Gone": Gone,
    "Expired": Gone,
    "Invalid": Invalid,
    "TooManyRequests": TooManyRequests,
    "InternalError": ServerError,
    "ServiceUnavailable": ServerError,
    "ServerTimeout": ServerError,
    "Timeout": ServerError,
}
_BY_CODE: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}
_BODY_EXCERPT = 300
"""Characters of a body that is no Status that go into the message."""


class _Status(msgspec.Struct):
    kind: str = ""
    message: str | None = None
    reason: str | None = None
    code: int | None = None
    details: dict[str, Any] | None = None


_STATUS = msgspec.json.Decoder(_Status)


def from_response(code: int, body: bytes, what: str, retry_after: str | None = None) -> ApiError:
    """The error for an HTTP answer. ``what`` names the request, ``retry_after`` is that header's value."""
    status = _decode(body)
    if status is None or status.kind != "Status":
        text = " ".join(body.decode("utf-8", "replace").split())
        excerpt = text[:_BODY_EXCERPT] + ("..." if len(text) > _BODY_EXCERPT else "")
        return _make(code, "", f"{what}: HTTP {code}, not from a Kubernetes API server: {excerpt!r}", retry_after, None)
    message = f"{what}: {status.message or status.reason or 'no message'}"
    return _make(code, status.reason or "", message, retry_after, status.details)


def from_status(status: object, what: str) -> ApiError:
    """The error for a ``Status`` object inside a stream: the ERROR event of a watch."""
    try:
        parsed = msgspec.convert(status, _Status)
    except msgspec.ValidationError:
        parsed = _Status(message=f"unreadable ERROR event {status!r}")
    message = f"{what}: {parsed.message or parsed.reason or 'ERROR event without a message'}"
    return _make(parsed.code or 500, parsed.reason or "", message, None, parsed.details)


def _make(code: int, reason: str, message: str, retry_after: str | None, details: dict[str, Any] | None) -> ApiError:
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code) or (ServerError if code >= 500 else ApiError)
    wait = _seconds(retry_after)
    if wait is None and details and isinstance(details.get("retryAfterSeconds"), int):
        wait = float(details["retryAfterSeconds"]) or None
    return kind(code, reason, message, wait, details)


def _decode(body: bytes) -> _Status | None:
    try:
        return _STATUS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _seconds(header: str | None) -> float | None:
    """Retry-After is a number of seconds or an HTTP date; anything else counts as absent."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time())
    except ValueError:
        return None
