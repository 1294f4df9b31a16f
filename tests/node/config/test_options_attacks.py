"""Values of options that nobody can have meant."""

from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node.options import OptionError
from groundplane.node.toolkit import options


def load(folder: Path, **env: str) -> options.Settings:
    return options.load(FakeProcess(folder, ("nvidia-toolkit",), env))


@pytest.mark.parametrize("name", ["ROOT", "NVIDIA_RUNTIME_NAME", "NVIDIA_CONTAINER_RUNTIME_RUNTIMES", "DEV_ROOT"])
def test_what_is_no_utf8_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError, match=rf'invalid value "/a\?\?".*variable {name}: it is not UTF-8 text'):
        load(tmp_path, **{name: b"/a\xff\xfe".decode(errors="surrogateescape")})


def test_a_wrong_value_is_shown_in_short(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        load(tmp_path, CDI_ENABLED="x" * 100_000)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', '{"a":' * 5000, '{"a": ' + "1" * 5000 + "}"])
def test_an_override_that_cannot_be_written_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(OptionError):
        load(tmp_path, RUNTIME_CONFIG_OVERRIDE=text)
