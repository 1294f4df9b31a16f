"""What a person knows of a GPU by the name of its model: product, PCI id, memory, compute capability, MIG instances.

Data, and the two or three sums over it. The simulated source and the lab make machines out of it; nothing here is asked
of a real GPU. Sizes of MIG instances are what the driver reports where that is public (A100-40GB), and otherwise the
instance's share less what the driver keeps there; names computed from them are those of
contracts/mig-exporter-validator.md 1.8.
"""

import functools
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from . import profiles
from .model import Profile


class Engines(NamedTuple):
    """Engines of a GPU instance."""

    copy: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg: int = 0
    ofa: int = 0


class Kind(NamedTuple):
    """A kind of GPU instance of a GPU: NVML's profile number, memory slices, where it may start, how many at most."""

    number: int
    size: int
    starts: tuple[int, ...]
    most: int
    engines: Engines

    @property
    def slices(self) -> int:
        """Compute slices."""
        return profiles.GPU_INSTANCES[self.number].slices

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Where it may be: first memory slice, and how many."""
        return tuple((start, self.size) for start in self.starts)


class Layout(NamedTuple):
    """How a GPU can be cut: compute slices, memory slices, multiprocessors in a compute slice, kinds of instances."""

    slices: int
    memory_slices: int
    multiprocessors: int
    kinds: tuple[Kind, ...]

    @property
    def engines(self) -> Engines:
        """All engines of the GPU: those of the instance that has most of each."""
        return Engines(*(max(column) for column in zip(*(kind.engines for kind in self.kinds), strict=True)))


_KEPT_MIB: Final = {1: 256, 2: 384, 4: 512, 8: 768}
"""What the driver keeps of an instance's memory, by eighths of the GPU (as reported for A100-SXM4-40GB)."""


