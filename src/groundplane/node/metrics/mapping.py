"""Whose a device is: from the kubelet's list of pods and their devices to the labels of rows.

Pure (contracts/mig-exporter-validator.md 5.5). Asking the kubelet and the API server is ``pods``'s part.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ...api import names
from ..devices.model import Gpu
from ..devices.telemetry import GpuProcess
from . import fields, text
from .families import Entity, profile
from .settings import DEVICE_NAME, Settings
from .text import Family, Row

DRA_DRIVER: Final = "gpu.nvidia.com"
_GKE: Final = re.compile(r"(nvidia[0-9]+)(?:/gi([0-9]+))?(?:/vgpu([0-9]+))?")
_LEGACY: Final = re.compile(r"MIG-(GPU-[0-9a-fA-F-]{36})/([0-9]+)/[0-9]+")


class Claim(NamedTuple):
    """The resource claim by which a container has a device."""

    name: str
    namespace: str
    driver: str
    pool: str
    device: str


class Use(NamedTuple):
    """A container that has a device: ``device`` is its id as the kubelet has it, empty for one of a claim."""

    pod: str
    namespace: str
    container: str
    resource: str = ""
    device: str = ""
    claim: Claim | None = None


class PodFacts(NamedTuple):
    """What the API server tells of a pod."""

    uid: str = ""
    labels: Mapping[str, str] = {}


class SliceDevice(NamedTuple):
    """A device of a ResourceSlice: ``uuid`` of the GPU or MIG device, ``parent`` that of a MIG device's GPU."""

    uuid: str
    parent: str = ""
    profile: str = ""


class User(NamedTuple):
    """What a row gets for one who uses its device."""

    attributes: Mapping[str, str]
    labels: Mapping[str, str] = {}
    uid: str = ""


class Places(NamedTuple):
    """Where devices are: MIG devices by UUID, GPUs' indices by UUID."""

    mig: Mapping[str, tuple[int, int]]
    gpus: Mapping[str, int]

    @classmethod
    def of(cls, gpus: Iterable[Gpu]) -> "Places":
        """The places on a machine."""
        found = tuple(gpus)
        mig = {device.uuid: (gpu.index, device.gi) for gpu in found for device in gpu.mig_devices}
        return cls(mig, {gpu.uuid: gpu.index for gpu in found})


def key(entity: Entity, settings: Settings) -> str:
    """What a row's device is called here."""
    if entity.gi is not None:
        return f"{entity.gpu.index}-{entity.gi}"
    return f"nvidia{entity.gpu.index}" if settings.gpu_id_type == DEVICE_NAME else entity.gpu.uuid


def considered(resource: str, settings: Settings) -> bool:
    """Whether a resource's devices are GPUs."""
    return (
        resource == names.GPU_RESOURCE
        or resource.startswith(names.MIG_RESOURCE_PREFIX)
        or resource in settings.resource_names
    )


def keys(device: str, places: Places) -> list[str]:
    """Which rows' devices, as :func:`key` calls them, a device id of the kubelet's stands for; always the id too."""
    found = [device]
    whole = device.partition("::")[0]
    if device.startswith("MIG-"):
        where = places.mig.get(whole) or _legacy(whole, places)
        if where is not None:
            found.append(f"{where[0]}-{where[1]}")
        found.append(whole.removeprefix("MIG-"))
    elif match := _GKE.fullmatch(device):
        if match[2] is not None:
            found.append(f"{match[1].removeprefix('nvidia')}-{match[2]}")
        elif match[3] is not None:
            found.append(match[1])
    elif whole != device:
        found.append(whole)
    return found


def _legacy(device: str, places: Places) -> tuple[int, int] | None:
    match = _LEGACY.fullmatch(device)
    if match is None or match[1] not in places.gpus:
        return None
    return places.gpus[match[1]], int(match[2])


def replica(device: str) -> str:
    """Which of those who share a device has this id; empty if it is not shared."""
    _, shared, number = device.partition("::")
    if shared:
        return number
    match = _GKE.fullmatch(device)
    return (match[3] or "") if match else ""


def allowed(labels: Mapping[str, str], allowlist: Sequence[re.Pattern[str]]) -> dict[str, str]:
    """A pod's labels as labels of rows; of several that come to one name, the first by key."""
    found: dict[str, str] = {}
    for name in sorted(labels):
        if not allowlist or any(pattern.search(name) for pattern in allowlist):
            found.setdefault(text.label_name(name), labels[name])
    return found


