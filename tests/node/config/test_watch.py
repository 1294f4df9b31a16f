"""Watching the file system: by inotify and by polling the same changes are seen (contract 3, last paragraph; 7)."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from groundplane.node import watch
from groundplane.node.watch import Change, Changes, Kind

HOWS = pytest.mark.parametrize("polling", [False, True], ids=["inotify", "polling"])


async def seen(changes: Changes, path: Path, *kinds: Kind) -> list[Change]:
    """Read until a path is reported as one of the kinds; all that was read."""
    read: list[Change] = []
    async with asyncio.timeout(20):
        async for change in changes:
            read.append(change)
            if change.path == path and change.kind in kinds:
                return read
    raise AssertionError(read)


def held() -> int:
    """How many inotify instances this process has."""
    links = (str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if os.path.lexists(link))
    return sum(link == "anon_inode:inotify" for link in links)


@HOWS
class TestEntries:
    async def test_each_kind(self, tmp_path: Path, polling: bool) -> None:
        async with watch.paths(tmp_path, polling=polling) as changes:
            assert changes.polled is polling
            file = tmp_path / "file"
            file.write_text("1")
            await seen(changes, file, Kind.CREATED)
            file.write_text("longer")
            await seen(changes, file, Kind.MODIFIED)
            other = tmp_path / "other"
            other.write_text("another")
            await seen(changes, other, Kind.CREATED)
            other.replace(file)
            await seen(changes, file, Kind.MOVED)
            file.unlink()
            await seen(changes, file, Kind.DELETED)

    async def test_a_socket_that_is_bound_anew(self, tmp_path: Path, polling: bool) -> None:
        path = tmp_path / "s"
        with socket.socket(socket.AF_UNIX) as first:
            first.bind(str(path))
            async with watch.paths(tmp_path, polling=polling) as changes:
                path.unlink()
                with socket.socket(socket.AF_UNIX) as second:
                    second.bind(str(path))
                    await seen(changes, path, Kind.CREATED)

    async def test_a_folder_that_is_deleted_and_made_again(self, tmp_path: Path, polling: bool) -> None:
        folder = tmp_path / "kubelet" / "device-plugins"
        folder.mkdir(parents=True)
        async with watch.paths(folder, polling=polling) as changes:
            folder.rmdir()
            await seen(changes, folder, Kind.DELETED)
            folder.parent.rmdir()
            folder.mkdir(parents=True)
            await seen(changes, folder, Kind.CREATED)
            (folder / "kubelet.sock").touch()
            await seen(changes, folder / "kubelet.sock", Kind.CREATED)

    async def test_a_folder_made_again_with_entries_before_anybody_looks(self, tmp_path: Path, polling: bool) -> None:
        folder = tmp_path / "a"
        folder.mkdir()
        (folder / "old").touch()
        async with watch.paths(folder, polling=polling) as changes:
            (folder / "old").unlink()
            folder.rmdir()
            folder.mkdir()
            (folder / "new").touch()
            await seen(changes, folder / "new", Kind.CREATED)
            (folder / "newer").touch()
            await seen(changes, folder / "newer", Kind.CREATED)

    async def test_a_path_that_comes_later(self, tmp_path: Path, polling: bool) -> None:
        folder = tmp_path / "a" / "b" / "c"
        async with watch.paths(folder, polling=polling) as changes:
            (tmp_path / "a").mkdir()
            await asyncio.sleep(0)
            folder.mkdir(parents=True)
            (folder / "x").touch()
            read = await seen(changes, folder / "x", Kind.CREATED)
            assert Change(folder, Kind.CREATED) in [*read, *changes.drain()]

    async def test_a_folder_on_the_way_is_renamed(self, tmp_path: Path, polling: bool) -> None:
        folder = tmp_path / "a" / "b" / "c"
        folder.mkdir(parents=True)
        async with watch.paths(folder, polling=polling) as changes:
            (tmp_path / "a").rename(tmp_path / "z")
            await seen(changes, folder, Kind.DELETED)
            (tmp_path / "z").rename(tmp_path / "a")
            await seen(changes, folder, Kind.CREATED)
            (folder / "x").touch()
            await seen(changes, folder / "x", Kind.CREATED)

    async def test_nothing_happens(self, tmp_path: Path, polling: bool) -> None:
        async with watch.paths(tmp_path, polling=polling) as changes:
            assert await changes.next(0.05) is None
            assert await changes.next(0) is None

    async def test_cancelling_loses_nothing(self, tmp_path: Path, polling: bool) -> None:
        async with watch.paths(tmp_path, polling=polling) as changes:
            waiting = asyncio.ensure_future(changes.next())
            await asyncio.sleep(0.01)
            waiting.cancel()
            (tmp_path / "x").touch()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
            await seen(changes, tmp_path / "x", Kind.CREATED)


def publish(volume: Path, version: str, text: str) -> None:
    """Change a ConfigMap volume as a kubelet does: a new folder, and the link to it replaced in one step."""
    folder = volume / f"..{version}"
    folder.mkdir()
    (folder / "config.yaml").write_text(text)
    (volume / "..data_tmp").symlink_to(folder.name)
    old = volume / "..data"
    before = volume / old.readlink() if old.is_symlink() else None
    (volume / "..data_tmp").replace(old)
    if not (volume / "config.yaml").is_symlink():
        (volume / "config.yaml").symlink_to("..data/config.yaml")
    if before is not None:
        (before / "config.yaml").unlink()
        before.rmdir()


@HOWS
class TestLinks:
    async def test_a_file_of_a_configmap_volume(self, tmp_path: Path, polling: bool) -> None:
        publish(tmp_path, "1", "a")
        file = tmp_path / "config.yaml"
        async with watch.paths(file, polling=polling) as changes:
            for version in "23":
                publish(tmp_path, version, f"text {version}" * int(version))
                await seen(changes, file, Kind.MODIFIED, Kind.MOVED)
                assert file.read_text().startswith(f"text {version}")

    async def test_the_folder_of_a_configmap_volume(self, tmp_path: Path, polling: bool) -> None:
        publish(tmp_path, "1", "a")
        async with watch.paths(tmp_path, polling=polling) as changes:
            publish(tmp_path, "2", "b")
            await seen(changes, tmp_path / "..data", Kind.MOVED, Kind.CREATED)

    async def test_a_link_to_a_folder_is_turned_elsewhere(self, tmp_path: Path, polling: bool) -> None:
        for name in "ab":
            (tmp_path / name).mkdir()
        (tmp_path / "b" / "x").touch()
        link = tmp_path / "link"
        link.symlink_to(tmp_path / "a")
        async with watch.paths(link, polling=polling) as changes:
            (tmp_path / "new").symlink_to("b")
            (tmp_path / "new").replace(link)
            await seen(changes, link / "x", Kind.CREATED)
            (tmp_path / "b" / "y").touch()
            await seen(changes, link / "y", Kind.CREATED)

    async def test_a_dangling_link_gets_its_target(self, tmp_path: Path, polling: bool) -> None:
        (tmp_path / "link").symlink_to("far/away")
        async with watch.paths(tmp_path / "link", polling=polling) as changes:
            (tmp_path / "far").mkdir()
            (tmp_path / "far" / "away").touch()
            await seen(changes, tmp_path / "link", Kind.CREATED)

    async def test_a_link_to_itself_is_nothing(self, tmp_path: Path, polling: bool) -> None:
        (tmp_path / "link").symlink_to("link")
        async with watch.paths(tmp_path / "link", polling=polling) as changes:
            (tmp_path / "link").unlink()
            (tmp_path / "link").touch()
            await seen(changes, tmp_path / "link", Kind.CREATED)

    async def test_a_link_that_leads_up(self, tmp_path: Path, polling: bool) -> None:
        (tmp_path / "a").mkdir()
        link = tmp_path / "a" / "link"
        link.symlink_to("..")
        async with watch.paths(link, polling=polling) as changes:
            (tmp_path / "x").touch()
            await seen(changes, link / "x", Kind.CREATED)

    async def test_a_folder_that_is_a_file(self, tmp_path: Path, polling: bool) -> None:
        (tmp_path / "a").touch()
        async with watch.paths(tmp_path / "a" / "b", polling=polling) as changes:
            (tmp_path / "a").unlink()
            (tmp_path / "a" / "b").mkdir(parents=True)
            await seen(changes, tmp_path / "a" / "b", Kind.CREATED)


async def test_the_root() -> None:
    async with watch.paths(Path("/")) as changes:
        assert not changes.polled


class TestOneInstance:
    async def test_many_watchers_share_one_and_the_last_ends_it(self, tmp_path: Path) -> None:
        before = held()
        folders = [tmp_path / str(number) for number in range(300)]
        async with contextlib.AsyncExitStack() as stack:
            watchers = [await stack.enter_async_context(watch.paths(folder)) for folder in folders]
            assert held() == before + 1
            assert not any(each.polled for each in watchers)
            for folder in folders:
                folder.mkdir()
                (folder / "x").touch()
            for folder, changes in zip(folders, watchers, strict=True):
                read = await seen(changes, folder / "x", Kind.CREATED)
                assert all(change.path.is_relative_to(folder) for change in read)
        assert held() == before

    async def test_two_readers_of_one_folder(self, tmp_path: Path) -> None:
        async with watch.paths(tmp_path) as one:
            async with watch.paths(tmp_path, tmp_path / "x") as two:
                (tmp_path / "x").touch()
                await seen(two, tmp_path / "x", Kind.CREATED)
            two.drain()
            (tmp_path / "y").touch()
            await seen(one, tmp_path / "y", Kind.CREATED)
            assert two.drain() == []

    async def test_an_ended_watch_hears_nothing_more(self, tmp_path: Path) -> None:
        async with watch.paths(tmp_path) as one, watch.paths(tmp_path) as two:
            one.close()
            (tmp_path / "x").touch()
            await seen(two, tmp_path / "x", Kind.CREATED)
            assert one.drain() == []


class TestOverflow:
    async def test_a_reader_that_never_comes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch, "MAX_PENDING", 10)
        async with watch.paths(tmp_path, tmp_path / "other") as changes, watch.paths(tmp_path) as reader:
            for number in range(12):
                (tmp_path / str(number)).touch()
            await seen(reader, tmp_path, Kind.OVERFLOW)
            assert Change(tmp_path, Kind.OVERFLOW) in changes.drain()

    async def test_the_kernel_lost_events(self, tmp_path: Path) -> None:
        limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        if limit > 100_000:
            pytest.skip(f"the kernel keeps {limit} events")
        folder = tmp_path / "f"
        folder.mkdir()
        async with watch.paths(folder) as changes:
            for _ in range(limit // 4 + 1):
                for name in "ab":  # alternating names, as equal events in a row are one
                    file = folder / name
                    file.touch()
                    file.unlink()
            await seen(changes, folder, Kind.OVERFLOW)
            (folder / "later").touch()
            await seen(changes, folder / "later", Kind.CREATED)


class TestWithoutInotify:
    @pytest.fixture
    async def told(self, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Callable[[], list[str]]]:
        yield lambda: [record.getMessage() for record in caplog.records if "polled" in record.getMessage()]

    async def test_no_instance_left(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[str]]
    ) -> None:
        def none() -> None:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(watch, "_open", none)
        async with watch.paths(tmp_path) as one, watch.paths(tmp_path) as two:
            assert one.polled and two.polled
            (tmp_path / "x").touch()
            await seen(one, tmp_path / "x", Kind.CREATED)
            await seen(two, tmp_path / "x", Kind.CREATED)
        assert len(told()) == 1 and "Too many open files" in told()[0]

    async def test_no_watch_left_later_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / "a"
        async with watch.paths(folder) as changes:
            assert not changes.polled

            def full(*_: object) -> int:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(watch._Hub, "add", full)
            folder.mkdir()
            await seen(changes, folder, Kind.OVERFLOW)
            assert changes.polled
            (folder / "x").touch()
            await seen(changes, folder / "x", Kind.CREATED)

    async def test_no_library(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "asyncinotify", None)
        async with watch.paths(tmp_path) as changes:
            assert changes.polled

    async def test_no_watch_left_when_events_were_lost(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async with watch.paths(tmp_path) as changes:

            def gone(*_: object) -> int:
                raise FileNotFoundError(2, "No such file or directory")

            monkeypatch.setattr(watch._Hub, "add", gone)  # as if folders were replaced for ever
            assert changes._trails is not None
            changes._trails.lost()
            assert changes.polled
            assert changes.drain() == [Change(tmp_path, Kind.OVERFLOW)]

    async def test_another_system(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        async with watch.paths(tmp_path) as changes:
            assert changes.polled

    def test_the_module_loads_inotify_only_when_asked(self) -> None:
        code = "import sys, groundplane.node.watch; sys.exit('asyncinotify' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
