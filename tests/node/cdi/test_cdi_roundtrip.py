"""CDI documents, whatever is in them: what is written is what is read, in both formats (contracts/toolkit-cdi.md 1)."""

import json
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from node.cdi.cdispecs import SPECS

from groundplane.node.cdi import model, read, write
from groundplane.node.cdi.model import ContainerEdits, Device, Spec
from groundplane.node.cdi.write import Format


@pytest.mark.parametrize("form", Format)
@given(spec=SPECS)
def test_what_is_written_is_what_is_read(form: Format, spec: Spec) -> None:
    written = write.encode(spec, form)
    found = read.decode(written, "x")
    assert found.cdi_version == model.minimum_version(spec)
    assert msgspec.structs.replace(found, cdi_version="") == spec
    assert write.encode(found, form) == written


@given(spec=SPECS)
def test_both_formats_say_the_same(spec: Spec) -> None:
    text = write.encode(spec, Format.YAML)
    assert text.startswith(b"---\n")
    assert yaml.safe_load(text) == json.loads(write.encode(spec, Format.JSON))


@given(spec=SPECS)
def test_1_2_what_is_added_never_lowers_the_version(spec: Spec) -> None:
    def version(*devices: Device, **more: Any) -> int:
        less = msgspec.structs.replace(spec, devices=devices, container_edits=ContainerEdits(), annotations={})
        return model.VERSIONS.index(model.minimum_version(msgspec.structs.replace(less, **more)))

    versions = [
        *(version(*spec.devices[:number]) for number in range(len(spec.devices) + 1)),
        version(*spec.devices, container_edits=spec.container_edits),
        version(*spec.devices, container_edits=spec.container_edits, annotations=spec.annotations),
    ]
    assert versions == sorted(versions)


@given(spec=SPECS, version=st.sampled_from(model.VERSIONS))
def test_1_2_the_minimum_is_taken_and_no_older_version_is(spec: Spec, version: str) -> None:
    written = yaml.safe_dump({**model.document(spec), "cdiVersion": version}).encode()
    if model.VERSIONS.index(version) >= model.VERSIONS.index(model.minimum_version(spec)):
        assert read.decode(written, "x").cdi_version == version
        return
    with pytest.raises(model.SpecError, match="cdiVersion must be at least"):
        read.decode(written, "x")


ODDITIES = st.sampled_from(
    [
        *"[]{}:,?-&*!|>'\"#%@`\n\t \x00",
        "<<: ",
        "*a",
        "&a ",
        "!!int ",
        "!!binary ",
        "---\n",
        "null",
        ".inf",
        "1e999",
        "? ",
    ]
)


@given(spec=SPECS, form=st.sampled_from(Format), odd=st.lists(ODDITIES, min_size=1, max_size=3), data=st.data())
def test_whatever_a_file_holds_nothing_else_than_spec_errors_comes_of_it(
    spec: Spec, form: Format, odd: list[str], data: st.DataObject
) -> None:
    text = write.encode(spec, form).decode()
    for each in odd:
        begin = data.draw(st.integers(0, len(text)))
        text = text[:begin] + each + text[begin + data.draw(st.integers(0, 3)) :]
    try:
        found = read.decode(text.encode(), "x")
    except model.SpecError as error:
        assert str(error).startswith("x: ")
    else:
        model.check(found)
        model.check_version(found)


@given(data=st.binary(max_size=40))
def test_nor_of_bytes(data: bytes) -> None:
    with pytest.raises(model.SpecError, match=r"^x: "):
        read.decode(data, "x")
