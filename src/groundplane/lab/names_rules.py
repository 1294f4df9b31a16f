# ruff: noqa: E501
"""Rules for names, label keys and label values, worded as the API server words a breach."""

from __future__ import annotations

import re

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL = re.compile(_DNS_LABEL)
_SUBDOMAIN = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_ENV = re.compile(r"[ -<>-~]+")
_PATH = re.compile(r"[^/%]+")

SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an "
    "alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SERVICE_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end "
    "with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
QUALIFIED_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
CONFIG_KEY_TEXT = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)


def subdomain_problem(name: str) -> str:
    """Return what is wrong with a DNS-1123 subdomain, or an empty text."""
    if len(name) > 253:
        return "must be no more than 253 characters"
    return "" if _SUBDOMAIN.fullmatch(name) else SUBDOMAIN_TEXT


def label_name_problem(name: str) -> str:
    """Return what is wrong with a DNS-1123 label, or an empty text."""
    if "." in name:
        return "must not contain dots"
    if len(name) > 63:
        return "must be no more than 63 characters"
    return "" if _LABEL.fullmatch(name) else LABEL_TEXT


def service_name_problem(name: str) -> str:
    """Return what is wrong with a DNS-1035 label, or an empty text."""
    if len(name) > 63:
        return "must be no more than 63 characters"
    return "" if _SERVICE.fullmatch(name) else SERVICE_TEXT


def path_segment_problem(name: str) -> str:
    """Return what is wrong with a name that only has to fit into a URL path (RBAC kinds), or an empty text."""
    if name in (".", ".."):
        return f"may not be '{name}'"
    return "" if _PATH.fullmatch(name) else "may not contain '/' or '%'"


def label_key_problem(key: str) -> str:
    """Return what is wrong with a qualified name (label or annotation key), or an empty text."""
    prefix, slash, name = key.rpartition("/")
    if slash:
        if not prefix:
            return "prefix part must be non-empty"
        if problem := subdomain_problem(prefix):
            return f"prefix part {problem.replace('characters', 'bytes') if len(prefix) > 253 else problem}"
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 bytes"
    return "" if _QUALIFIED.fullmatch(name) else QUALIFIED_TEXT


def label_value_problem(value: str) -> str:
    """Return what is wrong with a label value, or an empty text."""
    if len(value) > 63:
        return "must be no more than 63 bytes"
    return "" if not value or _QUALIFIED.fullmatch(value) else VALUE_TEXT


def config_key_problem(key: str) -> str:
    """Return what is wrong with a key of a ConfigMap or Secret, or an empty text."""
    if len(key) > 253:
        return "must be no more than 253 characters"
    if key in (".", "..") or key.startswith(".."):
        return f"must not be '{key}'" if key in (".", "..") else "must not start with '..'"
    return "" if _CONFIG_KEY.fullmatch(key) else CONFIG_KEY_TEXT


def env_name_problem(name: str) -> str:
    """Return what is wrong with an environment variable's name, or an empty text."""
    text = "a valid environment variable name must consist only of printable ASCII characters other than '='"
    return "" if _ENV.fullmatch(name) else text