class Model(msgspec.Struct, frozen=True):
    """What is the same for all cards of one model. `pci_class` is 0x030200 for compute, 0x030000 for display cards.

    `memory_mib` is 0 where the GPU has no memory of its own. `layout` names one of :data:`LAYOUTS`.
    """

    product: str
    pci_id: str
    memory_mib: int
    compute: tuple[int, int]
    mig: bool = False
    pci_class: str = "0x030200"
    layout: str = ""

    @property
    def kinds(self) -> Mapping[Profile, Kind]:
        """The GPU instances that a card of this model offers, by full profile, in the order of NVML's numbers."""
        return _kinds(self)

    @property
    def sliced(self) -> Layout:
        """How a card of this model can be cut. KeyError if it cannot."""
        return LAYOUTS[self.layout]

    def instance_profile_id(self, kind: Kind) -> int:
        """The id by which the driver's other functions know a kind of GPU instance; never its number."""
        return _INSTANCE_PROFILE_IDS.get(self.layout, _USUAL_PROFILE_IDS).get(kind.number, kind.number + 100)

    def instance_mib(self, kind: Kind) -> int:
        """Memory of a GPU instance in MiB, as the driver reports it."""
        eighths = kind.size * 8 // self.sliced.memory_slices
        share = self.memory_mib * eighths // 8
        return share - min(_KEPT_MIB[eighths], share // 16)


_USUAL_PROFILE_IDS: Final = {0: 19, 1: 14, 2: 9, 3: 5, 4: 0, 7: 20, 9: 15}
_INSTANCE_PROFILE_IDS: Final = {"A30": {0: 14, 1: 5, 3: 0, 7: 21, 8: 6}}
"""Ids of GPU instance profiles by NVML's number, as the driver has them on an A100 and, by layout, on others."""


def compute_profile_id(number: int) -> int:
    """The id by which the driver's other functions know a compute instance profile, which is not its number."""
    return number + 40


@functools.lru_cache(maxsize=128)
def _kinds(model: Model) -> Mapping[Profile, Kind]:
    if not model.mig or not model.layout or not model.memory_mib:
        return {}
    total = model.memory_mib * profiles.MIB
    return {
        profiles.full(kind.number, model.instance_mib(kind) * profiles.MIB, total): kind for kind in model.sliced.kinds
    }


def _seven(multiprocessors: int, engines: dict[int, Engines]) -> Layout:
    """A GPU of 7 compute and 8 memory slices; `engines` by NVML's profile number."""
    everywhere = tuple(range(7))
    places = {
        0: (1, everywhere, 7),
        1: (2, (0, 2, 4), 3),
        2: (4, (0, 4), 2),
        3: (4, (0,), 1),
        4: (8, (0,), 1),
        7: (1, everywhere, 1),
        9: (2, (0, 2, 4, 6), 4),
    }
    return Layout(7, 8, multiprocessors, tuple(Kind(number, *places[number], engines[number]) for number in places))


_AMPERE = {
    0: Engines(copy=1),
    1: Engines(copy=2, decoders=1),
    2: Engines(copy=3, decoders=2),
    3: Engines(copy=4, decoders=2),
    4: Engines(copy=7, decoders=5, jpeg=1, ofa=1),
    7: Engines(copy=1, decoders=1, jpeg=1, ofa=1),
    9: Engines(copy=1, decoders=1),
}
_HOPPER = {
    0: Engines(copy=1, decoders=1, jpeg=1),
    1: Engines(copy=2, decoders=2, jpeg=2),
    2: Engines(copy=3, decoders=3, jpeg=3),
    3: Engines(copy=4, decoders=4, jpeg=4),
    4: Engines(copy=8, decoders=7, jpeg=7, ofa=1),
    7: Engines(copy=1, decoders=1, jpeg=1, ofa=1),
    9: Engines(copy=1, decoders=1, jpeg=1),
}
_QUARTERS = (0, 1, 2, 3)
_ONE = Engines(copy=1, decoders=1, encoders=1, jpeg=1)
_TWO = Engines(copy=2, decoders=2, encoders=2, jpeg=2)
_ALL = Engines(copy=4, decoders=4, encoders=4, jpeg=4, ofa=1)

LAYOUTS: Final[dict[str, Layout]] = {
    "A30": Layout(
        4,
        4,
        14,
        (
            Kind(0, 1, _QUARTERS, 4, Engines(copy=1)),
            Kind(1, 2, (0, 2), 2, Engines(copy=2, decoders=2)),
            Kind(3, 4, (0,), 1, Engines(copy=4, decoders=4, jpeg=1, ofa=1)),
            Kind(7, 1, _QUARTERS, 1, Engines(copy=1, decoders=1, jpeg=1, ofa=1)),
            Kind(8, 2, (0, 2), 1, Engines(copy=2, decoders=2, jpeg=1, ofa=1)),
        ),
    ),
    "A100": _seven(14, _AMPERE),
    "H100": _seven(16, _HOPPER),
    "B200": _seven(18, _HOPPER),
    "RTX-PRO-6000": Layout(
        4,
        4,
        46,
        (
            Kind(0, 1, _QUARTERS, 4, _ONE),
            Kind(1, 2, (0, 2), 2, _TWO),
            Kind(3, 4, (0,), 1, _ALL),
            Kind(7, 1, _QUARTERS, 1, _ONE._replace(ofa=1)),
            Kind(10, 1, _QUARTERS, 4, _ONE),
            Kind(11, 2, (0, 2), 2, _TWO),
            Kind(12, 4, (0,), 1, _ALL),
            Kind(13, 1, _QUARTERS, 4, Engines(copy=1)),
            Kind(14, 2, (0, 2), 2, Engines(copy=2)),
            Kind(15, 1, _QUARTERS, 1, _ALL._replace(copy=1)),
            Kind(16, 2, (0, 2), 1, _ALL._replace(copy=2)),
        ),
    ),
    "RTX-PRO-5000": Layout(
        4,
        4,
        26,
        (
            Kind(0, 1, _QUARTERS, 1, _ONE),
            Kind(3, 4, (0,), 1, _ALL),
            Kind(7, 1, _QUARTERS, 1, _ONE._replace(ofa=1)),
            Kind(10, 1, _QUARTERS, 1, _ONE),
            Kind(12, 4, (0,), 1, _ALL),
            Kind(13, 1, _QUARTERS, 3, Engines(copy=1)),
            Kind(14, 2, (0, 2), 1, Engines(copy=2)),
        ),
    ),
    "RTX-PRO-4500": Layout(
        2,
        2,
        40,
        (
            Kind(0, 1, (0, 1), 2, _ONE),
            Kind(1, 2, (0,), 1, _TWO._replace(ofa=1)),
        ),
    ),
}
"""How MIG GPUs can be cut (contracts/mig-exporter-validator.md 1.8).

Multiprocessors and engines of the RTX PRO boards, and engines of B200, are estimates.
"""

_DISPLAY = "0x030000"


def _card(
    product: str, pci_id: str, memory_mib: int, compute: tuple[int, int], layout: str = "", pci_class: str = "0x030200"
) -> Model:
    return Model(product, pci_id, memory_mib, compute, bool(layout), pci_class, layout)


MODELS: Final[dict[str, Model]] = {
    # Tesla, Fermi
    "C1060": _card("Tesla C1060", "05e7", 4096, (1, 3)),
    "M2090": _card("Tesla M2090", "1091", 5375, (2, 0)),
    # Kepler
    "K20": _card("Tesla K20m", "1028", 4743, (3, 5)),
    "K40": _card("Tesla K40m", "1023", 11441, (3, 5)),
    "K80": _card("Tesla K80", "102d", 11441, (3, 7)),
    # Maxwell
    "M10": _card("Tesla M10", "13bd", 8129, (5, 0)),
    "M40": _card("Tesla M40", "17fd", 11448, (5, 2)),
    "M60": _card("Tesla M60", "13f2", 8129, (5, 2)),
    # Pascal
    "P4": _card("Tesla P4", "1bb3", 7611, (6, 1)),
    "P40": _card("Tesla P40", "1b38", 22919, (6, 1)),
    "P100-PCIE-16GB": _card("Tesla P100-PCIE-16GB", "15f8", 16276, (6, 0)),
    "P100-SXM2-16GB": _card("Tesla P100-SXM2-16GB", "15f9", 16276, (6, 0)),
    "TITAN-X-PASCAL": _card("NVIDIA TITAN X (Pascal)", "1b00", 12288, (6, 1), pci_class=_DISPLAY),
    # Volta
    "V100-PCIE-16GB": _card("Tesla V100-PCIE-16GB", "1db4", 16384, (7, 0)),
    "V100-PCIE-32GB": _card("Tesla V100-PCIE-32GB", "1db6", 32768, (7, 0)),
    "V100-SXM2-16GB": _card("Tesla V100-SXM2-16GB", "1db1", 16384, (7, 0)),
    "V100-SXM2-32GB": _card("Tesla V100-SXM2-32GB", "1db5", 32768, (7, 0)),
    "V100-SXM3-32GB": _card("Tesla V100-SXM3-32GB", "1db8", 32768, (7, 0)),
    # Turing
    "T4": _card("Tesla T4", "1eb8", 15360, (7, 5)),
    "RTX-8000": _card("Quadro RTX 8000", "1e30", 49152, (7, 5), pci_class=_DISPLAY),
    # Ampere
    "A2": _card("NVIDIA A2", "25b6", 15356, (8, 6)),
    "A10": _card("NVIDIA A10", "2236", 23028, (8, 6)),
    "A10G": _card("NVIDIA A10G", "2237", 23028, (8, 6)),
    "A16": _card("NVIDIA A16", "25b6", 15356, (8, 6)),
    "A30": _card("NVIDIA A30", "20b7", 24576, (8, 0), "A30"),
    "A40": _card("NVIDIA A40", "2235", 46068, (8, 6)),
    "A100-SXM4-40GB": _card("NVIDIA A100-SXM4-40GB", "20b0", 40960, (8, 0), "A100"),
    "A100-SXM4-80GB": _card("NVIDIA A100-SXM4-80GB", "20b2", 81920, (8, 0), "A100"),
    "A100-PCIE-40GB": _card("NVIDIA A100-PCIE-40GB", "20f1", 40960, (8, 0), "A100"),
    "A100-PCIE-80GB": _card("NVIDIA A100 80GB PCIe", "20b5", 81920, (8, 0), "A100"),
    "A800-SXM4-80GB": _card("NVIDIA A800-SXM4-80GB", "20f3", 81920, (8, 0), "A100"),
    "A800-PCIE-80GB": _card("NVIDIA A800 80GB PCIe", "20f5", 81920, (8, 0), "A100"),
    "RTX-A6000": _card("NVIDIA RTX A6000", "2230", 49140, (8, 6), pci_class=_DISPLAY),
    "DGX-DISPLAY": _card("NVIDIA DGX Display", "25b0", 4096, (8, 6), pci_class=_DISPLAY),
    # Ada Lovelace
    "L4": _card("NVIDIA L4", "27b8", 23034, (8, 9)),
    "L20": _card("NVIDIA L20", "26ba", 46068, (8, 9)),
    "L40": _card("NVIDIA L40", "26b5", 46068, (8, 9)),
    "L40S": _card("NVIDIA L40S", "26b9", 46068, (8, 9)),
    "RTX-6000-ADA": _card("NVIDIA RTX 6000 Ada Generation", "26b1", 49140, (8, 9), pci_class=_DISPLAY),
    "RTX-4090": _card("NVIDIA GeForce RTX 4090", "2684", 24564, (8, 9), pci_class=_DISPLAY),
    # Hopper
    "H20": _card("NVIDIA H20", "2329", 97871, (9, 0), "H100"),
    "H100-SXM5-80GB": _card("NVIDIA H100 80GB HBM3", "2330", 81559, (9, 0), "H100"),
    "H100-PCIE-80GB": _card("NVIDIA H100 PCIe", "2331", 81559, (9, 0), "H100"),
    "H100-NVL": _card("NVIDIA H100 NVL", "2321", 95830, (9, 0), "H100"),
    "H800-SXM5-80GB": _card("NVIDIA H800", "2324", 81559, (9, 0), "H100"),
    "H800-PCIE-80GB": _card("NVIDIA H800 PCIe", "2322", 81559, (9, 0), "H100"),
    "H200-SXM5-141GB": _card("NVIDIA H200", "2335", 143771, (9, 0), "H100"),
    "H200-NVL": _card("NVIDIA H200 NVL", "233b", 143771, (9, 0), "H100"),
    "GH200-480GB": _card("NVIDIA GH200 480GB", "2342", 97871, (9, 0), "H100"),
    "GH200-144GB": _card("NVIDIA GH200 144G HBM3e", "2348", 147096, (9, 0), "H100"),
    # Blackwell
    "B200": _card("NVIDIA B200", "2901", 183359, (10, 0), "B200"),
    "GB200": _card("NVIDIA GB200", "2941", 189471, (10, 0), "B200"),
    "B300": _card("NVIDIA B300 SXM6 AC", "3182", 275040, (10, 3), "B200"),
    "GB300": _card("NVIDIA GB300", "31c2", 284208, (10, 3), "B200"),
    "RTX-PRO-6000": _card("NVIDIA RTX PRO 6000 Blackwell Server Edition", "2bb5", 97887, (12, 0), "RTX-PRO-6000"),
    "RTX-PRO-5000": _card("NVIDIA RTX PRO 5000 Blackwell", "2bb3", 48935, (12, 0), "RTX-PRO-5000", pci_class=_DISPLAY),
    "RTX-PRO-4500": _card("NVIDIA RTX PRO 4500 Blackwell Server Edition", "2c3a", 32623, (12, 0), "RTX-PRO-4500"),
    "RTX-5090": _card("NVIDIA GeForce RTX 5090", "2b85", 32607, (12, 0), pci_class=_DISPLAY),
    "GB10": _card("NVIDIA GB10", "2e12", 0, (12, 1)),
    # Rubin: the family's compute capability is known; product, PCI id and memory stand in for what is not
    "VR200": _card("NVIDIA VR200", "3340", 294912, (13, 0), "B200"),
}
"""GPU models by the name that node files and simulated devices use."""

ALIASES: Final[dict[str, str]] = {
    "H100": "H100-SXM5-80GB",
    "H200": "H200-SXM5-141GB",
    "A100": "A100-SXM4-80GB",
    "A100-40GB": "A100-SXM4-40GB",
    "A100-80GB": "A100-SXM4-80GB",
    "V100": "V100-SXM2-32GB",
    "P100": "P100-SXM2-16GB",
    "GH200": "GH200-480GB",
}
"""Short names for the usual variant of a model."""

DISPLAY_ONLY: Final = frozenset({"DGX Display", "NVIDIA DGX Display"})
"""Products that no program offers, though they have an index (contracts/device-plugin-gfd.md 2.3)."""

CUDA_VERSIONS: Final[dict[int, str]] = {
    384: "9.0",
    390: "9.1",
    396: "9.2",
    410: "10.0",
    418: "10.1",
    440: "10.2",
    450: "11.0",
    455: "11.1",
    460: "11.2",
    465: "11.3",
    470: "11.4",
    495: "11.5",
    510: "11.6",
    515: "11.7",
    520: "11.8",
    525: "12.0",
    530: "12.1",
    535: "12.2",
    545: "12.3",
    550: "12.4",
    555: "12.5",
    560: "12.6",
    565: "12.7",
    570: "12.8",
    575: "12.9",
    580: "13.0",
    590: "13.1",
    595: "13.2",
}
"""The newest CUDA version that a driver branch serves."""


def find(name: str) -> Model | None:
    """The model of a name or short name."""
    return MODELS.get(ALIASES.get(name, name))


def cuda_version(driver_version: str) -> str:
    """The CUDA version of a driver: that of its branch, or of the nearest older one known."""
    branch = int(driver_version.partition(".")[0])
    return CUDA_VERSIONS[max((known for known in CUDA_VERSIONS if known <= branch), default=min(CUDA_VERSIONS))]
