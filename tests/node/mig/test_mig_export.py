"""Exporting, and layouts out of what GPUs offer (contracts/mig-exporter-validator.md 1.12, 2)."""

import pytest
import yaml
from node.mig.migworld import counts

from groundplane.node.devices.simulated import GpuEntry, Mig
from groundplane.node.devices.source import DeviceError
from groundplane.node.mig import compare, export, generate, layout
from groundplane.node.mig.errors import MigError
from groundplane.node.mig.generate import Offer

A100, H100, T4, A30 = "A100-SXM4-40GB", "H100-SXM5-80GB", "T4", "A30"


def on(model: str, *instances: str, **more) -> GpuEntry:
    return GpuEntry(model, mig=Mig(True, instances), **more)


def written(found: layout.Layout) -> list[dict]:
    return yaml.safe_load(layout.dump({"a": found}, "yaml"))["mig-configs"]["a"]


def row(devices, instances: dict[str, int] | None, *filters: str) -> dict:
    head = {"device-filter": filters[0] if len(filters) == 1 else list(filters)} if filters else {}
    return {**head, "devices": devices, "mig-enabled": instances is not None, "mig-devices": instances or {}}


_A100, _H100, _T4 = "0x20B010DE", "0x233010DE", "0x1EB810DE"


@pytest.mark.parametrize(
    ("gpus", "rows"),
    [
        ([], []),
        ([T4, T4], [row("all", None)]),
        ([on(A100)] * 2, [row("all", {})]),
        ([on(A100, "7g.40gb"), on(A100)], [row([0], {"7g.40gb": 1}), row([1], {})]),
        ([on(A100, "7g.40gb"), on(A100), on(A100, "7g.40gb")], [row([0, 2], {"7g.40gb": 1}), row([1], {})]),
        ([A100, T4], [row("all", None)]),
        ([on(A100), T4], [row("all", {}, _A100), row("all", None, _T4)]),
        ([on(A100), A100, T4], [row([0], {}, _A100), row([1, 2], None, _T4, _A100)]),
        (
            [on(A100, "1g.10gb"), on(H100, "1g.10gb"), T4],
            [row("all", {"1g.10gb": 1}, _A100, _H100), row("all", None, _T4)],
        ),
        ([on(A100, "3g.20gb", "1c.3g.20gb")], [row("all", {"1c.3g.20gb": 1, "3g.20gb": 1})]),
        ([GpuEntry(A100, subsystem_id="0x14A910DE"), on(H100)], [row("all", None, _A100), row("all", {}, _H100)]),
    ],
)
def test_1_12_export(node, gpus, rows) -> None:
    states = node(*gpus).states()
    found = export.export(states)
    assert written(found) == rows
    if gpus:
        again = layout.parse(layout.dump({"a": found}, "json"), "file")["a"]
        assert compare.config(again, states) == (), "what is exported is applied"


def test_1_12_export_is_written_as_the_go_program_does(node) -> None:
    found = export.export(node(on(A100, "1g.5gb", "2g.10gb"), A100, T4).states())
    assert layout.dump({"current": found}, "yaml") == (
        "version: v1\n"
        "mig-configs:\n"
        "  current:\n"
        '  - device-filter: "0x20B010DE"\n'
        "    devices: [0]\n"
        "    mig-enabled: true\n"
        "    mig-devices:\n"
        "      1g.5gb: 1\n"
        "      2g.10gb: 1\n"
        '  - device-filter: ["0x1EB810DE", "0x20B010DE"]\n'
        "    devices: [1, 2]\n"
        "    mig-enabled: false\n"
        "    mig-devices: {}\n"
    )


# --- 2 ----------------------------------------------------------------------------------------------------------------


def of(*gpus: tuple[str, str]) -> list[Offer]:
    return [Offer(device, profile, most) for device, text in gpus for profile, most in counts(text).items()]


A100_40 = ("0x20B010DE", "1g.5gb:7 1g.5gb+me:1 1g.10gb:4 2g.10gb:3 3g.20gb:2 4g.20gb:1 7g.40gb:1")
A100_80 = ("0x20B210DE", "1g.10gb:7 1g.10gb+me:1 1g.20gb:4 2g.20gb:3 3g.40gb:2 4g.40gb:1 7g.80gb:1")
PRO_6000 = ("0x2BB510DE", "1g.24gb:4 1g.24gb+me.all:1 1g.24gb-me:4 2g.48gb:2 2g.48gb+gfx:2 4g.96gb:1")


