"""features.d: files of features, their order, limits and directives (contracts/device-plugin-gfd.md 9)."""

import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.node.nodefeatures import local

NOW = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)
PAST, FUTURE = "2026-07-01T11:59:59Z", "2026-07-01T14:00:01+02:00"


@pytest.mark.parametrize(
    ("text", "labels", "features"),
    [
        ("a=1\nb=2", {"a": "1", "b": "2"}, None),
        ("  nvidia.com/gpu.count=8  \r\n\n\t\n", {"nvidia.com/gpu.count": "8"}, None),
        ("a=b=c", {"a": "b=c"}, None),
        ("flag", {"flag": "true"}, None),
        ("a=", {"a": ""}, None),
        ("# a comment\n#a=1\nb=1", {"b": "1"}, None),
        ("a=1\na=2", {"a": "2"}, None),
        (f"# +expiry-time={PAST}\na=1", {}, None),
        (f"# +expiry-time={FUTURE}\na=1", {"a": "1"}, None),
        (f"a=1\n# +expiry-time={PAST}\nb=1\nc=1\n# +expiry-time={FUTURE}\nd=1", {"a": "1", "d": "1"}, None),
        ("# +no-label\na=1\nb=1", {"b": "1"}, {"a": "1", "b": "1"}),
        ("# +no-feature\na=1\nb=1", {"a": "1", "b": "1"}, {"b": "1"}),
        ("# +no-feature\n# +no-label\na=1\nb=1", {"b": "1"}, {"b": "1"}),
        ("# +no-label\n\n# a comment\na=1", {}, {"a": "1"}),
        (f"# +no-label\n# +expiry-time={PAST}\na=1\n# +expiry-time={FUTURE}\nb=1", {"b": "1"}, None),
    ],
)
def test_section_9_lines_and_directives(text: str, labels: dict[str, str], features: dict[str, str] | None) -> None:
    found = local.parse(text, NOW)
    assert (found.labels, found.features, found.problems) == (labels, labels if features is None else features, ())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("# +expiry-time=tomorrow", "RFC 3339"),
        ("# +expiry-time=2026-07-01T11:00:00", "RFC 3339"),
        ("# +expiry-time", "RFC 3339"),
        ("# +no-labels", "no such directive"),
        ("# +no-label=true", "no such directive"),
    ],
)
def test_section_9_a_directive_that_is_wrong_is_said_and_left_out(line: str, said: str) -> None:
    found = local.parse(f"a=1\n{line}\nb=1", NOW, "gfd")
    assert found.labels == {"a": "1", "b": "1"}
    assert len(found.problems) == 1
    assert found.problems[0].startswith("gfd:2: ")
    assert said in found.problems[0]


@given(st.text())
def test_section_9_any_text_is_read(text: str) -> None:
    found = local.parse(text, NOW)
    assert all(key == key.lstrip() and not key.startswith("#") and "=" not in key for key in found.labels)


_words = st.text(st.characters(exclude_characters="\n=#", exclude_categories=["Cs", "Z", "Cc"]), min_size=1)


@given(st.lists(st.tuples(_words, _words)), st.sampled_from([None, PAST, FUTURE]))
def test_section_9_what_is_written_is_read(pairs: list[tuple[str, str]], expiry: str | None) -> None:
    head = [] if expiry is None else [f"# +expiry-time={expiry}"]
    found = local.parse("\n".join([*head, *(f"{key}={value}" for key, value in pairs)]), NOW)
    assert found.labels == ({} if expiry == PAST else dict(pairs))


def test_section_9_files_in_name_order_and_which_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "features.d"
    folder.mkdir()
    (folder / "b").write_text("who=b\nb=1")
    (folder / "a").write_text("who=a\na=1")
    (folder / ".hidden").write_text("hidden=1")
    (folder / "sub").mkdir()
    (folder / "sub" / "c").write_text("sub=1")
    (tmp_path / "target").write_text("linked=1")
    (folder / "link").symlink_to(tmp_path / "target")
    (folder / "just").write_text("just=" + "x" * (65536 - 5))
    (folder / "large").write_text("large=" + "x" * 65536)
    (folder / "dangling").symlink_to(tmp_path / "nowhere")
    (folder / "binary").write_bytes(b"ok=1\n\xff\xfe=1")
    found = local.read(folder, NOW)
    assert found.labels.pop("just").startswith("x")
    assert found.labels.pop("\ufffd\ufffd") == "1"
    assert found.labels == {"a": "1", "b": "1", "who": "b", "linked": "1", "ok": "1"}
    assert [text.rpartition("/")[2] for text in found.problems] == [
        "dangling: No such file or directory: the file is left out",
        "large: 65542 bytes, more than 65536: the file is left out",
    ]


def test_section_9_no_folder_is_no_feature(tmp_path: Path) -> None:
    assert local.read(tmp_path / "features.d", NOW) == local.Local()
