"""Whatever the file: configuring twice is as once, taking back restores, and a person's edit in between survives."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import tomlkit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node.fakeprocess import FakeProcess
from node.toolkit.runtimes import runtimekit
from node.toolkit.runtimes.runtimekit import CONFIGS, DROP_INS, files

from groundplane.node.toolkit import runtimes
from groundplane.node.toolkit.runtimes.documents import ABSENT, JsonDocument, TomlDocument, at, same, toml_text, undo
from groundplane.node.toolkit.runtimes.jsontext import JsonText
from groundplane.node.toolkit.settings import RuntimeConfigError

KEYS = st.one_of(
    st.sampled_from(["version_", "plugins", "cri", "containerd", "runtimes", "runc", "options", "a.b", "ключ", ""]),
    st.text("abcxyz-_ .\"'", max_size=6),
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12),
    st.datetimes(),
    st.dates(),
)


NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
JSON_SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=9))


def tables(scalars: st.SearchStrategy[Any], leaves: int = 12) -> st.SearchStrategy[dict[str, Any]]:
    values = st.recursive(
        scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
        max_leaves=leaves,
    )
    return st.dictionaries(KEYS, values, max_size=5)


@st.composite
def layouts(draw: st.DrawFn, document: dict[str, Any]) -> str:
    """A TOML text of a document: under headers, or by the library's own hand, with odd spacing and comments."""
    text = toml_text(document) if draw(st.booleans()) else tomlkit.dumps(document)
    lines = []
    for line in text.splitlines():
        plain = draw(st.integers(0, 5))
        if plain == 0 and '"""' not in text and "'''" not in text:
            lines.append(draw(st.sampled_from(["# a comment", "", "   ", "\t# [not.a.table]"])))
        lines.append(("  " if plain == 1 else "") + line + ("  # why" if plain == 2 and line.startswith("[") else ""))
    ending = draw(st.sampled_from(["\n", "\n\n", ""]))
    newline = draw(st.sampled_from(["\n", "\n", "\n", "\r\n"]))
    return newline.join(lines) + ending.replace("\n", newline)


@st.composite
def containerd_files(draw: st.DrawFn) -> str:
    document: dict[str, Any] = draw(tables(SCALARS))
    document.pop("plugins", None)
    version = draw(st.sampled_from([None, 1, 2, 3, 4]))
    head = {"version": version} if version else {}
    imports = draw(st.sampled_from([None, [], ["/etc/containerd/conf.d/*.toml"], ["/a.toml", "/b/*.toml"]]))
    if imports is not None:
        head |= {"imports": imports}  # type: ignore[dict-item]
    if draw(st.booleans()):
        cri = draw(tables(SCALARS, 4))
        runtime = draw(st.dictionaries(st.sampled_from(["runtime_type", "snapshotter"]), st.text("abc", max_size=4)))
        default = draw(st.sampled_from([{}, {"default_runtime_name": "runc"}, {"default_runtime_name": "crun"}]))
        cri["containerd"] = {**default, "runtimes": {draw(st.sampled_from(["runc", "crun", "kata"])): runtime}}
        document["plugins"] = {runtimekit.TABLES[version or 1]: cri, "other": draw(tables(SCALARS, 3))}
    return draw(layouts({**head, **document}))


def run(runtime: str, text: str, default: str, edit: dict[str, Any] | None = None) -> None:
    """The laws, for one file. ``edit`` is what a person adds in between."""
    with tempfile.TemporaryDirectory() as folder:
        process = FakeProcess(Path(folder))
        path = DROP_INS["crio"] if runtime == "crio" else CONFIGS[runtime]
        process.write(path, text)
        wanted = runtimekit.settings(runtime, default=default, enable_cdi=True)
        before = files(process)
        asyncio.run(runtimes.configure(process, wanted))
        once = files(process)
        assert not asyncio.run(runtimes.configure(process, wanted))
        assert files(process) == once
        if edit is None:
            asyncio.run(runtimes.revert(process, wanted))
            assert files(process) == before
            return
        read = JsonDocument if runtime == "docker" else TomlDocument
        original = read(text, path).plain
        document = read(process.root.path(path).read_bytes().decode(), path)
        for key, value in edit.items():
            document.put((key,), value)
        process.write(path, document.text)
        asyncio.run(runtimes.configure(process, wanted))
        asyncio.run(runtimes.revert(process, wanted))
        after = read(process.root.path(path).read_bytes().decode(), path).plain
        if runtime == "containerd" and not original:
            original = {"version": 2}  # what a person adds to an empty file is meant for the version that was there
        assert same(after, {**original, **edit})