def test_2_one_kind_of_gpu() -> None:
    found = generate.layouts(of(A100_40))
    assert {name: written(entries) for name, entries in found.items()} == {
        "all-disabled": [row("all", None)],
        "all-enabled": [row("all", {})],
        "all-balanced": [row("all", {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1})],
        "all-1g.5gb": [row("all", {"1g.5gb": 7})],
        "all-1g.5gb.me": [row("all", {"1g.5gb+me": 1})],
        "all-1g.10gb": [row("all", {"1g.10gb": 4})],
        "all-2g.10gb": [row("all", {"2g.10gb": 3})],
        "all-3g.20gb": [row("all", {"3g.20gb": 2})],
        "all-4g.20gb": [row("all", {"4g.20gb": 1})],
        "all-7g.40gb": [row("all", {"7g.40gb": 1})],
    }


def test_2_attributes_in_names() -> None:
    names = set(generate.layouts(of(PRO_6000)))
    assert {"all-1g.24gb.me.all", "all-1g.24gb-me", "all-2g.48gb.gfx"} < names
    assert written(generate.layouts(of(PRO_6000))["all-balanced"]) == [row("all", {"1g.24gb": 2, "2g.48gb": 1})]


def test_2_kinds_of_gpus_side_by_side() -> None:
    found = generate.layouts(of(A100_80, A100_40, PRO_6000))
    assert written(found["all-1g.10gb"]) == [
        row("all", {"1g.10gb": 4}, "0x20B010DE"),
        row("all", {"1g.10gb": 7}, "0x20B210DE"),
    ]
    assert written(found["all-1g.24gb"]) == [row("all", {"1g.24gb": 4}, "0x2BB510DE")]
    assert [each["device-filter"] for each in written(found["all-balanced"])] == [
        "0x20B010DE",
        "0x20B210DE",
        "0x2BB510DE",
    ]
    alike = generate.layouts(of(A100_80, ("0x233010DE", A100_80[1])))
    assert written(alike["all-7g.80gb"]) == [row("all", {"7g.80gb": 1}, "0x20B210DE", "0x233010DE")]
    assert written(found["all-disabled"]) == [row("all", None)]


@pytest.mark.parametrize("offered", ["1g.16gb:2 2g.32gb:1", "1g.12gb:1 4g.48gb:1 2g.24gb-me:1", "1g.5gb:7 7g.40gb:1"])
def test_2_without_balanced_sizes_there_is_no_balanced_layout(offered: str) -> None:
    assert "all-balanced" not in generate.layouts(of(("0x1", offered)))
    both = generate.layouts(of(("0x1", offered), A100_40))
    assert [each["device-filter"] for each in written(both["all-balanced"])] == ["0x20B010DE"]


def test_2_what_gpus_offer(node) -> None:
    found = generate.discover(node(A100, A100, T4, A30).control)
    assert {(each.device, str(each.profile)): each.most for each in found} == {
        **{("0x20B010DE", str(profile)): most for profile, most in counts(A100_40[1]).items()},
        **{("0x20B710DE", name): most for name, most in _A30.items()},
    }
    text = generate.text(found)
    assert [line[0] for line in text.splitlines()[:3]] == ["#", "#", "v"]
    assert layout.parse(text, "file").keys() == generate.layouts(found).keys()


_A30 = {"1g.6gb": 4, "1g.6gb+me": 1, "2g.12gb": 2, "2g.12gb+me": 1, "4g.24gb": 1}


def test_2_no_gpu_that_knows_mig(node) -> None:
    with pytest.raises(MigError, match="no MIG-capable GPU on this node"):
        generate.discover(node(T4).control)


def test_2_drivers_that_tell_no_profiles_with_mig_off(node) -> None:
    found = node(A100)
    found.machine.set_driver("535.230.02")
    with pytest.raises(generate.NoProfiles, match="no MIG profiles discovered for MIG-capable GPUs"):
        generate.discover(found.control)
    found.machine.set_mig(0, True)
    assert generate.discover(found.control)


def test_2_the_file_is_for_root_alone_and_whole(tmp_path) -> None:
    file = tmp_path / "etc" / "generated-config.yaml"
    generate.write(file, "one")
    generate.write(file, "two")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("two", 0o600)
    assert list(file.parent.iterdir()) == [file]


def test_lost_gpus_end_it(node) -> None:
    found = node(A100, A100)
    found.machine.lose(1)
    with pytest.raises(DeviceError, match="ERROR_GPU_IS_LOST"):
        generate.discover(found.control)
