"""Which CDI devices a machine offers: folders, priorities and conflicts (contracts/toolkit-cdi.md 1.4)."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.node.cdi import registry, write
from groundplane.node.cdi.model import ContainerEdits, Device, Spec
from groundplane.node.cdi.registry import Registry
from groundplane.node.cdi.write import Format
from groundplane.node.hostroot import HostRoot

LOW, HIGH = registry.DIRS


def spec(*names: str, kind: str = "a.b/gpu", mark: str = "x") -> Spec:
    edits = ContainerEdits(env=(f"MARK={mark}",))
    return Spec(kind=kind, devices=tuple(Device(name, edits) for name in names))


class Machine:
    """A machine's folders with spec files."""

    def __init__(self, folder: Path) -> None:
        self.root = HostRoot(folder, durable=False)

    def add(self, file: str, *names: str, kind: str = "a.b/gpu") -> None:
        form = Format.of(file) or Format.YAML
        self.root.write_atomic(file, write.encode(spec(*names, kind=kind, mark=file), form))

    def load(self, *dirs: str) -> Registry:
        return Registry.load(self.root.path, dirs or registry.DIRS)

    def marks(self) -> dict[str, str]:
        """The file from which each device is."""
        return {name: device.container_edits.env[0][5:] for name, (_, device) in self.load().devices.items()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_default_folders() -> None:
    assert registry.DIRS == ("/etc/cdi", "/var/run/cdi")


def test_missing_folders_are_no_error(machine: Machine) -> None:
    found = machine.load()
    assert (found.specs, dict(found.devices), dict(found.errors)) == ((), {}, {})


def test_only_files_directly_in_the_folder_with_the_right_end(machine: Machine) -> None:
    for name in (
        "a.json",
        "b.yaml",
        "c.yml",
        "d.txt",
        "e.json.bak",
        "f.JSON",
        ".hidden.yaml",
        "sub/g.yaml",
        "h.yaml/i.yaml",
    ):
        machine.add(f"{LOW}/{name}", name[0].strip(".") or "hidden")
    found = machine.load()
    assert list(found.devices) == ["a.b/gpu=a", "a.b/gpu=b", "a.b/gpu=hidden"]
    assert not found.errors


def test_listing_is_sorted(machine: Machine) -> None:
    machine.add(f"{LOW}/a.yaml", "2", "10", "all", "1", kind="z.z/gpu")
    machine.add(f"{HIGH}/b.json", "b", "GPU-1")
    names = list(machine.load().devices)
    assert (
        names == sorted(names) == ["a.b/gpu=GPU-1", "a.b/gpu=b", "z.z/gpu=1", "z.z/gpu=10", "z.z/gpu=2", "z.z/gpu=all"]
    )


def test_the_higher_priority_wins_silently(machine: Machine) -> None:
    machine.add(f"{LOW}/a.yaml", "0", "1")
    machine.add(f"{HIGH}/a.yaml", "1", "2")
    assert machine.marks() == {
        "a.b/gpu=0": f"{LOW}/a.yaml",
        "a.b/gpu=1": f"{HIGH}/a.yaml",
        "a.b/gpu=2": f"{HIGH}/a.yaml",
    }
    assert not machine.load().errors
    found = machine.load(HIGH, LOW)
    assert found.devices["a.b/gpu=1"][1].container_edits.env == (f"MARK={LOW}/a.yaml",)
    assert [each.priority for each in found.specs] == [0, 1]


def test_of_the_same_priority_nobody_wins(machine: Machine) -> None:
    machine.add(f"{LOW}/a.yaml", "0", "1")
    machine.add(f"{LOW}/b.json", "1", "2")
    found = machine.load()
    assert list(found.devices) == ["a.b/gpu=0", "a.b/gpu=2"]
    text = 'conflicting device "a.b/gpu=1" (specs "/etc/cdi/b.json", "/etc/cdi/a.yaml")'
    assert dict(found.errors) == {f"{LOW}/a.yaml": (text,), f"{LOW}/b.json": (text,)}
    assert list(found.warnings()) == [text]


def test_three_claimants_are_all_in_error(machine: Machine) -> None:
    for name in "abc":
        machine.add(f"{LOW}/{name}.yaml", "0", name)
    found = machine.load()
    assert list(found.devices) == ["a.b/gpu=a", "a.b/gpu=b", "a.b/gpu=c"]
    assert {file: len(texts) for file, texts in found.errors.items()} == {
        f"{LOW}/a.yaml": 2,
        f"{LOW}/b.yaml": 1,
        f"{LOW}/c.yaml": 1,
    }


def test_a_conflict_is_sticky(machine: Machine) -> None:
    machine.add(f"{LOW}/a.yaml", "0")
    machine.add(f"{LOW}/b.yaml", "0")
    machine.add(f"{HIGH}/c.yaml", "0")
    found = machine.load()
    assert list(found.devices) == []
    assert list(found.errors) == [f"{LOW}/a.yaml", f"{LOW}/b.yaml"]


def test_the_same_name_of_another_kind_is_another_device(machine: Machine) -> None:
    machine.add(f"{LOW}/a.yaml", "0")
    machine.add(f"{LOW}/b.yaml", "0", kind="a.b/nic")
    assert list(machine.load().devices) == ["a.b/gpu=0", "a.b/nic=0"]


BAD: list[tuple[str, str]] = [
    ("", "there is no CDI spec in it"),
    ("{", "neither YAML nor JSON"),
    ("{cdiVersion: 0.3.0, kind: a/b, foo: 1}", "foo: unknown field"),
    ("{cdiVersion: 9.0.0, kind: a/b, devices: []}", "version '9.0.0'"),
]


@pytest.mark.parametrize(("content", "expected"), BAD)
@pytest.mark.parametrize("name", ["bad.json", "bad.yaml"])
def test_a_bad_file_is_recorded_and_others_load(machine: Machine, content: str, expected: str, name: str) -> None:
    machine.add(f"{LOW}/good.yaml", "0")
    machine.root.write_atomic(f"{LOW}/{name}", content)
    found = machine.load()
    assert list(found.devices) == ["a.b/gpu=0"]
    ((file, (text,)),) = found.errors.items()
    assert file == f"{LOW}/{name}"
    assert text.startswith(f"failed to load CDI spec {LOW}/{name}: ")
    assert expected in text


def _fifo(real: Path) -> None:
    os.mkfifo(real)


def _dangling(real: Path) -> None:
    real.symlink_to("nowhere.yaml")


def _loop(real: Path) -> None:
    real.symlink_to(real.name)


@pytest.mark.parametrize(
    ("make", "expected"), [(_fifo, "not a regular file"), (_dangling, "No such file"), (_loop, "symbolic links")]
)
def test_what_is_no_file_is_recorded_and_never_waited_for(
    machine: Machine, make: Callable[[Path], None], expected: str
) -> None:
    machine.add(f"{LOW}/good.yaml", "0")
    make(machine.root.path(f"{LOW}/bad.yaml", follow=False))
    found = machine.load()
    assert list(found.devices) == ["a.b/gpu=0"]
    assert expected in found.errors[f"{LOW}/bad.yaml"][0]


def test_links_to_files_are_followed_within_the_root(machine: Machine) -> None:
    machine.add("/opt/spec.yaml", "0")
    machine.root.symlink(f"{LOW}/a.yaml", "/opt/spec.yaml")
    machine.root.mkdir("/run/cdi")
    machine.root.symlink("/var/run", "/run")
    machine.add("/run/cdi/b.yaml", "1")
    assert list(machine.load().devices) == ["a.b/gpu=0", "a.b/gpu=1"]


def test_a_folder_that_is_a_file_is_recorded_and_others_load(machine: Machine) -> None:
    machine.root.write_atomic(LOW, "")
    machine.add(f"{HIGH}/a.yaml", "0")
    found = machine.load()
    assert list(found.devices) == ["a.b/gpu=0"]
    assert found.errors[LOW] == ("/etc/cdi: Not a directory; make it a folder that can be read",)


def test_specs_in_memory() -> None:
    found = Registry.of([spec("0"), spec("1"), spec("0", kind="x/y")])
    assert list(found.devices) == ["a.b/gpu=0", "a.b/gpu=1", "x/y=0"]
    assert list(Registry.of([spec("0", "1"), spec("1")]).devices) == ["a.b/gpu=0"]


CLAIMS = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.sampled_from("abc"), min_size=1, unique=True)), min_size=1, max_size=5
)


@given(claims=CLAIMS, data=st.data())
def test_the_order_of_files_decides_nothing(claims: list[tuple[int, list[str]]], data: st.DataObject) -> None:
    def found(order: list[int]) -> tuple[dict[str, str], set[str]]:
        loaded = [
            registry.Loaded(str(number), claims[number][0], spec(*claims[number][1], mark=str(number)))
            for number in sorted(order, key=lambda number: claims[number][0])
        ]
        result = Registry.of_loaded(loaded)
        return {name: device.container_edits.env[0] for name, (_, device) in result.devices.items()}, set(result.errors)

    in_order = list(range(len(claims)))
    result = found(in_order)
    assert found(data.draw(st.permutations(in_order))) == result
    for name in "abc":
        levels = [level for level, names in claims if name in names]
        assert (f"a.b/gpu={name}" in result[0]) == (bool(levels) and len(set(levels)) == len(levels))
