"""The layout file (contracts/mig-exporter-validator.md 1.1 to 1.5)."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.node.devices import profiles
from groundplane.node.devices.mig import MigGpu
from groundplane.node.devices.model import Profile
from groundplane.node.mig import layout
from groundplane.node.mig.errors import LayoutError
from groundplane.node.mig.layout import Entry, Filter


def gpu(index: int = 0, pci_id: int = 0x20B010DE, subsystem_id: int = 0) -> MigGpu:
    return MigGpu(
        index=index,
        uuid=f"GPU-{index}",
        bus_id=f"00000000:{index:02X}:00.0",
        name="NVIDIA GPU",
        memory_bytes=40 << 30,
        pci_id=pci_id,
        subsystem_id=subsystem_id,
    )


def named(text: str, config: str = "a") -> layout.Layout:
    return layout.parse(text, "file.yaml")[config]


def entry(text: str) -> Entry:
    (found,) = named(f"version: v1\nmig-configs:\n  a:\n  - {text}\n")
    return found


# --- 1.1 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n", "{}", "version: v1\n", '{"version": "v1"}'])
def test_1_1_documents_without_configs(text: str) -> None:
    assert layout.parse(text, "file.yaml") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mig-configs: {a: [{devices: all, mig-enabled: false}]}", "file.yaml: version: missing"),
        ("version: v2", "version: 'v2'; the only version is"),
        ("version: 1", "version: 1; the only version is"),
        ("version: v1\nconfigs: {}", "configs: not known; known are version, mig-configs"),
        ("version: v1\nmig-configs: {}", "mig-configs: expected at least one name"),
        ("version: v1\nmig-configs:", "mig-configs: expected at least one name"),
        ("version: v1\nmig-configs: []", "mig-configs: expected at least one name with its entries, found a list"),
        ("version: v1\nmig-configs: {a: []}", "mig-configs.a: expected a list of at least one entry, found none"),
        ("version: v1\nmig-configs: {a: }", "mig-configs.a: expected a list of at least one entry, found none"),
        ("version: v1\nmig-configs: {a: {devices: all}}", "mig-configs.a: expected a list of at least one entry"),
        ("version: v1\nmig-configs: {a: [all]}", "mig-configs.a[0]: expected a mapping"),
        ("[]", "expected a mapping with version and mig-configs, found a list"),
        ("version: [", "file.yaml is not valid YAML"),
        (
            "version: v1\nmig-configs:\n  a: [{devices: all, mig-enabled: false}]\n"
            "  a: [{devices: all, mig-enabled: true, mig-devices: {}}]\n",
            "mig-configs.a: there twice",
        ),
        (
            "version: v1\nmig-configs:\n  a: [{devices: all, devices: [1], mig-enabled: false}]\n",
            "mig-configs.a[0].devices: there twice",
        ),
    ],
)
def test_1_1_bad_documents(text: str, words: str) -> None:
    with pytest.raises(LayoutError) as raised:
        layout.parse(text, "file.yaml")
    assert words in str(raised.value)


def test_all_problems_are_told_at_once() -> None:
    text = """
version: v3
other: 1
mig-configs:
  a:
  - {devices: [GPU-1], mig-enabled: "true"}
  - {devices: all, mig-enabled: true, mig-devices: {3g: 1}}
