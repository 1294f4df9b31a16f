"""The MIG layouts that every cluster has by default.

They are ``all-disabled``, ``all-enabled``, ``all-balanced`` and an ``all-<profile>`` for each profile.
The mig-manager makes layouts for the GPUs that it finds; this list is what it falls back to when the
driver cannot be asked (contracts/mig-exporter-validator.md 1.8 and 2). The same in both releases.
"""

import functools
from collections.abc import Mapping
from typing import Any, Final

import yaml

PROFILES: Final[Mapping[int, str]] = {
    # GPU instances of one size, by how many of them fit a GPU.
    7: "1g.5gb 1g.12gb 1g.18gb 1g.23gb 1g.34gb",
    4: "1g.6gb 1g.20gb 1g.24gb 1g.36gb 1g.45gb 1g.47gb 1g.67gb 1g.70gb 1g.24gb+gfx 1g.24gb-me",
    3: "2g.10gb 2g.20gb 2g.24gb 2g.35gb 2g.36gb 2g.45gb 2g.47gb 2g.67gb 2g.70gb",
    2: "2g.12gb 2g.48gb 2g.48gb+gfx 2g.48gb-me"
    " 3g.20gb 3g.40gb 3g.47gb 3g.48gb 3g.71gb 3g.72gb 3g.90gb 3g.93gb 3g.95gb 3g.135gb 3g.139gb",
    1: "1g.5gb+me 1g.6gb+me 1g.10gb+me 1g.12gb+me 1g.18gb+me 1g.23gb+me 1g.24gb+me 1g.34gb+me 1g.35gb+me"
    " 1g.24gb+me.all 2g.12gb+me 2g.48gb+me.all"
    " 4g.20gb 4g.24gb 4g.40gb 4g.47gb 4g.48gb 4g.71gb 4g.72gb 4g.90gb 4g.93gb 4g.95gb 4g.96gb 4g.96gb+gfx"
    " 4g.135gb 4g.139gb"
    " 7g.40gb 7g.80gb 7g.94gb 7g.96gb 7g.141gb 7g.144gb 7g.180gb 7g.186gb 7g.189gb 7g.269gb 7g.278gb",
}

# PCI device ids of the GPUs that a layout must tell apart.
A30: Final = ("20B7",)
A100_40: Final = ("20B0", "20B1", "20F1", "20F6")
GB_80: Final = ("2330", "2331", "2322", "20B2", "20B5", "20F3", "20F5", "2324")
NVL_94: Final = ("2321", "233A")
GB_96: Final = ("2342", "233D", "20B6", "2329")
H200: Final = ("2335", "233B")
GH200_144: Final = ("2348",)
B200: Final = ("2901",)
GB200: Final = ("2941",)
B300: Final = ("3182",)
GB300: Final = ("31C2",)
RTX_PRO_6000: Final = ("2BB5",)

AMBIGUOUS: Final[Mapping[str, tuple[tuple[tuple[str, ...], int], ...]]] = {
    # Profiles whose number depends on the GPU.
    "1g.10gb": ((GB_80, 7), (A100_40, 4)),
    "1g.35gb": ((H200, 4), (GB300, 7)),
}

BALANCED: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    # A mix of sizes on every GPU: "<count>x<profile> ...".
    (GB200, "2x1g.23gb 1x2g.47gb 1x3g.93gb"),
    (RTX_PRO_6000, "2x1g.24gb 1x2g.48gb"),
    (B200, "2x1g.23gb 1x2g.45gb 1x3g.90gb"),
    (GH200_144, "2x1g.18gb 1x2g.36gb 1x3g.72gb"),
    (H200, "2x1g.18gb 1x2g.35gb 1x3g.71gb"),
    (NVL_94, "2x1g.12gb 1x2g.24gb 1x3g.47gb"),
    (GB_80, "2x1g.10gb 1x2g.20gb 1x3g.40gb"),
    (A100_40, "2x1g.5gb 1x2g.10gb 1x3g.20gb"),
    (A30, "2x1g.6gb 1x2g.12gb"),
    (GB_96, "2x1g.12gb 1x2g.24gb 1x3g.48gb"),
    (B300, "2x1g.34gb 1x2g.67gb 1x3g.135gb"),
    (GB300, "2x1g.35gb 1x2g.70gb 1x3g.139gb"),
)


def _entry(instances: Mapping[str, int], gpus: tuple[str, ...] = ()) -> dict[str, Any]:
    only = {"device-filter": [f"0x{gpu}10DE" for gpu in gpus]} if gpus else {}
    return {**only, "devices": "all", "mig-enabled": True, "mig-devices": dict(instances)}


def layouts() -> dict[str, list[dict[str, Any]]]:
    """Every default layout by name, as ``mig-configs`` holds it."""
    uniform = {profile: count for count, row in PROFILES.items() for profile in row.split()}
    entries = {profile: [_entry({profile: count})] for profile, count in uniform.items()}
    for profile, variants in AMBIGUOUS.items():
        entries[profile] = [_entry({profile: count}, gpus) for gpus, count in variants]
    return {
        "all-disabled": [{"devices": "all", "mig-enabled": False}],
        "all-enabled": [_entry({})],
        "all-balanced": [_entry(_mix(mix), gpus) for gpus, mix in BALANCED],
        **{f"all-{profile.replace('+', '.')}": entries[profile] for profile in sorted(entries, key=_by_size)},
    }


def _mix(text: str) -> dict[str, int]:
    pairs = (item.split("x", 1) for item in text.split())
    return {profile: int(count) for count, profile in pairs}


def _by_size(profile: str) -> tuple[int, int, str]:
    slices, _, rest = profile.partition("g.")
    memory, _, attributes = rest.partition("gb")
    return int(slices), int(memory), attributes


@functools.cache
def document() -> str:
    """The default layouts as mig-parted's configuration file, YAML."""
    return yaml.safe_dump({"version": "v1", "mig-configs": layouts()}, sort_keys=False, width=120)
