"""The counters file that alerts and dashboard read: the exporter's default list and what that leaves out.

It names only what NVIDIA's exporter knows too, since that is the image that an operator's values usually name; an
exporter does not start on a name that it does not know.
"""

import importlib.resources
from typing import Final, NamedTuple

from groundplane.node.metrics import counters

DEFAULT: Final = "dcp-metrics-included.csv"


class Added(NamedTuple):
    """A field beyond the default list: name, type and help."""

    name: str
    kind: str
    help: str

    def line(self) -> str:
        """Its line of the file."""
        return f"{self.name}, {self.kind}, {self.help}"


ADDED: Final = (
    Added("DCGM_FI_DEV_POWER_VIOLATION", "counter", "Time slowed down to keep the power limit (in ns)."),
    Added("DCGM_FI_DEV_THERMAL_VIOLATION", "counter", "Time slowed down to keep cool (in ns)."),
    Added("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Corrected single-bit errors since the driver was loaded."),
    Added("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Double-bit errors since the driver was loaded."),
    Added("DCGM_FI_DEV_RETIRED_PENDING", "gauge", "Pages that will be retired at the next reboot."),
    Added("DCGM_FI_DEV_ROW_REMAP_PENDING", "gauge", "Whether rows are to be remapped at the next reset."),
    Added("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "counter", "Checksum errors of NVLink flow control."),
    Added("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "counter", "Checksum errors of NVLink data."),
    Added("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "counter", "Retries on NVLinks."),
    Added("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "counter", "Recoveries of NVLinks."),
    Added("DCGM_FI_PROF_SM_ACTIVE", "gauge", "Part of the time in which a multiprocessor had work."),
    Added("DCGM_EXP_CLOCK_EVENTS_COUNT", "gauge", "Samples in the window in which the clocks were held down."),
    Added("DCGM_EXP_XID_ERRORS_COUNT", "gauge", "Xid errors in the window by number; falls again."),
    Added("DCGM_EXP_GPU_HEALTH_STATUS", "gauge", "Health of the GPU by part: 0 well; 10 warning; 20 failed."),
)


def text() -> str:
    """The whole file."""
    default = importlib.resources.files(counters.__package__) / DEFAULT
    lines = [line for line in default.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    head = [
        "# Written by deploy/chart/generate.py: the exporter's default list, and what alerts and dashboard need more."
    ]
    return "\n".join([*head, *lines, *(each.line() for each in ADDED)]) + "\n"
