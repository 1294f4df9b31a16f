"""Request bodies: JSON, YAML and Kubernetes' protobuf, with the duplicate keys that strict field validation reports."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import yaml

from . import status
from .schema import protobuf

MEDIA_TYPES = ("application/json", "application/yaml", protobuf.MEDIA_TYPE)
_decode = msgspec.json.Decoder().decode


def read(body: bytes, media: str, duplicates: list[str] | None) -> Any:
    """Decode a body; paths of duplicate keys are appended to `duplicates` when it is not None. Raises the 400."""
    try:
        if media == protobuf.MEDIA_TYPE:
            return protobuf.decode(body)
        if "yaml" in media and not body.lstrip().startswith((b"{", b"[")):
            return _yaml(body)
        if duplicates is None:
            return _decode(body)
        return _Finder(duplicates).read(body)
    except (ValueError, yaml.YAMLError) as error:
        raise status.bad_request(f"the object provided is unrecognized: couldn't get version/kind: {error}") from error


def _yaml(body: bytes) -> Any:
    return yaml.load(body, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


class _Pairs(list[tuple[str, Any]]):
    """An object as its pairs, duplicates kept."""


class _Finder:
    """Decodes JSON noting keys that occur twice in one object."""

    def __init__(self, found: list[str]) -> None:
        self._found = found

    def read(self, body: bytes) -> Any:
        return self._plain(json.loads(body, object_pairs_hook=_Pairs), "")

    def _plain(self, value: Any, path: str) -> Any:
        if isinstance(value, _Pairs):
            result: dict[str, Any] = {}
            for key, item in value:
                here = f"{path}.{key}" if path else key
                if key in result:
                    self._found.append(here)
                result[key] = self._plain(item, here)
            return result
        if isinstance(value, list):
            return [self._plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
        return value