"""
    with pytest.raises(LayoutError) as raised:
        layout.parse(text, "file.yaml")
    lines = str(raised.value).splitlines()
    assert len(lines) == 5
    assert all(line.startswith("file.yaml: ") for line in lines)


# --- 1.2 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{devices: all, mig-enabled: false}", Entry(devices=None, enabled=False)),
        ("{devices: [0, 2, 99], mig-enabled: false, mig-devices: {}}", Entry(devices=(0, 2, 99), enabled=False)),
        ("{devices: [], mig-enabled: no, mig-devices: }", Entry(devices=(), enabled=False)),
        ("{devices: all, mig-enabled: true, mig-devices: {}}", Entry(devices=None, enabled=True)),
        (
            "{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 2, 1c.3g.20gb: 3}}",
            Entry(devices=None, enabled=True, instances={Profile(1, 1, 5): 2, Profile(1, 3, 20): 3}),
        ),
        (
            "{devices: all, mig-enabled: true, mig-devices: {1c.1g.5gb: 1, 1g.5gb: 2, 2g.10gb: 0}}",
            Entry(devices=None, enabled=True, instances={Profile(1, 1, 5): 3}),
        ),
        (
            "{devices: all, mig-enabled: true, mig-devices: {0g.0gb: 1}}",
            Entry(devices=None, enabled=True, instances={Profile(0, 0, 0): 1}),
        ),
        (
            '{devices: all, device-filter: "0x20B010DE", mig-enabled: false}',
            Entry(devices=None, filters=("0x20B010DE",), enabled=False),
        ),
        (
            '{devices: all, device-filter: ["0x20B010DE", "junk"], mig-enabled: false}',
            Entry(devices=None, filters=("0x20B010DE", "junk"), enabled=False),
        ),
        ('{devices: all, device-filter: "", mig-enabled: false}', Entry(devices=None, enabled=False)),
        ("{devices: all, device-filter: [], mig-enabled: false}", Entry(devices=None, enabled=False)),
    ],
)
def test_1_2_entries(text: str, expected: Entry) -> None:
    found = entry(text)
    assert found.where == "mig-configs.a[0]"
    assert (found.devices, found.filters, found.enabled, dict(found.instances)) == (
        expected.devices,
        expected.filters,
        expected.enabled,
        dict(expected.instances),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{mig-enabled: false}", "devices: missing"),
        ("{devices: all}", "mig-enabled: missing"),
        ("{devices: ALL, mig-enabled: false}", "devices: found 'ALL'; expected all, or a list of GPU indices"),
        ('{devices: "0", mig-enabled: false}', "devices: found '0'"),
        ('{devices: ["GPU-1"], mig-enabled: false}', "UUIDs and PCI addresses are not accepted"),
        ("{devices: {a: 1}, mig-enabled: false}", "devices: found {'a': 1}"),
        ("{devices: [1.5], mig-enabled: false}", "devices: found 1.5"),
        ("{devices: [true], mig-enabled: false}", "devices: found True"),
        ("{devices: 0, mig-enabled: false}", "devices: found 0"),
        ('{devices: all, mig-enabled: "true", mig-devices: {}}', "mig-enabled: found 'true'; expected true or false"),
        ("{devices: all, mig-enabled: 1}", "mig-enabled: found 1"),
        ("{devices: all, mig-enabled: true}", "mig-devices: missing, though mig-enabled is true"),
        ("{devices: all, mig-enabled: true, mig-devices: }", "mig-devices: missing, though mig-enabled is true"),
        ("{devices: all, mig-enabled: }", "mig-enabled: found None; expected true or false"),
        ("{devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}}", "mig-enabled is false; leave mig-devices out"),
        ("{devices: all, mig-enabled: true, mig-devices: [1g.5gb]}", "mig-devices: found a list"),
        ("{devices: all, mig-enabled: true, mig-devices: {bogus: 1}}", "'bogus' is no MIG profile"),
        ("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: -1}}", "1g.5gb: found -1; expected how many"),
        ("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 1.5}}", "1g.5gb: found 1.5"),
        ("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: '1'}}", "1g.5gb: found '1'"),
        ("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: true}}", "1g.5gb: found True"),
        ("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 0}}", "all counts are 0"),
        ("{devices: all, device-filter: 1, mig-enabled: false}", "device-filter: found 1"),
        ("{devices: all, device-filter: [1], mig-enabled: false}", "device-filter: found [1]"),
        ("{devices: all, mig-enabled: false, mig-device: {}}", "mig-device: not known; known are device-filter"),
    ],
)
def test_1_2_bad_entries(text: str, words: str) -> None:
    with pytest.raises(LayoutError) as raised:
        entry(text)
    assert "file.yaml: mig-configs.a[0]." in str(raised.value)
    assert words in str(raised.value)


# --- 1.3 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "pci_id", "subsystem_id", "matches"),
    [
        ("0x20B010DE", 0x20B010DE, 0, True),
        ("0x20b010de", 0x20B010DE, 7, True),
        ("0X20B010DE", 0x20B010DE, 0, True),
        ("548409566", 548409566, 0, True),
        ("0b100000101100000001000011011110", 0x20B010DE, 0, True),
        ("04054010336", 0x20B010DE, 0, True),
        ("0o4054010336", 0x20B010DE, 0, True),
        ("0x20B0_10DE", 0x20B010DE, 0, True),
        ("0x000000000000000000000000000000000000020B010DE", 0x20B010DE, 0, True),
        ("0x20B110DE", 0x20B010DE, 0, False),
        ("0x25B610DE:0x14A910DE", 0x25B610DE, 0x14A910DE, True),
        ("0x25B610DE:0x14A910DE", 0x25B610DE, 0x14AA10DE, False),
        ("0x25B610DE:0x14A910DE", 0x25B710DE, 0x14A910DE, False),
    ],
)
def test_1_3_filters(text: str, pci_id: int, subsystem_id: int, matches: bool) -> None:
    assert Filter.parse(text) is not None
    only = Entry(devices=None, filters=(text,), enabled=False)
    assert only.matches(gpu(pci_id=pci_id, subsystem_id=subsystem_id)) == matches
    assert list(layout.warnings((only,))) == []


@pytest.mark.parametrize(
    "text",
    [
        *(
            "A100",
            "20B010DE",
            "0x",
            "0x20B010DE:",
            ":0x14A910DE",
            "0x1:0x2:0x3",
            "0x120B010DE",
            "-1",
            " 0x20B010DE",
            "0x2G",
        ),
        *("9" * 5000, "0x" + "F" * 5000, "0x20B010DE:" + "9" * 5000),
    ],
)
def test_1_3_malformed_filters_match_nothing_and_are_told(text: str) -> None:
    only = Entry(where="mig-configs.a[0]", devices=None, filters=(text,), enabled=False)
    assert Filter.parse(text) is None
    assert not only.matches(gpu())
    (warning,) = layout.warnings((only,), [gpu()])
    assert "mig-configs.a[0].device-filter" in warning
    assert repr(text) in warning


@pytest.mark.parametrize("text", ["0x20B010DE", "0x00B010DE", "0x25B610DE:0x14A910DE", "0x25B610DE:0x000910DE"])
def test_1_3_canonical_print(text: str) -> None:
    assert str(Filter.parse(text)) == text
    assert str(Filter.parse(text.lower())) == text


@given(device=st.integers(0, 0xFFFFFFFF), subsystem=st.none() | st.integers(0, 0xFFFFFFFF))
def test_1_3_printed_filters_are_read(device: int, subsystem: int | None) -> None:
    made = Filter(device, subsystem)
    assert Filter.parse(str(made)) == made


def test_1_3_a_list_is_either_and_devices_must_match_too() -> None:
    found = Entry(devices=(0, 1), filters=("0x233010DE", "0x20B010DE"), enabled=False)
    assert [
        found.matches(gpu(index, pci)) for index, pci in ((0, 0x20B010DE), (1, 0x233010DE), (1, 1), (2, 0x20B010DE))
    ] == [
        True,
        True,
        False,
        False,
    ]


def test_a_filter_that_matches_nothing_is_told() -> None:
    only = Entry(where="mig-configs.a[0]", devices=None, filters=("0x233010DE",), enabled=False)
    (warning,) = layout.warnings((only,), [gpu(), gpu(1)])
    assert warning == "mig-configs.a[0] matches no GPU of this node (it has 2: 0x20B010DE)"


# --- 1.4 --------------------------------------------------------------------------------------------------------------


def test_1_4_the_last_entry_that_matches_counts() -> None:
    first, second = Entry(devices=None, enabled=True), Entry(devices=(1, 7), enabled=False)
    assert layout.targets((first, second), [gpu(0), gpu(1)]) == {0: first, 1: second}
    assert layout.targets((second, first), [gpu(0), gpu(1)]) == {0: first, 1: first}
    assert layout.targets((second,), [gpu(0), gpu(1)]) == {1: second}


@pytest.mark.parametrize(
    ("names", "asked", "expected"),
    [
        (("a",), "", "a"),
        (("a",), "a", "a"),
        (("a", "b"), "b", "b"),
        (("a", "b"), "", "missing required flag 'selected-config' when more than one config available"),
        (("a", "b"), "c", "selected mig-config not present: 'c'; available are a, b"),
        (("a",), "c", "selected mig-config not present: 'c'"),
        ((), "c", "selected mig-config not present: 'c'; the file has no mig-configs"),
        ((), "", "selected mig-config not present: ''"),
    ],
)
def test_1_4_selection(names: tuple[str, ...], asked: str, expected: str) -> None:
    found = {name: (Entry(where=name, devices=None, enabled=False),) for name in names}
    if expected in names:
        assert layout.select(found, asked) == found[expected]
        return
    with pytest.raises(LayoutError) as raised:
        layout.select(found, asked)
    assert expected in str(raised.value)


# --- 1.5 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1g.5gb", "1g.5gb"),
        ("1c.1g.5gb", "1g.5gb"),
        ("1c.3g.20gb", "1c.3g.20gb"),
        ("1g.5gb+me", "1g.5gb+me"),
        ("1g.24gb+me.all", "1g.24gb+me.all"),
        ("1g.24gb-me", "1g.24gb-me"),
        ("1g.24gb+me,gfx", "1g.24gb+gfx,me"),
        ("0g.0gb", "0g.0gb"),
    ],
)
def test_1_5_profiles(text: str, canonical: str) -> None:
    assert str(profiles.parse(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        *("", "1g", "5gb", "1g.5gb.1", "1c.1g.5gb.2", "g.5gb", "1.5gb", "1g.5", "1g.5GB", "1G.5gb", "1C.1g.5gb"),
        *("ag.5gb", "1g.agb", " 1g.5gb", "1g.5gb ", "1g. 5gb", "1g.5gb+", "1g.5gb-", "1g.5gb+me-me", "1g.5gb+me+gfx"),
        *(
            "1g.5gb+me,me",
            "1g.5gb+1me",
            "1g.5gb+.me",
            "1g.5gb+me.",
            "1g.5gb+ me",
            "1g.5gb+me ",
            "1g.5gb+me,",
            "1g.5gb+m!",
        ),
        *("x1c.1g.5gb", "1g.5gb\n", "-1g.5gb"),
    ],
)
def test_1_5_what_is_no_profile(text: str) -> None:
    with pytest.raises(profiles.ProfileError):
        profiles.parse(text)


# --- round trips ------------------------------------------------------------------------------------------------------

_PROFILES = st.builds(
    Profile,
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(1, 300),
    st.sampled_from(["", "+me", "+me.all", "+gfx", "-me"]),
)
_ENTRIES = st.builds(
    lambda devices, filters, instances: Entry(
        devices=devices, filters=tuple(filters), enabled=bool(instances), instances=instances
    ),
    st.none() | st.lists(st.integers(0, 16), max_size=4).map(tuple),
    st.lists(st.builds(Filter, st.integers(0, 0xFFFFFFFF)).map(str), max_size=3),
    st.dictionaries(_PROFILES, st.integers(1, 8), max_size=4),
)


@pytest.mark.parametrize("output", layout.FORMATS)
@pytest.mark.parametrize(
    "name", ["n", "Y", "on", "null", "~", "1", "0x1F", "1_000", "1e3", ".5", "1:0", "a: b", "#", "", " a"]
)
def test_names_stay_texts(output: str, name: str) -> None:
    layouts = {name: (Entry(devices=None, enabled=False),)}
    assert list(layout.parse(layout.dump(layouts, output), "file")) == [name]


@pytest.mark.parametrize("output", layout.FORMATS)
@settings(max_examples=25, deadline=None)
@given(
    found=st.dictionaries(
        st.text(string.ascii_letters + string.digits + ".-+ ", min_size=1, max_size=8),
        st.lists(_ENTRIES, min_size=1, max_size=2),
        min_size=1,
        max_size=2,
    )
)
def test_what_is_written_is_read(output: str, found: dict[str, list[Entry]]) -> None:
    layouts = {name: tuple(entries) for name, entries in found.items()}
    again = layout.parse(layout.dump(layouts, output), "file")

    def plain(each: Entry) -> tuple[object, ...]:
        return each.devices, each.filters, each.enabled, dict(each.instances)

    assert {name: [plain(each) for each in entries] for name, entries in again.items()} == {
        name: [plain(each) for each in entries] for name, entries in layouts.items()
    }
