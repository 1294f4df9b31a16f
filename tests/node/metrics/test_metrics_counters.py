"""The counters file and the default set (contracts/mig-exporter-validator.md 5.1, 5.2)."""

import importlib.resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.node.metrics import counters, fields
from groundplane.node.metrics.counters import CountersError, parse

SHIPPED = ("default-counters.csv", "dcp-metrics-included.csv")


def shipped(name: str) -> str:
    return (importlib.resources.files("groundplane.node.metrics") / name).read_text()


def names(text: str) -> list[str]:
    return [counter.name for counter in parse(text, "f").series]


ON = {
    "DCGM_FI_DEV_SM_CLOCK": (100, "gauge"),
    "DCGM_FI_DEV_MEM_CLOCK": (101, "gauge"),
    "DCGM_FI_DEV_MEMORY_TEMP": (140, "gauge"),
    "DCGM_FI_DEV_GPU_TEMP": (150, "gauge"),
    "DCGM_FI_DEV_POWER_USAGE": (155, "gauge"),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (156, "counter"),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": (202, "counter"),
    "DCGM_FI_DEV_GPU_UTIL": (203, "gauge"),
    "DCGM_FI_DEV_MEM_COPY_UTIL": (204, "gauge"),
    "DCGM_FI_DEV_ENC_UTIL": (206, "gauge"),
    "DCGM_FI_DEV_DEC_UTIL": (207, "gauge"),
    "DCGM_FI_DEV_XID_ERRORS": (230, "gauge"),
    "DCGM_FI_DEV_FB_FREE": (251, "gauge"),
    "DCGM_FI_DEV_FB_USED": (252, "gauge"),
    "DCGM_FI_DEV_FB_RESERVED": (253, "gauge"),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": (393, "counter"),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": (394, "counter"),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": (395, "gauge"),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": (449, "counter"),
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": (526, "gauge"),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (1001, "gauge"),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (1004, "gauge"),
    "DCGM_FI_PROF_DRAM_ACTIVE": (1005, "gauge"),
    "DCGM_FI_PROF_PCIE_TX_BYTES": (1009, "gauge"),
    "DCGM_FI_PROF_PCIE_RX_BYTES": (1010, "gauge"),
}
OFF = {
    **{
        f"DCGM_FI_DEV_{name}_VIOLATION": 240 + at
        for at, name in enumerate(("POWER", "THERMAL", "SYNC_BOOST", "BOARD_LIMIT", "LOW_UTIL", "RELIABILITY"))
    },
    **{
        f"DCGM_FI_DEV_ECC_{name}_TOTAL": 310 + at
        for at, name in enumerate(("SBE_VOL", "DBE_VOL", "SBE_AGG", "DBE_AGG"))
    },
    **{f"DCGM_FI_DEV_RETIRED_{name}": 390 + at for at, name in enumerate(("SBE", "DBE", "PENDING"))},
    **{
        f"DCGM_FI_DEV_NVLINK_{name}_ERROR_COUNT_TOTAL": 409 + 10 * at
        for at, name in enumerate(("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY"))
    },
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0": 440,
    "DCGM_FI_PROF_SM_ACTIVE": 1002,
    "DCGM_FI_PROF_SM_OCCUPANCY": 1003,
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": 1006,
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": 1007,
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": 1008,
}
LABELS_OFF = {
    "DCGM_FI_NVML_VERSION": 2,
    "DCGM_FI_DEV_BRAND": 51,
    "DCGM_FI_DEV_SERIAL": 53,
    "DCGM_FI_DEV_OEM_INFOROM_VER": 56,
    "DCGM_FI_DEV_ECC_INFOROM_VER": 80,
    "DCGM_FI_DEV_POWER_INFOROM_VER": 81,
    "DCGM_FI_DEV_INFOROM_IMAGE_VER": 82,
    "DCGM_FI_DEV_VBIOS_VERSION": 85,
}
EXP = {"DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_EXP_GPU_HEALTH_STATUS", "DCGM_EXP_P2P_STATUS"}