class Users:
    """Who uses which device, for one scrape."""

    def __init__(
        self,
        uses: Iterable[Use],
        places: Places,
        settings: Settings,
        facts: Mapping[tuple[str, str], PodFacts],
        slices: Mapping[tuple[str, str], SliceDevice],
    ) -> None:
        self._settings = settings
        self._facts = facts
        self._plain: dict[str, list[User]] = {}
        self._claimed: dict[str, list[User]] = {}
        for use in uses:
            if use.claim is not None:
                self._add_claimed(use, use.claim, places, slices)
            elif considered(use.resource, settings):
                user = self._user(use)
                for name in keys(use.device, places):
                    self._add(name, user)

    def of(self, entity: Entity) -> list[User]:
        """Who uses an entity: at most one, unless each who shares has a row, or claims are told."""
        name = key(entity, self._settings)
        found = self._plain.get(name, [])
        if self._settings.dra and name in self._claimed:
            return [*found, *self._claimed[name]] if self._settings.virtual_gpus else self._claimed[name]
        return found

    def _add(self, name: str, user: User) -> None:
        if self._settings.virtual_gpus:
            users = self._plain.setdefault(name, [])
            if user not in users:
                users.append(user)
        else:
            self._plain[name] = [user]

    def _add_claimed(
        self, use: Use, claim: Claim, places: Places, slices: Mapping[tuple[str, str], SliceDevice]
    ) -> None:
        device = slices.get((claim.pool, claim.device))
        if claim.driver != DRA_DRIVER or device is None or not self._settings.dra:
            return
        attributes = {
            "dra_claim_name": claim.name,
            "dra_claim_namespace": claim.namespace,
            "dra_driver_name": claim.driver,
            "dra_pool_name": claim.pool,
            "dra_device_name": claim.device,
        }
        name = f"nvidia{places.gpus.get(device.uuid)}" if self._settings.gpu_id_type == DEVICE_NAME else device.uuid
        if device.parent:
            attributes |= {"dra_mig_profile": device.profile, "dra_mig_device_uuid": device.uuid}
            where = places.mig.get(device.uuid)
            name = f"{where[0]}-{where[1]}" if where else device.parent
        self._claimed.setdefault(name, []).append(self._user(use, attributes))

    def _user(self, use: Use, more: Mapping[str, str] | None = None) -> User:
        settings = self._settings
        facts = self._facts.get((use.namespace, use.pod), PodFacts())
        titles = ("pod_name", "pod_namespace", "container_name") if settings.old_namespace else _TITLES
        attributes = dict(zip(titles, (use.pod, use.namespace, use.container), strict=True)) | dict(more or {})
        if settings.pod_uid and facts.uid:
            attributes["pod_uid"] = facts.uid
        if settings.virtual_gpus and (number := replica(use.device)):
            attributes["vgpu"] = number
        labels = allowed(facts.labels, settings.label_allowlist) if settings.pod_labels else {}
        return User(attributes, labels, facts.uid)


_TITLES: Final = ("pod", "namespace", "container")


# --- each pod's part of a shared GPU ----------------------------------------------------------------------------------


def per_process(family: Family, shown: Sequence[Entity], users: Users, pod_of: Mapping[int, str]) -> Family:
    """Rows of each pod's own part beside that of the device, where processes tell it; ``pod_of`` is pid to pod uid."""
    rows: list[Row] = []
    for row in family.rows:
        entity = shown[row.entity]
        using = [user for user in users.of(entity) if user.uid]
        if not using:
            rows.append(row)
            continue
        rows.append(row._replace(settled=True))
        seen: set[tuple[str, str]] = set()
        for user in using:
            place = (user.uid, user.attributes.get("vgpu", ""))
            if place in seen:
                continue
            seen.add(place)
            own = [each for each in entity.sample.processes if pod_of.get(each.pid) == user.uid and _on(each, entity)]
            attributes = {**row.attributes, **user.attributes, "pod_uid": user.uid}
            rows.append(
                Row(row.entity, _part(family.name, own), {**row.labels, **user.labels}, attributes, settled=True)
            )
    return family._replace(rows=rows)


def _on(process: GpuProcess, entity: Entity) -> bool:
    return entity.gi is None or process.gi == entity.gi


def _part(name: str, processes: Sequence[GpuProcess]) -> str:
    if name == fields.FB_USED:
        return str(sum(each.memory_bytes or 0 for each in processes) // fields.MIB)
    return str(min(sum(each.sm_util or 0 for each in processes), 100))


PER_PROCESS: Final = frozenset((fields.GPU_UTIL, fields.FB_USED))


# --- the kubelet's answer ---------------------------------------------------------------------------------------------


def uses(answer: object) -> Iterator[Use]:
    """All devices of all containers in a List answer of the pod-resources API."""
    for pod in answer.pod_resources:  # type: ignore[attr-defined]
        for container in pod.containers:
            for devices in container.devices:
                for device in devices.device_ids:
                    yield Use(pod.name, pod.namespace, container.name, devices.resource_name, device)
            for dynamic in container.dynamic_resources:
                for resource in dynamic.claim_resources:
                    claim = Claim(
                        dynamic.claim_name,
                        dynamic.claim_namespace,
                        resource.driver_name,
                        resource.pool_name,
                        resource.device_name,
                    )
                    yield Use(pod.name, pod.namespace, container.name, claim=claim)


__all__ = ["Users", "keys", "per_process", "profile", "uses"]
