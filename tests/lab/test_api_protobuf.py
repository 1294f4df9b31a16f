from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.lab.schema import protobuf


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def envelope(version: str, kind: str, raw: bytes) -> bytes:
    meta = field(1, version.encode()) + field(2, kind.encode())
    return b"k8s\x00" + field(1, meta) + field(2, raw)


def test_decodes_metadata_maps_and_embedded_messages() -> None:
    entry = field(1, b"k") + field(2, b"v")
    body = envelope("v1", "ConfigMap", field(1, field(1, b"name")) + field(2, entry))
    assert protobuf.decode(body) == {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "name"},
        "data": {"k": "v"},
    }


def test_unknown_kinds_and_foreign_bytes_are_refused() -> None:
    with pytest.raises(protobuf.ProtobufError, match="send JSON"):
        protobuf.decode(envelope("v9", "Nothing", b""))
    with pytest.raises(protobuf.ProtobufError, match="marker"):
        protobuf.decode(b"{}")


@given(st.binary(max_size=40))
def test_damaged_bodies_fail_as_bad_values(raw: bytes) -> None:
    try:
        protobuf.decode(envelope("v1", "Pod", raw))
    except ValueError:
        return
