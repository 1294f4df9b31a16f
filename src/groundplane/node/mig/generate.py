"""Layouts for a node out of what its GPUs offer (contracts/mig-exporter-validator.md 2). Pure, but for :func:`write`.

Whether they are needed, and the ConfigMap of them, is the MIG manager's part.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ..devices.mig import MigControl
from ..devices.model import Profile
from ..hostroot import write_atomic
from . import state
from .errors import MigError
from .layout import Entry, Filter, Layout, dump

GENERATED: Final = "/etc/nvidia-mig-manager/generated-config.yaml"
"""Where a node's own layouts are kept."""
_HEADER: Final = (
    "# Made from this node's GPUs by nvidia-mig-manager; it is written again at each start, so do not edit it.\n"
    "# To use other layouts, name a ConfigMap with the key config.yaml in migManager.config.name.\n"
)
_BALANCED: Final[Mapping[int, Mapping[int, int]]] = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}
"""Instances of a balanced layout: by the GPU's slices, how many of so many slices."""
_DISABLED = Entry(devices=None, enabled=False)
_ENABLED = Entry(devices=None, enabled=True)


class NoProfiles(MigError):  # noqa: N818 - reads as a fact
    """GPUs know MIG, but the driver tells no profiles, as up to 535 with MIG off. A file of usual layouts may serve."""


class Offer(NamedTuple):
    """A profile that GPUs of a PCI id offer, and how many of it fit."""

    device: str
    profile: Profile
    most: int


def discover(control: MigControl) -> tuple[Offer, ...]:
    """What the node's GPUs offer, once a kind of GPU.

    Raises :class:`~.errors.MigError` if none knows MIG, :class:`NoProfiles` and
    :class:`~..devices.source.DeviceError`.
    """
    capable = [gpu for gpu in control.gpus() if control.modes(gpu.uuid) is not None]
    if not capable:
        raise MigError("no MIG-capable GPU on this node: there are no layouts to generate")
    found = {
        (str(Filter(gpu.pci_id)), kind.profile): kind.most for gpu in capable for kind in state.offered(control, gpu)
    }
    if not found:
        raise NoProfiles(
            "no MIG profiles discovered for MIG-capable GPUs; drivers up to 535 tell none while MIG is off: "
            "upgrade the driver, or give a file of layouts"
        )
    return tuple(Offer(device, profile, most) for (device, profile), most in found.items())


def layouts(offers: Sequence[Offer]) -> dict[str, Layout]:
    """All layouts for GPUs that offer this, by name."""
    several = len({offer.device for offer in offers}) > 1
    balanced = tuple(_balanced(offers, several=several))
    found: dict[str, Layout] = {"all-disabled": (_DISABLED,), "all-enabled": (_ENABLED,)}
    if balanced:
        found["all-balanced"] = balanced
    for profile in {offer.profile: None for offer in sorted(offers, key=lambda offer: offer.profile)}:
        found[f"all-{profile.in_resource}"] = tuple(
            _all_of(profile, [offer for offer in offers if offer.profile == profile], several=several)
        )
    return dict(sorted(found.items(), key=lambda item: _ORDER.get(item[0], len(_ORDER))))


_ORDER: Final = {"all-disabled": 0, "all-enabled": 1, "all-balanced": 2}


def _all_of(profile: Profile, offers: Sequence[Offer], *, several: bool) -> Iterator[Entry]:
    """An entry for GPUs of which as many fit; the fewest first."""
    for most in sorted({offer.most for offer in offers}):
        devices = sorted(offer.device for offer in offers if offer.most == most)
        yield Entry(devices=None, filters=tuple(devices) if several else (), enabled=True, instances={profile: most})


def _balanced(offers: Sequence[Offer], *, several: bool) -> Iterator[Entry]:
    """An entry for each kind of GPU that can be cut so, by id."""
    for device in sorted({offer.device for offer in offers}):
        base = [offer for offer in offers if offer.device == device and not offer.profile.suffix]
        slices = max((offer.profile.g for offer in base), default=0)
        chosen = {
            g: max((offer for offer in base if offer.profile.g == g), key=lambda offer: offer.most, default=None)
            for g in _BALANCED.get(slices, {})
        }
        if not chosen or None in chosen.values():
            continue
        instances = {offer.profile: _BALANCED[slices][g] for g, offer in chosen.items() if offer is not None}
        yield Entry(devices=None, filters=(device,) if several else (), enabled=True, instances=instances)


def text(offers: Sequence[Offer]) -> str:
    """The file of layouts."""
    return _HEADER + dump(layouts(offers), "yaml")


def write(file: Path, content: str) -> None:
    """Write the file of layouts in one step, for root alone. Raises OSError, and leaves the old file whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, content, mode=0o600)
