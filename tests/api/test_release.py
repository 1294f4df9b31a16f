import pytest

from groundplane.api.release import DEFAULT, Release


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("26.3.3", Release.V26_3),
        ("v26.3.3", Release.V26_3),
        ("26.3", Release.V26_3),
        ("26.3.9", Release.V26_3),
        ("26.7.0", Release.V26_7),
        (" v26.7 ", Release.V26_7),
    ],
)
def test_parse(text: str, release: Release) -> None:
    assert Release.parse(text) is release


@pytest.mark.parametrize("text", ["", "26", "26.30", "25.3.0", "26.7.0-rc1", "latest"])
def test_parse_names_what_is_supported(text: str) -> None:
    with pytest.raises(ValueError, match=r"use one of 26\.3\.3, 26\.7\.0"):
        Release.parse(text)


def test_default_is_the_newest() -> None:
    assert Release.DEFAULT is DEFAULT is Release.V26_7
    assert [str(release) for release in Release] == ["26.3.3", "26.7.0"]
