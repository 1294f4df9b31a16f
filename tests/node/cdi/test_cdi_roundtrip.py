"""CDI documents, whatever is in them: what is written is what is read, in both formats (contracts/toolkit-cdi.md 1)."""

import json

import msgspec
import pytest
import yaml
from hypothesis import given
from node.cdi.cdispecs import SPECS

from groundplane.node.cdi import model, read, write
from groundplane.node.cdi.model import Spec
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


@given(spec=SPECS, other=SPECS)
def test_1_2_what_is_added_never_lowers_the_version(spec: Spec, other: Spec) -> None:
    names = {device.name for device in spec.devices}
    more = tuple(device for device in other.devices if device.name not in names)
    before = model.VERSIONS.index(model.minimum_version(spec))
    for larger in (
        msgspec.structs.replace(spec, devices=spec.devices + more),
        msgspec.structs.replace(spec, annotations={**spec.annotations, "x": "y"}),
    ):
        assert model.VERSIONS.index(model.minimum_version(larger)) >= before


@given(spec=SPECS)
def test_1_2_the_minimum_is_taken_and_no_older_version_is(spec: Spec) -> None:
    minimum = model.VERSIONS.index(model.minimum_version(spec))
    for number, version in enumerate(model.VERSIONS):
        document = {**model.document(spec), "cdiVersion": version}
        written = yaml.safe_dump(document).encode()
        if number >= minimum:
            assert read.decode(written, "x").cdi_version == version
        else:
            with pytest.raises(model.SpecError, match="cdiVersion must be at least"):
                read.decode(written, "x")