@pytest.mark.parametrize("name", SHIPPED)
def test_5_2_the_default_set(name: str) -> None:
    found = parse(shipped(name), name)
    assert found.warnings == ()
    assert {each.name: (each.order, each.kind) for each in found.series} == ON
    assert [(each.name, each.order, each.kind) for each in found.labels] == [("DCGM_FI_DRIVER_VERSION", 1, "label")]
    assert all(each.help for each in found.series)


@pytest.mark.parametrize("name", SHIPPED)
def test_5_2_what_is_commented_out_is_known_too(name: str) -> None:
    text = "\n".join(
        line.removeprefix("# ") if ", " in line and "_" in line else line for line in shipped(name).splitlines()
    )
    found = parse(text.replace("A line", "# A line").replace("Utilisation", "# Utilisation"), name)
    series = {each.name: each.order for each in found.series}
    ours = EXP | {fields.XID_TIME} if name == SHIPPED[0] else set()
    assert set(series) == ON.keys() | OFF.keys() | ours
    assert {each: series[each] for each in OFF} == OFF
    assert {each.name: each.order for each in found.labels} == {"DCGM_FI_DRIVER_VERSION": 1, **LABELS_OFF}


def test_5_2_other_ids() -> None:
    for name, number in (
        ("DCGM_FI_DEV_FB_TOTAL", 250),
        ("DCGM_FI_DEV_ROW_REMAP_PENDING", 396),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 112),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 112),
        ("DCGM_FI_DEV_PSTATE", 190),
        ("DCGM_FI_DEV_MIG_MODE", 67),
        ("DCGM_FI_PROF_NVLINK_TX_BYTES", 1011),
        ("DCGM_FI_PROF_NVLINK_RX_BYTES", 1012),
        ("DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE", 1013),
        ("DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE", 1014),
        ("DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE", 1015),
        ("DCGM_FI_PROF_PIPE_INT_ACTIVE", 1016),
    ):
        field = fields.find(name)
        assert field is not None and field.id == number, name


