"""Derived series, Xid errors and their texts (contracts/mig-exporter-validator.md 5.4, 8; 9 #9, #10)."""

import os
from pathlib import Path

import pytest

from groundplane.api import xids
from groundplane.api.xids import Action
from groundplane.node.devices.telemetry import Reading
from groundplane.node.metrics import derived, kernellog
from groundplane.node.metrics.derived import FAIL, OK, PASS, WARN, Evidence, Verdict
from groundplane.node.metrics.history import History, Seen
from groundplane.node.metrics.kernellog import Found, KernelLog

REASONS = {
    0x1: "gpu_idle",
    0x2: "clocks_setting",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}


@pytest.mark.parametrize(("bit", "name"), REASONS.items())
def test_5_4_clock_events(bit: int, name: str) -> None:
    history = History()
    history.add_reasons("g", bit, 5.0)
    history.add_reasons("g", bit | 0x800, 6.0)
    assert history.reasons("g", 5.0) == {name: 2}
    assert history.reasons("g", 5.5) == {name: 1}
    assert history.reasons("other", 0) == {}


def test_5_4_a_sample_with_several_bits_counts_for_each() -> None:
    history = History()
    history.add_reasons("g", 0x1 | 0x40, 1.0)
    history.add_reasons("g", 0, 2.0)
    assert history.reasons("g", 0) == {"gpu_idle": 1, "hw_thermal": 1}


def test_5_4_xids_in_the_window_and_the_last_for_ever() -> None:
    history = History()
    assert history.last_xid("g") is None
    for at, code in ((1.0, 31), (2.0, 79), (3.0, 31)):
        history.add_xid("g", code, at, 1000 + at)
    assert history.xids("g", 0) == {31: 2, 79: 1}
    assert history.xids("g", 2.5) == {31: 1}
    assert history.xids("g", 9) == {}
    assert history.last_xid("g") == Seen(31, 1003.0)


def test_9_10_an_error_that_both_tell_counts_once_and_none_is_lost() -> None:
    history = History()
    history.add_xid("g", 79, 1.0, 1.0, "driver")
    history.add_xid("g", 79, 1.1, 1.1, "kernel log")
    history.add_xid("g", 62, 1.2, 1.2, "kernel log")
    assert history.xids("g", 0) == {62: 1, 79: 1}


HEALTH = [
    (Evidence(Reading(), False, frozenset()), {}),
    (Evidence(Reading(), True, frozenset()), {"DRIVER": Verdict(FAIL, "DCGM_FR_FALLEN_OFF_BUS")}),
    (Evidence(Reading(), False, frozenset([79])), {"DRIVER": Verdict(FAIL, "DCGM_FR_FALLEN_OFF_BUS")}),
    (
        Evidence(Reading(ecc_dbe_volatile=1), False, frozenset()),
        {"MEM": Verdict(FAIL, "DCGM_FR_VOLATILE_DBE_DETECTED")},
    ),
    (Evidence(Reading(remap_pending=1), False, frozenset()), {"MEM": Verdict(WARN, "DCGM_FR_PENDING_ROW_REMAP")}),
    (
        Evidence(Reading(remap_pending=1, remap_failure=1), False, frozenset()),
        {"MEM": Verdict(FAIL, "DCGM_FR_ROW_REMAP_FAILURE")},
    ),
    (
        Evidence(Reading(nvlink_replay_errors=3), False, frozenset()),
        {"NVLINK": Verdict(WARN, "DCGM_FR_NVLINK_ERROR_THRESHOLD")},
    ),
    (Evidence(Reading(), False, frozenset([74])), {"NVLINK": Verdict(FAIL, "DCGM_FR_NVLINK_ERROR_CRITICAL")}),
    (Evidence(Reading(pcie_replays=8), False, frozenset()), {}),
    (Evidence(Reading(pcie_replays=9), False, frozenset()), {"PCIE": Verdict(WARN, "DCGM_FR_PCI_REPLAY_RATE")}),
    (
        Evidence(Reading(event_reasons=0x40), False, frozenset()),
        {"THERMAL": Verdict(WARN, "DCGM_FR_CLOCKS_EVENT_THERMAL")},
    ),
    (Evidence(Reading(event_reasons=0x80), False, frozenset()), {"POWER": Verdict(WARN, "DCGM_FR_CLOCKS_EVENT_POWER")}),
    (
        Evidence(Reading(absent={"inforom_image": "ERROR_CORRUPTED_INFOROM"}), False, frozenset()),
        {"INFOROM": Verdict(FAIL, "DCGM_FR_CORRUPT_INFOROM")},
    ),
]


