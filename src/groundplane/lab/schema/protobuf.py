"""Objects sent in Kubernetes' protobuf encoding, which kubectl uses for requests of typed clients (`create`,
`auth can-i`).

Field numbers come from `wire.txt`. Only decoding is needed: answers are always JSON, which every client takes.
"""

from __future__ import annotations

import base64
import functools
import importlib.resources
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from . import builtin

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NEVER = -62135596800
"""Seconds of Go's zero time, which stands for no time."""


class ProtobufError(ValueError):
    """The bytes are not a Kubernetes protobuf message of a known kind."""


class _WireField(msgspec.Struct, frozen=True):
    name: str
    type: str
    repeated: bool
    mapped: bool


@functools.cache
def _messages() -> dict[str, dict[int, _WireField]]:
    """Read `wire.txt`: fields by number for each `module:Message`."""
    text = importlib.resources.files(__package__).joinpath("wire.txt").read_text("utf-8")
    result: dict[str, dict[int, _WireField]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        message, *entries = line.split()
        fields: dict[int, _WireField] = {}
        for entry in entries:
            number, _, rest = entry.partition("=")
            name, _, kind = rest.partition("/")
            fields[int(number)] = _WireField(name, kind.rstrip("*%"), kind.endswith("*"), kind.endswith("%"))
        result[message] = fields
    return result


def decode(data: bytes) -> Any:
    """Return the JSON form of an encoded object; raises ProtobufError."""
    if not data.startswith(_MAGIC):
        raise ProtobufError("the body does not start with the Kubernetes protobuf marker")
    envelope = dict(_raw(data[len(_MAGIC) :]))
    meta = dict(_raw(_as_bytes(envelope.get(1, b""))))
    version, kind = _text(meta.get(1, b"")), _text(meta.get(2, b""))
    message = _message(version, kind)
    document = _object(_as_bytes(envelope.get(2, b"")), message)
    return {"kind": kind, "apiVersion": version, **document}


def _message(version: str, kind: str) -> str:
    group, _, number = version.rpartition("/")
    module = f"{group.removesuffix('.k8s.io').partition('.')[0] or 'core'}_{number}"
    for name in (f"{module}:{kind}", f"meta_v1:{kind}"):
        if name in _messages():
            return name
    raise ProtobufError(f"{kind} of {version} is not a kind the lab reads as protobuf; send JSON")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data):
            raise ProtobufError("the body ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _raw(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of a message; lengths are checked."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ProtobufError(f"wire type {kind} is not used by Kubernetes")
        if at + length > len(data):
            raise ProtobufError("the body ends within a field")
        yield number, data[at : at + length]
        at += length


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ProtobufError("a number was found where a message belongs")
    return value


def _text(value: int | bytes) -> str:
    return _as_bytes(value).decode("utf-8")


def _object(data: bytes, message: str) -> dict[str, Any]:
    fields = _messages().get(message)
    if fields is None:
        raise ProtobufError(f"message {message} is not known")
    names = _json_names(message)
    result: dict[str, Any] = {}
    for number, raw in _raw(data):
        field = fields.get(number)
        if field is None:
            continue
        if field.mapped:
            entry = dict(_raw(_as_bytes(raw)))
            result.setdefault(field.name, {})[_text(entry.get(1, b""))] = _value(entry.get(2, b""), field.type)
        elif field.repeated:
            result.setdefault(field.name, []).append(_value(raw, field.type))
        else:
            value = _value(raw, field.type)
            if value is None:
                continue
            if names is not None and field.name not in names and isinstance(value, dict):
                result.update(value)
            else:
                result[field.name] = value
    return result


@functools.cache
def _json_names(message: str) -> frozenset[str] | None:
    """Return the JSON fields of a message; what is not among them is embedded. None when the type is not known."""
    try:
        return frozenset(builtin.of_model(message).fields)
    except AttributeError:
        return None


def _value(raw: int | bytes, kind: str) -> Any:
    if isinstance(raw, int):
        if kind == "bool":
            return bool(raw)
        return raw - (1 << 64) if raw >= 1 << 63 else raw
    if kind == "string":
        return raw.decode("utf-8")
    if kind == "bytes":
        return base64.b64encode(raw).decode()
    if kind == "double":
        if len(raw) != 8:
            raise ProtobufError("a floating-point number has 8 bytes")
        return struct.unpack("<d", raw)[0]
    special = _SPECIAL.get(kind.rpartition(":")[2])
    return special(dict(_raw(raw))) if special is not None else _object(raw, kind)


def _time(fields: dict[int, int | bytes], *, micro: bool = False) -> str | None:
    seconds, nanos = fields.get(1), fields.get(2, 0)
    if not isinstance(seconds, int) or not isinstance(nanos, int):
        return None
    seconds = seconds - (1 << 64) if seconds >= 1 << 63 else seconds
    if seconds == _NEVER:
        return None
    moment = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{nanos // 1000:06d}Z" if micro else f"{moment}Z"


def _int_or_string(fields: dict[int, int | bytes]) -> Any:
    number = fields.get(2, 0)
    return _text(fields.get(3, b"")) if fields.get(1) else number


_SPECIAL: dict[str, Any] = {
    "Time": _time,
    "MicroTime": lambda fields: _time(fields, micro=True),
    "Quantity": lambda fields: _text(fields.get(1, b"")),
    "IntOrString": _int_or_string,
    "RawExtension": lambda fields: msgspec.json.decode(_as_bytes(fields.get(1, b"null"))),
    "FieldsV1": lambda fields: msgspec.json.decode(_as_bytes(fields.get(1, b"{}"))),
    "ExtraValue": lambda fields: [_text(value) for value in fields.values()],
}