@pytest.mark.parametrize(
    ("written", "series"),
    [
        ("DCGM_FI_DEV_BOARD_POWER_WATTS", "DCGM_FI_DEV_POWER_USAGE"),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_GPU_UTIL"),
        ("DCGM_FI_PROF_TENSOR_UTIL_RATIO", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
        ("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
        ("DCGM_FI_DEV_XID_ERROR", "DCGM_FI_DEV_XID_ERRORS"),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"),
        ("dcgm_gpu_temp", "dcgm_gpu_temp"),
        ("dcgm_gpu_utilization", "dcgm_gpu_utilization"),
        ("dcgm_fi_prof_gr_engine_active", "dcgm_fi_prof_gr_engine_active"),
    ],
)
def test_5_2_names_of_other_generations(written: str, series: str) -> None:
    (found,) = parse(f"{written}, gauge, Help.", "f").series
    assert found.name == series
    assert found.field is fields.find(written) is not None


def test_the_table_is_in_order_and_each_name_is_one_fields() -> None:
    assert [each.id for each in fields.FIELDS] == sorted({each.id for each in fields.FIELDS})
    every = [name for each in fields.FIELDS for name in (each.name, each.modern, each.legacy) if name]
    assert len(every) == len(set(every))
    assert all(fields.is_dcgm(each.name) for each in fields.FIELDS)


GOOD = [
    ("", []),
    ("# a comment\n\n   \n", []),
    ("DCGM_FI_DEV_GPU_TEMP,gauge,Help", ["DCGM_FI_DEV_GPU_TEMP"]),
    ("  DCGM_FI_DEV_GPU_TEMP  ,  gauge ,  Help  ", ["DCGM_FI_DEV_GPU_TEMP"]),
    ('DCGM_FI_DEV_GPU_TEMP,gauge,"Help, with a comma"', ["DCGM_FI_DEV_GPU_TEMP"]),
    (
        "DCGM_FI_DEV_POWER_USAGE,gauge,b\nDCGM_FI_DEV_SM_CLOCK,counter,a",
        ["DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE"],
    ),
    ("DCGM_EXP_P2P_STATUS,gauge,p\nDCGM_FI_DEV_GPU_TEMP,histogram,h", ["DCGM_FI_DEV_GPU_TEMP", "DCGM_EXP_P2P_STATUS"]),
    ("DCGM_FI_DEV_GPU_TEMP,summary,", ["DCGM_FI_DEV_GPU_TEMP"]),
    ("DCGM_FI_DEV_SERIAL,label,x", []),
]


@pytest.mark.parametrize(("text", "expected"), GOOD)
def test_5_1_good_files(text: str, expected: list[str]) -> None:
    assert names(text) == expected


BAD = [
    ("DCGM_FI_DEV_GPU_TEMP,gauge", "line 1: 2 fields; expected"),
    ("DCGM_FI_DEV_GPU_TEMP,gauge,a,b", "line 1: 4 fields; expected"),
    ('DCGM_FI_DEV_GPU_TEMP, gauge, "a, b"', "line 1: 4 fields;.*follow the comma without a blank"),
    (" # no comment, for, Go", "'# no comment' is the name of no field"),
    ("DCGM_FI_DEV_NO_SUCH, gauge, x", "'DCGM_FI_DEV_NO_SUCH' is the name of no field"),
    ("DCGM_EXP_OTHER, gauge, x", "'DCGM_EXP_OTHER' is the name of no field"),
    ("dcgm_no_such, gauge, x", "is the name of no field"),
    ("DCGM_FI_DEV_GPU_TEMP, Gauge, x", "DCGM_FI_DEV_GPU_TEMP: 'Gauge' is no type"),
    ("DCGM_EXP_P2P_STATUS, label, x", "'label' is no type"),
    ("# one\nDCGM_FI_DEV_GPU_TEMP, untyped, x\nNONE, gauge, x", "line 2: .*'untyped'(.|\n)*line 3: 'NONE'"),
]


@pytest.mark.parametrize(("text", "problem"), BAD)
def test_5_1_bad_files_name_line_and_remedy(text: str, problem: str) -> None:
    with pytest.raises(CountersError, match=problem):
        parse(text, "some.csv")
    with pytest.raises(CountersError, match=r"some\.csv, line"):
        parse(text, "some.csv")


def test_all_bad_lines_are_told_at_once() -> None:
    with pytest.raises(CountersError) as raised:
        parse('a, gauge, x\n"b\nDCGM_FI_DEV_GPU_TEMP, gauge, x\nc\n', "f")
    assert [line.partition(":")[0] for line in str(raised.value).splitlines()] == [
        "f, line 1",
        "f, line 2",
        "f, line 4",
    ]


def test_what_gives_no_rows_is_told_and_left_out() -> None:
    found = parse(
        "DCGM_FI_DEV_CPU_UTIL_TOTAL, gauge, x\nDCGM_FI_DEV_SERIAL, gauge, x\nDCGM_FI_DEV_GPU_TEMP, gauge, x\n"
        "DCGM_FI_DEV_GPU_TEMP_CELSIUS, gauge, again",
        "f",
    )
    assert [each.name for each in found.series] == ["DCGM_FI_DEV_GPU_TEMP"]
    assert [warning.split(": ")[1].split(" ")[0] for warning in found.warnings] == [
        "DCGM_FI_DEV_CPU_UTIL_TOTAL",
        "DCGM_FI_DEV_SERIAL",
        "DCGM_FI_DEV_GPU_TEMP_CELSIUS",
    ]


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused_with_a_line(text: str) -> None:
    try:
        found = parse(text, "f")
    except CountersError as error:
        assert str(error).startswith("f, line ")
    else:
        assert isinstance(found, counters.Counters)