@pytest.mark.parametrize(("evidence", "expected"), HEALTH)
def test_5_4_health(evidence: Evidence, expected: dict[str, Verdict]) -> None:
    found = derived.health(evidence)
    assert tuple(found) == derived.WATCHES
    worst = max(expected.values(), key=lambda each: each.status, default=Verdict(PASS, OK))
    assert {name: verdict for name, verdict in found.items() if verdict.status} == (
        {**expected, "ALL": worst} if expected else {}
    )


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68])
def test_8_errors_of_applications_fail_no_gpu(code: int) -> None:
    assert derived.health(Evidence(Reading(), False, frozenset([code])))["ALL"] == Verdict(PASS, OK)


def span(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


ACTIONS = {
    Action.IGNORE: "14 37 38 43 44 63 66 67 92 93 106 107 108 121 137 141 152 153 157 160 161",
    Action.RESTART_APPLICATION: ("8 11 13 25 31 32 39 40 41 60 68-72 75-77 80 82-86 88 89 94 96-105 126-135 139"),
    Action.RESET_GPU: "46 62 64 95 109 110 119 120 136 140 143 155 156 158",
    Action.RESTART_NODE: "79",
    Action.RESTART_VM: "151",
    Action.UPDATE: "78",
    Action.CHECK_MECHANICS: "54",
    Action.WORKFLOW: "45 48 74 144-150 154 159",
    Action.SUPPORT: ("1-7 9 10 12 15-24 26-30 33-36 42 47 49-53 55-59 61 65 73 81 87 90 91 111-118 122-125 138 142"),
    Action.NONE: "162-172",
}


@pytest.mark.parametrize(("action", "codes"), ACTIONS.items())
def test_8_actions(action: Action, codes: str) -> None:
    assert {code for code, xid in xids.XIDS.items() if xid.action is action} == span(codes)


def test_8_every_xid_has_a_text() -> None:
    assert set(xids.XIDS) == set(range(1, 173))
    assert all(xid.text for xid in xids.XIDS.values())
    assert (xids.text(0), xids.text(173), xids.text(79)) == ("No Error", "Unknown Error", "GPU has fallen off the bus")


LINES = [
    ("NVRM: Xid (PCI:0000:05:00): 79, pid=1, GPU has fallen off the bus.", Found("00000000:05:00", 79)),
    ("4,123,99,-;NVRM: Xid (0000:ab:00): 13, Graphics Exception", Found("00000000:AB:00", 13)),
    ("NVRM: Xid (PCI:00010000:0b:00.0): 145, RLW_REMAP Nonfatal", Found("00010000:0B:00", 145)),
    ("NVRM: GPU at PCI:0000:3b:00.0 has fallen off the bus.", Found("00000000:3B:00", 79)),
    ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus", Found("00000000:3B:00", 79)),
    ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal", None),
    ("NVRM: loading", None),
    ("", None),
]


@pytest.mark.parametrize(("line", "found"), LINES)
def test_8_lines_of_the_kernels_log(line: str, found: Found | None) -> None:
    assert kernellog.parse(line) == found


def test_the_log_is_read_from_its_end_on_and_by_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "kmsg"
    file.write_text(LINES[0][0] + "\n")
    log = KernelLog.open(file)
    assert list(log.read()) == []
    with file.open("a") as writer:
        writer.write(LINES[1][0][:20])
        writer.flush()
        assert list(log.read()) == []
        writer.write(LINES[1][0][20:] + "\n" + LINES[3][0] + "\n")
    assert list(log.read()) == [LINES[1][1], LINES[3][1]]
    log.close()


def test_a_log_that_blocks_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kmsg")
    writer = os.open(tmp_path / "kmsg", os.O_RDWR)
    log = KernelLog.open(tmp_path / "kmsg")
    assert list(log.read()) == []
    os.write(writer, (LINES[0][0] + "\n").encode())
    assert list(log.read()) == [LINES[0][1]]
    log.close()
    os.close(writer)
