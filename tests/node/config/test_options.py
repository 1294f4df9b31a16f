"""Options: precedence, syntax and types (contract 1.1, 1.6)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node.fakeprocess import FakeProcess

from groundplane.api.release import Release
from groundplane.node import options
from groundplane.node.options import Asked, Command, Duration, Option, OptionError, Values

FIRST = Option(name="text", flags=("text", "alias", "t"), env=("TEXT_A", "TEXT_B"), key="flags.text", default="none")
COMMAND = Command(
    name="tool",
    about="Does things.",
    options=(
        FIRST,
        Option(name="flag", type=options.BOOL, flags=("flag",), env=("FLAG",), key="flags.deep.flag", default=True),
        Option(name="count", type=options.INT, flags=("count",), env=("COUNT",), key="flags.count", default=1),
        Option(name="rate", type=options.NUMBER, flags=("rate",), env=("RATE",), key="flags.rate", default=0.5),
        Option(name="names", type=options.STRINGS, flags=("names",), env=("NAMES",), key="names", default=()),
        Option(name="words", type=options.WORDS, flags=("words",), env=("WORDS",), key="words", default=("w",)),
        Option(name="ids", type=options.INTS, flags=("ids",), env=("IDS",), key="ids", default=()),
        Option(
            name="wait", type=options.DURATION, flags=("wait",), env=("WAIT",), key="wait", default=Duration(60 * 10**9)
        ),
        Option(name="new", flags=("new",), env=("NEW",), key="new", since=Release.V26_7, default="old"),
    ),
    words={"work": "do the work"},
)

Reads = Callable[..., Values]


@pytest.fixture
def read(tmp_path: Path) -> Reads:
    def read(
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        file: Mapping[str, Any] | None = None,
        release: Release = Release.V26_7,
    ) -> Values:
        process = FakeProcess(tmp_path, ("tool", *arguments), env, release=release)
        return options.read(COMMAND, process).over(file or {}, "the file")

    return read


class TestPrecedence:
    @pytest.mark.parametrize("flag", [None, "flag"])
    @pytest.mark.parametrize("env", [None, "", "env"])
    @pytest.mark.parametrize("file", [None, "", "file"])
    def test_flag_then_environment_then_file_then_default(
        self, read: Reads, flag: str | None, env: str | None, file: str | None
    ) -> None:
        """1.1: decided per option; an environment variable without content is there, too."""
        values = read(
            [] if flag is None else [f"--text={flag}"],
            {} if env is None else {"TEXT_A": env},
            {} if file is None else {"flags": {"text": file}},
        )
        assert values["text"] == next(each for each in (flag, env, file, "none") if each is not None)

    @pytest.mark.parametrize(
        ("name", "variable", "document", "expected"),
        [
            ("text", "TEXT_A", {"flags": {"text": "x"}}, ""),
            ("flag", "FLAG", {"flags": {"deep": {"flag": True}}}, False),
            ("ids", "IDS", {"ids": [0]}, ()),
            ("names", "NAMES", {"names": ["x"]}, ()),
            ("words", "WORDS", {"words": ["x"]}, ("",)),
        ],
    )
    def test_an_empty_variable_beats_the_file(
        self, read: Reads, name: str, variable: str, document: dict[str, Any], expected: Any
    ) -> None:
        assert read(env={variable: ""}, file=document)[name] == expected

    @pytest.mark.parametrize(
        ("name", "variable", "document", "expected"),
        [
            ("count", "COUNT", {"flags": {"count": 7}}, 7),
            ("count", "COUNT", {}, 1),
            ("wait", "WAIT", {"wait": "5s"}, Duration(5 * 10**9)),
        ],
    )
    def test_an_empty_variable_is_no_number(
        self, read: Reads, name: str, variable: str, document: dict[str, Any], expected: Any
    ) -> None:
        """Section 7: SIGNAL="" is tolerated."""
        assert read(env={variable: ""}, file=document)[name] == expected

    def test_the_first_variable_that_is_there_counts(self, read: Reads) -> None:
        assert read(env={"TEXT_B": "b"})["text"] == "b"
        assert read(env={"TEXT_A": "a", "TEXT_B": "b"})["text"] == "a"
        assert read(env={"TEXT_A": "", "TEXT_B": "b"})["text"] == ""

    def test_sources_are_told(self, read: Reads) -> None:
        values = read(["--count", "2"], {"TEXT_B": "b"}, {"ids": [1]})
        assert values.sources["count"] == "the command line (--count)"
        assert values.sources["text"] == "environment variable TEXT_B"
        assert values.sources["ids"] == "the file"
        assert values.sources["flag"] == options.DEFAULT
        assert str(values.mistake("text", "bad b")) == "bad b (--text, from environment variable TEXT_B)"

    def test_null_and_unknown_keys_set_nothing(self, read: Reads) -> None:
        values = read(file={"flags": {"text": None, "unknown": 1, "deep": None}, "other": {}})
        assert values["text"] == "none" and values["flag"] is True

    def test_keys_of_any_case_are_found_as_in_go(self, read: Reads) -> None:
        assert read(file={"Flags": {"TEXT": "x"}})["text"] == "x"
        assert read(file={"flags": {"TEXT": "x", "text": "y"}})["text"] == "y"

    def test_an_option_that_the_release_does_not_have(self, read: Reads) -> None:
        assert read(env={"NEW": "x"}, file={"new": "y"})["new"] == "x"
        old = read(env={"NEW": "x"}, file={"new": 5}, release=Release.V26_3)
        assert "new" not in old.found
        with pytest.raises(OptionError, match="flag provided but not defined: --new"):
            read(["--new=1"], release=Release.V26_3)


class TestSyntax:
    @pytest.mark.parametrize(
        ("arguments", "name", "expected"),
        [
            (["--text=a"], "text", "a"),
            (["--text", "a"], "text", "a"),
            (["-text", "a"], "text", "a"),
            (["-t", "a"], "text", "a"),
            (["-t=a"], "text", "a"),
            (["--alias=a"], "text", "a"),
            (["--text=a=b"], "text", "a=b"),
            (["--text="], "text", ""),
            (["--text", "--flag"], "text", "--flag"),
            (["--text=a", "--text=b"], "text", "b"),
            (["--flag"], "flag", True),
            (["--flag=false"], "flag", False),
            (["--flag=F"], "flag", False),
            (["--ids=1,2", "--ids", "3"], "ids", (1, 2, 3)),
            (["--names=a, b,", "--names=c"], "names", ("a", "b", "c")),
            (["--words=a, b"], "words", ("a", "b")),
            (["--words=a,"], "words", ("a", "")),
            (["--count=-3"], "count", -3),
            (["--rate", "2.5"], "rate", 2.5),
            (["--wait=1m30s"], "wait", Duration(90 * 10**9)),
        ],
    )
    def test_good(self, read: Reads, arguments: list[str], name: str, expected: Any) -> None:
        assert read(arguments)[name] == expected

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["--nothing"], "flag provided but not defined: --nothing; see tool --help"),
            (["-x=1"], "flag provided but not defined: -x; see tool --help"),
            (["--text"], "flag needs an argument: --text"),
            (["--flag", "false"], 'unexpected argument "false"'),
            (["--"], 'unexpected argument "--"'),
            (["work", "work"], 'unexpected argument "work"; it takes work'),
            (["--flag=yes"], 'invalid value "yes" for --flag from the command line (--flag): expected true or false'),
            (["--flag="], 'invalid value "" for --flag'),
            (
                ["--count=1.5"],
                'invalid value "1.5" for --count from the command line (--count): expected a whole number',
            ),
            (["--rate=fast"], "expected a number"),
            (["--ids=1,x"], 'invalid value "1,x" for --ids'),
            (["--wait=60"], "a number needs its unit"),
        ],
    )
    def test_bad(self, read: Reads, arguments: list[str], text: str) -> None:
        with pytest.raises(OptionError) as caught:
            read(arguments)
        assert text in str(caught.value)

    def test_a_subcommand(self, read: Reads) -> None:
        assert read().word == ""
        values = read(["--count=2", "work", "--text=a"])
        assert values.word == "work" and values["count"] == 2 and values["text"] == "a"

    @pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
    def test_true(self, read: Reads, text: str) -> None:
        assert read(env={"FLAG": text})["flag"] is True
        assert read([f"--flag={text}"])["flag"] is True

    @pytest.mark.parametrize("text", ["0", "f", "F", "FALSE", "false", "False"])
    def test_false(self, read: Reads, text: str) -> None:
        assert read(env={"FLAG": text})["flag"] is False
        assert read([f"--flag={text}"])["flag"] is False

    @pytest.mark.parametrize("text", ["yes", "no", "on", "tRUE", " true", "2"])
    def test_no_boolean(self, read: Reads, text: str) -> None:
        with pytest.raises(OptionError, match="from environment variable FLAG"):
            read(env={"FLAG": text})

    @pytest.mark.parametrize(
        ("document", "text"),
        [
            ({"flags": {"text": 1}}, "the file: flags.text: expected a string, found a number"),
            (
                {"flags": {"deep": {"flag": "true"}}},
                "the file: flags.deep.flag: expected true or false, found a string",
            ),
            ({"flags": {"count": True}}, "the file: flags.count: expected a whole number, found a boolean"),
            ({"flags": {"count": 1.5}}, "the file: flags.count: expected a whole number, found a number"),
            ({"names": "a"}, "the file: names: expected a list of strings, found a string"),
            ({"names": [1]}, "the file: names: expected a string, found a number"),
            ({"words": {}}, "the file: words: expected a string or a list of strings, found a mapping"),
            ({"ids": ["0"]}, "the file: ids: expected a whole number, found a string"),
            ({"wait": "60"}, "the file: wait: expected a duration"),
            ({"wait": []}, "the file: wait: expected a duration such as 30s, or nanoseconds, found a list"),
        ],
    )
    def test_wrong_types_in_the_file(self, read: Reads, document: dict[str, Any], text: str) -> None:
        with pytest.raises(OptionError) as caught:
            read(file=document)
        assert str(caught.value).startswith(text)
        with pytest.raises(OptionError):  # also where another source would win
            read(["--text=a", "--flag", "--count=1", "--names=a", "--words=a", "--ids=1", "--wait=1s"], file=document)

    def test_one_string_in_the_file_is_one_word(self, read: Reads) -> None:
        """1.2: a string with a comma is one strategy."""
        assert read(file={"words": "a,b"})["words"] == ("a,b",)
        assert read(file={"words": ["a", "b"]})["words"] == ("a", "b")


class TestAsked:
    @pytest.mark.parametrize("flag", ["--help", "-h", "-help"])
    async def test_help(self, tmp_path: Path, flag: str) -> None:
        process = FakeProcess(tmp_path, ("tool", flag))
        with pytest.raises(Asked) as caught:
            options.read(COMMAND, process)
        assert caught.value.tell(process) == 0
        for option in COMMAND.options:
            for name in option.flags:
                assert f"-{name}" in process.stdout
            for variable in option.env:
                assert f"${variable}" in process.stdout
        assert "default 1m0s" in process.stdout
        assert "work\n        do the work" in process.stdout
        assert process.stderr == ""

    @pytest.mark.parametrize("flag", ["--version", "-v"])
    def test_version(self, tmp_path: Path, flag: str) -> None:
        process = FakeProcess(tmp_path, ("tool", flag), release=Release.V26_3)
        with pytest.raises(Asked) as caught:
            options.read(COMMAND, process)
        assert caught.value.tell(process) == 0
        assert process.stdout.startswith("tool version ") and "26.3.3" in process.stdout

    def test_help_has_only_what_the_release_has(self, tmp_path: Path) -> None:
        with pytest.raises(Asked) as caught:
            options.read(COMMAND, FakeProcess(tmp_path, ("tool", "-h"), release=Release.V26_3))
        assert "--new" not in str(caught.value)

    def test_errors_are_logged_and_end_with_1(self, tmp_path: Path) -> None:
        process = FakeProcess(tmp_path, ("tool", "--nothing"))
        with pytest.raises(OptionError) as caught:
            options.read(COMMAND, process)
        assert caught.value.tell(process) == 1
        assert "--nothing" in process.stderr and process.stdout == ""


class TestDurations:
    """1.6: Go syntax or infinite; printed back in Go form."""

    @pytest.mark.parametrize(
        ("text", "ns", "shown"),
        [
            ("60s", 60 * 10**9, "1m0s"),
            ("30s", 30 * 10**9, "30s"),
            ("1m30s", 90 * 10**9, "1m30s"),
            ("1h", 3600 * 10**9, "1h0m0s"),
            ("1.5h", 5400 * 10**9, "1h30m0s"),
            ("100ms", 10**8, "100ms"),
            ("1.5s", 15 * 10**8, "1.5s"),
            ("5ns", 5, "5ns"),
            ("1us", 1000, "1µs"),
            ("1µs", 1000, "1µs"),
            ("1μs", 1000, "1µs"),
            ("1500us", 1_500_000, "1.5ms"),
            ("999ns", 999, "999ns"),
            (".5s", 5 * 10**8, "500ms"),
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("-1m", -60 * 10**9, "-1m0s"),
            ("+2s", 2 * 10**9, "2s"),
            ("1m0.000000001s", 60_000_000_001, "1m0.000000001s"),
            ("infinite", None, "infinite"),
        ],
    )
    def test_texts(self, text: str, ns: int | None, shown: str) -> None:
        duration = Duration.parse(text)
        assert duration.ns == ns
        assert str(duration) == shown

    @pytest.mark.parametrize("text", ["60", "", "s", "1 s", "1d", "-", "1s2", "infinity", "1e3s", "1..5s", "3000000h"])
    def test_no_durations(self, text: str) -> None:
        with pytest.raises(ValueError, match="duration"):
            Duration.parse(text)

    @pytest.mark.parametrize(
        ("value", "ns"), [(5, 5), (60_000_000_000, 60 * 10**9), (1.9, 1), ("60s", 60 * 10**9), ("infinite", None)]
    )
    def test_in_a_document_a_number_is_nanoseconds(self, value: Any, ns: int | None) -> None:
        assert Duration.decode(value).ns == ns

    def test_seconds(self) -> None:
        assert Duration(1_500_000_000).seconds == 1.5
        assert Duration(None).seconds == float("inf")

    @given(st.integers(-(2**63) + 1, 2**63 - 1))
    def test_what_is_printed_is_read_back(self, ns: int) -> None:
        assert Duration.parse(str(Duration(ns))) == Duration(ns)


_SOURCES = st.one_of(st.none(), st.sampled_from(["", "a", "b c", "=", "--text", "x,y"]))


@given(flag=_SOURCES, first=_SOURCES, second=_SOURCES, file=_SOURCES)
def test_precedence_holds_for_any_sources(
    tmp_path_factory: pytest.TempPathFactory, flag: str | None, first: str | None, second: str | None, file: str | None
) -> None:
    env = {name: text for name, text in (("TEXT_A", first), ("TEXT_B", second)) if text is not None}
    arguments = [] if flag is None else ["--text", flag]
    process = FakeProcess(tmp_path_factory.getbasetemp() / "precedence", ("tool", *arguments), env)
    document = {} if file is None else {"flags": {"text": file}}
    values = options.read(COMMAND, process).over(document, "the file")
    expected = [each for each in (flag, first, second, file) if each is not None]
    assert values["text"] == (expected[0] if expected else "none")
