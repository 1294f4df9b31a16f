"""Which labels a node may be given: names and values that Kubernetes takes, and namespaces that features may use.

Source: contracts/device-plugin-gfd.md 9. A label that is refused is refused alone; the rest stands. Pure.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from ...api import names

FEATURE_NAMESPACES: Final = ("feature.node.kubernetes.io", "profile.node.kubernetes.io")
"""With their sub-namespaces these are Kubernetes' own that features may use."""
_KUBERNETES: Final = "kubernetes.io"
_MAX_NAME: Final = 63
_MAX_PREFIX: Final = 253
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DNS_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_DYNAMIC: Final = "@"


class Refused(NamedTuple):
    """A label that a node is not given."""

    key: str
    value: str
    why: str

    def __str__(self) -> str:
        return f"label {self.key}={self.value} is left out: {self.why}"


class Accepted(NamedTuple):
    """What becomes of some requests: keys are qualified, values are plain."""

    labels: dict[str, str]
    refused: tuple[Refused, ...]


def accept(
    requested: Mapping[str, str], attributes: Mapping[str, Mapping[str, str]], extra_namespaces: Collection[str] = ()
) -> Accepted:
    """Judge each requested label for itself; ``attributes`` are what values such as ``@kernel.version.full`` mean."""
    good, refused = {}, []
    for key, value in requested.items():
        full = qualified(key)
        said = resolved(value, attributes)
        why = refusal(full, said, extra_namespaces) if said is not None else f"there is no feature {value[1:]!r}"
        if said is None or why:
            refused.append(Refused(full, value, why))
        else:
            good[full] = said
    return Accepted(good, tuple(refused))


def qualified(key: str) -> str:
    """A label's key with its namespace, which is that of features if it has none."""
    return key if "/" in key else names.NFD_PREFIX + key


def resolved(value: str, attributes: Mapping[str, Mapping[str, str]]) -> str | None:
    """A value as it is, or, of ``@domain.feature.element``, that element; None if there is no such feature."""
    if not value.startswith(_DYNAMIC):
        return value
    domain, _, rest = value.removeprefix(_DYNAMIC).partition(".")
    feature, dot, element = rest.partition(".")
    return attributes.get(f"{domain}.{feature}", {}).get(element) if dot else None


def refusal(key: str, value: str, extra_namespaces: Collection[str] = ()) -> str:
    """Why a node may not have a label; empty if it may."""
    return next(_refusals(key, value, extra_namespaces), "")


def _refusals(key: str, value: str, extra_namespaces: Collection[str]) -> Iterator[str]:
    namespace, _, name = key.partition("/")
    if not _is_subdomain(namespace):
        yield f"{namespace!r} is not a DNS subdomain (lower case letters, digits, '-' and '.')"
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        yield f"{name!r} is not a label's name ({_RULE})"
    if not _allowed(namespace) and namespace not in extra_namespaces:
        yield f"the namespace {namespace!r} belongs to Kubernetes (--extra-label-ns allows more)"
    if value and (len(value) > _MAX_NAME or not _NAME.fullmatch(value)):
        yield f"{value!r} is not a label's value ({_RULE})"


_RULE: Final = f"at most {_MAX_NAME} letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"


def _is_subdomain(text: str) -> bool:
    return len(text) <= _MAX_PREFIX and all(_DNS_LABEL.fullmatch(part) for part in text.split("."))


def _allowed(namespace: str) -> bool:
    if not _within(namespace, _KUBERNETES):
        return True
    return any(_within(namespace, allowed) for allowed in FEATURE_NAMESPACES)


def _within(namespace: str, above: str) -> bool:
    return namespace == above or namespace.endswith(f".{above}")
