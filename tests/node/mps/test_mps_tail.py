"""Following a log file."""

from pathlib import Path

from node.fakeprocess import FakeProcess

from groundplane.node.mps.tail import Tail


def test_a_log_is_printed_once_as_it_grows_and_anew_when_it_is_replaced(tmp_path: Path) -> None:
    process, log = FakeProcess(tmp_path), tmp_path / "control.log"
    tail = Tail(process, log)
    tail.catch_up()
    assert process.stdout == ""
    log.write_text("one\n")
    tail.catch_up()
    tail.catch_up()
    with log.open("a") as file:
        file.write("two")
    tail.catch_up()
    assert process.stdout == "one\ntwo"
    log.write_text("3\n")
    tail.catch_up()
    (tmp_path / "new").write_text("another file, longer than before\n")
    (tmp_path / "new").rename(log)
    tail.catch_up()
    assert process.stdout == "one\ntwo3\nanother file, longer than before\n"


def test_a_character_that_is_written_in_two_parts_is_printed_whole(tmp_path: Path) -> None:
    process, log = FakeProcess(tmp_path), tmp_path / "control.log"
    tail = Tail(process, log)
    log.write_bytes("é".encode()[:1])
    tail.catch_up()
    assert process.stdout == ""
    log.write_bytes("é\n".encode() + b"\xff\n")
    tail.catch_up()
    assert process.stdout == "é\n\ufffd\n"


def test_a_log_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path)
    Tail(process, tmp_path).catch_up()
    assert "Is a directory" in process.stderr
