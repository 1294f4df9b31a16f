"""From an HTTP answer to the exception that callers catch."""

import datetime
import email.utils
import json
import time
from typing import Any

import pytest
from cluster.fake_api import status_body

from groundplane.cluster import errors


def answer(code: int, body: Any, retry_after: str | None = None) -> errors.ApiError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return errors.from_response(code, data, "get nodes/a", retry_after)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (409, "", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (404, "", errors.NotFound),
        (410, "", errors.Gone),
        (500, "Timeout", errors.ServerError),
        (504, "", errors.ServerError),
        (418, "", errors.ApiError),
        (400, "BadRequest", errors.ApiError),
        (413, "RequestEntityTooLarge", errors.ApiError),
    ],
)
def test_the_reason_decides_then_the_code(code: int, reason: str, kind: type[errors.ApiError]) -> None:
    error = answer(code, status_body(code, reason, "m"))
    assert type(error) is kind
    assert (error.code, error.reason) == (code, reason)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "''"),
        (b"\xff\xfe", "not from a Kubernetes API server"),
        (b"x" * 1000, "x" * 300 + "..."),
        ({"kind": "Pod"}, '{"kind": "Pod"}'),
        (b"[1]", "'[1]'"),
    ],
)
def test_bodies_that_are_no_status_are_quoted(body: Any, text: str) -> None:
    error = answer(502, body)
    assert isinstance(error, errors.ServerError)
    assert text in str(error)
    assert "get nodes/a: HTTP 502" in str(error)


def http_date(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(time.time() + seconds, datetime.UTC)
    return email.utils.format_datetime(moment, usegmt=True)


@pytest.mark.parametrize(
    ("header", "details", "expected"),
    [
        (None, None, None),
        ("5", None, 5.0),
        ("-5", None, 0.0),
        ("soon", None, None),
        (None, {"retryAfterSeconds": 7}, 7.0),
        (None, {"retryAfterSeconds": 0}, None),
        ("5", {"retryAfterSeconds": 7}, 5.0),
    ],
)
def test_retry_after(header: str | None, details: dict[str, Any] | None, expected: float | None) -> None:
    error = answer(429, status_body(429, "TooManyRequests", "m", details=details), header)
    assert error.retry_after_s == expected


def test_retry_after_may_be_a_date() -> None:
    later = answer(503, status_body(503, "ServiceUnavailable", "m"), http_date(3600)).retry_after_s
    assert later is not None
    assert 3000 < later <= 3600
    assert answer(503, status_body(503, "ServiceUnavailable", "m"), http_date(-3600)).retry_after_s == 0.0


def test_causes_that_are_not_what_they_should_be() -> None:
    assert answer(422, status_body(422, "Invalid", "m", details={"causes": "x"})).causes == []
    error = answer(422, status_body(422, "Invalid", "m", details={"causes": [3, {"field": "f"}]}))
    assert error.causes == [("f", "")]