SLOW = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
EDITS = st.dictionaries(
    st.sampled_from(["mine", "debug-x", "zz top"]), st.one_of(st.integers(0, 9), st.text("ab")), min_size=1
)
DEFAULTS = st.sampled_from(["", "nvidia"])


@SLOW
@given(containerd_files(), DEFAULTS)
def test_containerd(text: str, default: str) -> None:
    run("containerd", text, default)


@SLOW
@given(containerd_files(), DEFAULTS, EDITS)
def test_containerd_edited(text: str, default: str, edit: dict[str, Any]) -> None:
    run("containerd", text, default, edit)


@SLOW
@given(tables(SCALARS).flatmap(layouts), DEFAULTS)
def test_crio(text: str, default: str) -> None:
    run("crio", text, default)


@SLOW
@given(tables(SCALARS).flatmap(layouts), DEFAULTS, EDITS)
def test_crio_edited(text: str, default: str, edit: dict[str, Any]) -> None:
    run("crio", text, default, edit)


@st.composite
def docker_files(draw: st.DrawFn) -> str:
    document = draw(tables(JSON_SCALARS))
    if not isinstance(document.get("runtimes"), dict | None):
        del document["runtimes"]
    features = draw(st.sampled_from([None, {}, {"buildkit": True}, {"cdi": False}]))
    if features is not None:
        document["features"] = features
    if draw(st.booleans()):
        document["runtimes"] = {"crun": {"path": "/usr/bin/crun"}}
    document.update(draw(st.sampled_from([{}, {"default-runtime": "crun"}])))
    indent = draw(st.sampled_from([None, 1, 2, 4, "\t"]))
    text = json.dumps(document, indent=indent, ensure_ascii=draw(st.booleans()))
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    return text.replace("\n", newline) + draw(st.sampled_from(["", newline, " "]))


@SLOW
@given(docker_files(), DEFAULTS)
def test_docker(text: str, default: str) -> None:
    run("docker", text, default)


@SLOW
@given(docker_files(), DEFAULTS, EDITS)
def test_docker_edited(text: str, default: str, edit: dict[str, Any]) -> None:
    run("docker", text, default, edit)


@given(tables(SCALARS))
def test_toml_is_read_as_written(document: dict[str, Any]) -> None:
    assert same(TomlDocument(toml_text(document), "x").plain, document)


@given(tables(JSON_SCALARS), st.sampled_from([None, 2, "\t"]), st.data())
def test_json_changes_one_member(document: dict[str, Any], indent: int | str | None, data: st.DataObject) -> None:
    """Put and drop undo each other in what the text says, and all but the place stays as it was written."""
    text = json.dumps(document, indent=indent)
    added = JsonText(text).put(("new", "deep"), [1, {"x": None}])
    assert added.plain == {**document, "new": {"deep": [1, {"x": None}]}}
    assert added.drop(("new",)).plain == document
    if document:
        assert added.drop(("new",)).text == text
        key = data.draw(st.sampled_from(list(document)))
        assert JsonText(text).drop((key,)).plain == {k: v for k, v in document.items() if k != key}
        assert JsonText(text).put((key,), 7).plain == {**document, key: 7}


@given(tables(JSON_SCALARS), tables(JSON_SCALARS))
def test_undo(before: dict[str, Any], written: dict[str, Any]) -> None:
    """Without an edit in between, undoing gives what was before, but for empty objects."""
    document = JsonDocument(json.dumps(written), "x")
    undo(before, written, document, frozenset())
    assert same(pruned(document.plain), pruned(before))


def pruned(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    items = {key: pruned(item) for key, item in value.items()}
    return {key: item for key, item in items.items() if item != {}}


@SLOW
@given(st.data())
def test_toml_changes_only_what_is_asked(data: st.DataObject) -> None:
    """A change either does just that, or is refused; never anything else."""
    text = data.draw(tables(SCALARS).flatmap(layouts))
    document = TomlDocument(text, "x")
    plain = document.plain
    paths = [path for path in every(plain) if path]
    if paths:
        path = data.draw(st.sampled_from(paths))
        try:
            document.drop(path)
        except RuntimeConfigError:
            assert document.text == text
        else:
            assert at(document.plain, path) in (ABSENT, {})


def every(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path]
    if isinstance(value, dict):
        for key, item in value.items():
            found += every(item, (*path, key))
    return found
