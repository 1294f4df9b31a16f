"""Configuration files that mean harm: too deep, too long, of odd types. Each is refused in words, or left as it was."""

import asyncio
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess
from node.toolkit.runtimes.runtimekit import CONFIGS, STATE, files, settings

from groundplane.node.process import Completed
from groundplane.node.toolkit import runtimes
from groundplane.node.toolkit.runtimes import files as files_of_runtimes
from groundplane.node.toolkit.runtimes import sources
from groundplane.node.toolkit.runtimes.files import MAX_SIZE
from groundplane.node.toolkit.settings import RuntimeConfigError

TABLE = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"'
DEPTHS = (90, 150, 330, 400, 500, 900, 1200, 5000)


def deep() -> Iterator[tuple[str, str]]:
    for depth in DEPTHS:
        lists = "[" * depth + "]" * depth
        keys = ".".join(["a"] * depth)
        yield "containerd", f"{TABLE}]\nx = {lists}\n"
        yield "containerd", f"{TABLE}]\nx = {'{a=' * depth}1{'}' * depth}\n"
        yield "containerd", f"{TABLE}]\n{keys} = 1\n"
        yield "containerd", f"{TABLE}.{keys}]\nb = 1\n"
        yield "crio", "[" + " . ".join(['"a"'] * depth) + "]\nb = 1\n"
        yield "docker", '{"x": ' + lists + "}"
        yield "docker", '{"runtimes": {"x": ' + '{"a":' * depth + "1" + "}" * depth + "}}"


ODD = (
    *deep(),
    ("containerd", f"version = 2\nx = {'1' * 5000}\n"),
    ("crio", f"x = {'1' * 5000}\n"),
    ("docker", '{"x": ' + "1" * 5000 + "}"),
    ("docker", '{"default-runtime": {}}'),
    ("docker", '{"default-runtime": ["nvidia"], "runtimes": null}'),
    ("containerd", 'version = 2\nimports = ["[", "", "/", "/etc/\\u0000/x.toml", "/proc/self/*", "/a/*/b"]\n'),
    ("containerd", "#" * MAX_SIZE + "\n"),
    ("docker", " " * MAX_SIZE + "{}"),
)


@pytest.mark.parametrize(("runtime", "text"), ODD, ids=range(len(ODD)))
async def test_odd_files_are_refused_in_words_or_restored(tmp_path: Path, runtime: str, text: str) -> None:
    process = FakeProcess(tmp_path, ("nvidia-toolkit",), {})
    process.root.write_atomic(CONFIGS[runtime], text)
    wanted = settings(runtime, default="nvidia", enable_cdi=True)
    before = files(process)
    for step in (runtimes.low_level, runtimes.preview, runtimes.configure, runtimes.configure, runtimes.revert):
        try:
            await step(process, wanted)
        except RuntimeConfigError as error:
            assert CONFIGS[runtime] in str(error)
            assert len(str(error)) < 1000
    assert files(process) == before


async def test_a_key_of_many_parts_takes_no_memory(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path, ("nvidia-toolkit",), {})
    process.root.write_atomic(CONFIGS["containerd"], f"{'.'.join(['a'] * 500_000)} = 1\n")
    with pytest.raises(RuntimeConfigError, match="nested too deeply"):
        await runtimes.configure(process, settings("containerd"))


@pytest.mark.parametrize("printed", [f"x = {'1' * 5000}", f"x = {'[' * 5000}", f"{'.'.join(['a'] * 5000)} = 1", "\0"])
async def test_what_the_runtime_prints_may_be_anything(tmp_path: Path, printed: str) -> None:
    process = FakeProcess(tmp_path, ("nvidia-toolkit",), {})
    process.commands["chroot"] = lambda argv, env, stdin: Completed(0, printed, "")
    with pytest.raises(RuntimeConfigError, match="printed no TOML"):
        await sources.load(process, settings("containerd", sources=("command",)), [("containerd", "config", "dump")])


@pytest.mark.parametrize("kind", ["pipe", "folder", "deep", "binary"])
async def test_a_memory_that_is_none_holds_nothing_up(tmp_path: Path, kind: str) -> None:
    process = FakeProcess(tmp_path, ("nvidia-toolkit",), {})
    process.root.write_atomic(CONFIGS["docker"], "{}\n")
    state = process.root.write_atomic(STATE, b"\0\xff" if kind == "binary" else b'{"x":' + b"[" * 100_000)
    if kind in ("pipe", "folder"):
        state.unlink()
        os.mkfifo(state) if kind == "pipe" else state.mkdir()
        with pytest.raises(RuntimeConfigError, match=f"{STATE} cannot be read"):
            await runtimes.configure(process, settings("docker"))
        return
    assert await runtimes.configure(process, settings("docker"))
    assert f"{STATE} is not what was written there, and is not used" in process.stderr


async def test_a_file_that_the_kernel_has_not_written_yet_is_not_waited_for(tmp_path: Path) -> None:
    if not os.access("/proc/kmsg", os.R_OK):
        pytest.skip("the kernel's log cannot be read here")
    with pytest.raises(OSError, match=r".") as caught:
        while files_of_runtimes.content(Path("/proc/kmsg"), 1 << 16):
            pass
    assert caught.value.errno in (errno.EAGAIN, errno.EPERM)


async def test_a_command_that_hangs_is_killed_and_the_next_source_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = FakeProcess(tmp_path, pace=600.0)
    process.write(CONFIGS["containerd"], "version = 2\n")
    killed: list[tuple[str, ...]] = []

    async def hang(argv: Sequence[str], **_more: object) -> Completed:
        try:
            return await asyncio.Future()
        finally:
            killed.append(tuple(argv))

    monkeypatch.setattr(process, "execute", hang)
    loaded = await sources.load(process, settings("containerd", sources=("command", "file")), [("containerd", "x")])
    assert not loaded.by_command
    assert killed == [("chroot", "/host", "containerd", "x")]
    assert "chroot /host containerd x did not end within 60 s and was killed" in process.stderr
