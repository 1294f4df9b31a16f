"""Which configuration a node uses (contract 7: selection)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.node.configmanager.main import find
from groundplane.node.configmanager.selection import SelectionError, choose
from groundplane.node.process import Listed


@pytest.mark.parametrize(
    ("available", "label", "default", "fallbacks", "chosen"),
    [
        ("a b", "a", "", "", "a"),
        ("a b", "a", "b", "named,single,empty", "a"),
        ("a b", "", "b", "named,single,empty", "b"),
        ("a default", "", "", "named", "default"),
        ("a default", "", "", "empty,named", None),
        ("a default", "", "", "named,empty", "default"),
        ("a", "", "", "single", "a"),
        ("a b", "", "", "single,empty", None),
        ("a b", "", "", "named,single,empty", None),
        ("a", "", "", "named,single", "a"),
        ("default", "", "", "single", "default"),
        ("a b", "", "", "empty", None),
        ("a", "a", "", "nonsense", "a"),
        ("a", "", "", "single,nonsense", "a"),
    ],
)
def test_chosen(available: str, label: str, default: str, fallbacks: str, chosen: str | None) -> None:
    assert choose(available.split(), label, default, fallbacks.split(",") if fallbacks else (), "/src") == chosen


@pytest.mark.parametrize(
    ("available", "label", "default", "fallbacks", "text"),
    [
        ("", "", "", "empty", "no configuration is available: /src has no file"),
        ("", "a", "a", "", "no configuration is available: /src has no file"),
        (
            "b a",
            "c",
            "a",
            "empty",
            'config "c", named by the node\'s label, does not exist; available configs in /src: a, b',
        ),
        (
            "b a",
            "",
            "c",
            "empty",
            'config "c", named by the default config, does not exist; available configs in /src: a, b',
        ),
        ("b a", "", "", "", "there is no fallback strategy; available configs in /src: a, b"),
        ("b a", "", "", "named,single", "no fallback strategy fits (named, single); available configs in /src: a, b"),
        ("a", "", "", "nonsense,single", 'unknown fallback strategy "nonsense"; expected named, single or empty'),
        ("a b", "", "", "named,Empty", 'unknown fallback strategy "Empty"'),
    ],
)
def test_refused(available: str, label: str, default: str, fallbacks: str, text: str) -> None:
    with pytest.raises(SelectionError) as caught:
        choose(available.split(), label, default, fallbacks.split(",") if fallbacks else (), "/src")
    assert text in str(caught.value)


_NAMES = st.sampled_from(["a", "b", "default"])


@given(
    available=st.sets(_NAMES),
    label=st.just("") | _NAMES,
    default=st.just("") | _NAMES,
    fallbacks=st.lists(st.sampled_from(["named", "single", "empty"]), max_size=3),
)
def test_what_is_chosen_is_there_and_is_what_was_asked_for(
    available: set[str], label: str, default: str, fallbacks: list[str]
) -> None:
    try:
        chosen = choose(available, label, default, fallbacks, "/src")
    except SelectionError:
        assert not available or (label or default) not in ("", *available) or "empty" not in fallbacks
        return
    assert chosen is None or chosen in available
    if label or default:
        assert chosen == (label or default)


PROGRAM = "nvidia-device-plugin"


@pytest.mark.parametrize(
    ("name", "lines", "pid"),
    [
        (PROGRAM, [["/pause"], ["nvidia-device-plugin", "--x"], ["nvidia-device-plugin"]], 2),
        (PROGRAM, [["/pause"], ["/usr/bin/nvidia-device-plugin"]], 2),
        (PROGRAM, [["/usr/bin/nvidia-device-plugin"], ["nvidia-device-plugin"]], 2),
        (PROGRAM, [["sh", "nvidia-device-plugin"], [], ["nvidia-device-plugin-2"]], None),
        (PROGRAM, [[], [], ["nvidia-device-plugin"]], 3),
        (PROGRAM, [[""], ["config-manager", PROGRAM]], None),
        ("/usr/bin/mps-control-daemon", [["mps-control-daemon"]], 1),
        ("/usr/bin/mps-control-daemon", [["/opt/mps-control-daemon"], ["/usr/bin/mps-control-daemon"]], 2),
        (PROGRAM, [], None),
    ],
)
def test_the_process_to_signal(name: str, lines: list[list[str]], pid: int | None) -> None:
    """7.6: by argv[0], exactly first, else by its base name; no command line is no match."""
    found = find([Listed(number, tuple(argv)) for number, argv in enumerate(lines, 1)], name)
    assert (found.pid if found else None) == pid
