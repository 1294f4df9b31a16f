"""GPUs and their counters as the nodes tell them: exporters' pages through the API server, and ``nvidia-smi``.

For baselines and for whoever wants the health of GPUs before a change (A84, A93). Works with NVIDIA's DCGM exporter and
with ours, and with any driver container that has ``nvidia-smi``. Nothing is started on a node; a node that does not
answer is named with the reason. What the figures mean is left to ``drift``.
"""

import asyncio
import csv
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..api import names
from ..cluster import errors, permissions
from ..diagnose.survey import Survey
from . import metricslook

if TYPE_CHECKING:
    from ..cluster.client import Client

EXPORTERS: Final = ("nvidia-dcgm-exporter",)
IN_FLIGHT: Final = 32
"""Nodes that are asked at the same time."""
TIMEOUT_S: Final = 15.0

COUNTERS: Final[Mapping[str, str]] = {
    name: name
    for name in (
        *("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
        *("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL"),
        *("DCGM_FI_DEV_RETIRED_SBE", "DCGM_FI_DEV_RETIRED_DBE", "DCGM_FI_DEV_RETIRED_PENDING"),
        *("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"),
        *("DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_PENDING"),
        *("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
        *("DCGM_FI_DEV_THERMAL_VIOLATION", "DCGM_FI_DEV_POWER_VIOLATION"),
        *("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", "DCGM_FI_DEV_RELIABILITY_VIOLATION"),
        *("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL"),
        *("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"),
    )
} | {
    "DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL": "DCGM_FI_DEV_RETIRED_SBE",
    "DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL": "DCGM_FI_DEV_RETIRED_DBE",
    "DCGM_FI_DEV_PAGE_RETIRED_PENDING": "DCGM_FI_DEV_RETIRED_PENDING",
    "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL": "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL": "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_ROW_REMAP_FAILED": "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    "DCGM_FI_DEV_XID_ERROR": "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_DEV_PCIE_REPLAY_TOTAL": "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
}
"""The counters that are recorded, by each name that exporters give them."""
_SAMPLE: Final = re.compile(r"^(DCGM_FI_\w+)\{((?:[^\"}]|\"(?:\\.|[^\"\\])*\")*)\}\s+(\S+)")
_LABEL: Final = re.compile(r"(\w+)=\"((?:\\.|[^\"\\])*)\"")

SMI_FIELDS: Final[Mapping[str, str]] = {
    "uuid": "uuid",
    "pci.bus_id": "pci",
    "name": "name",
    "driver_version": "driver",
    "serial": "serial",
    "vbios_version": "vbios",
    "inforom.img": "inforom",
    "ecc.errors.corrected.aggregate.total": "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
    "ecc.errors.uncorrected.aggregate.total": "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
}
"""What ``nvidia-smi`` is asked, and which field or counter its answer is."""
SMI: Final = ("nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits")
_NOTHING: Final = frozenset({"", "[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]", "0"})
SMI_PODS: Final = (
    ("nvidia-driver-daemonset", "nvidia-driver-ctr"),
    (names.DRIVER_COMPONENT, "nvidia-driver-ctr"),
    ("nvidia-device-plugin-daemonset", "nvidia-device-plugin"),
    ("nvidia-dcgm-exporter", "nvidia-dcgm-exporter"),
)
"""Where ``nvidia-smi`` is looked for, by the pod's label (``app``, or the component's) and container, best first."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU; what was not told is empty."""

    uuid: str
    pci: str = ""
    serial: str = ""
    name: str = ""
    vbios: str = ""
    inforom: str = ""
    driver: str = ""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of a node and their counters, by UUID and by DCGM's name."""

    gpus: list[Gpu] = []
    counters: dict[str, dict[str, float]] = {}


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes told."""

    gpus: dict[str, list[Gpu]] = {}
    """By node; empty lists are nodes that said that they have none."""
    counters: dict[str, dict[str, dict[str, float]]] = {}
    no_gpus: dict[str, str] = {}
    """By node: why its GPUs are not known."""
    no_counters: dict[str, str] = {}


def of_page(page: str) -> Health:
    """The GPUs and counters of an exporter's page; the largest counts of a GPU's several samples."""
    gpus: dict[str, Gpu] = {}
    counters: dict[str, dict[str, float]] = {}
    for name, labels, value in _samples(page):
        uuid = labels.get("UUID", "")
        if not uuid:
            continue
        if uuid not in gpus:
            gpus[uuid] = Gpu(
                uuid=uuid,
                pci=pci(labels.get("pci_bus_id", "")),
                name=labels.get("modelName", ""),
                driver=labels.get("DCGM_FI_DRIVER_VERSION", ""),
            )
            counters[uuid] = {}
        if counter := COUNTERS.get(name):
            counters[uuid][counter] = max(value, counters[uuid].get(counter, value))
    return Health(gpus=[gpus[uuid] for uuid in sorted(gpus)], counters=counters)


def _samples(page: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in page.splitlines():
        found = _SAMPLE.match(line)
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:  # not a number: the sample says nothing
            continue
        labels = {key: re.sub(r"\\(.)", r"\1", text) for key, text in _LABEL.findall(found[2])}
        yield found[1], labels, value


def pci(address: str) -> str:
    """A PCI address in one form: ``0000:3b:00.0``, whatever the number of the domain's digits and the case."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:]:0>4}:{rest}" if rest.count(":") == 1 else address.lower()


def of_smi(text: str) -> Health:
    """The GPUs and counters of what :data:`SMI` prints. Raises ValueError for another text."""
    gpus: list[Gpu] = []
    counters: dict[str, dict[str, float]] = {}
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(SMI_FIELDS) or not row[0].startswith("GPU-"):
            raise ValueError(f"nvidia-smi printed {', '.join(row)[:120]!r}")
        told = dict(zip(SMI_FIELDS.values(), (cell.strip() for cell in row), strict=True))
        known = {field: value for field, value in told.items() if value not in _NOTHING and not field.isupper()}
        known["pci"] = pci(known.get("pci", ""))
        gpus.append(Gpu(**known))
        counters[row[0]] = {field: float(value) for field, value in told.items() if field.isupper() and value.isdigit()}
    return Health(gpus=sorted(gpus, key=lambda gpu: gpu.uuid), counters=counters)


def merged(page: Health | None, smi: Health | None) -> Health:
    """What both say: ``nvidia-smi`` knows more of a GPU, the exporter more counters."""
    if page is None or smi is None:
        return page or smi or Health()
    more = {gpu.uuid: gpu for gpu in smi.gpus}
    both = [more.pop(gpu.uuid, gpu) for gpu in page.gpus]
    counters = {
        gpu.uuid: {**smi.counters.get(gpu.uuid, {}), **page.counters.get(gpu.uuid, {})}
        for gpu in (*both, *more.values())
    }
    return Health(gpus=sorted((*both, *more.values()), key=lambda gpu: gpu.uuid), counters=counters)


# --- Asking ----------------------------------------------------------------------------------------------------------


async def readings(
    client: "Client",
    survey: Survey,
    nodes: list[str],
    *,
    metrics: bool = True,
    smi: bool = True,
    tell: Callable[[int, int], None] = lambda _done, _all: None,
) -> Readings:
    """Ask the nodes, :data:`IN_FLIGHT` at a time; ``tell`` hears how many of how many have answered.

    ``metrics`` reads exporters' pages (get on ``pods/proxy``), ``smi`` runs ``nvidia-smi`` in operand pods (create on
    ``pods/exec``).
    """
    found = Readings()
    slots = asyncio.Semaphore(IN_FLIGHT)
    done = 0

    async def one(node: str) -> None:
        nonlocal done
        async with slots:
            page, why_page = await _asked(_page, client, survey, node) if metrics else (None, "metrics were not read")
            told, why_smi = await _asked(_smi, client, survey, node) if smi else (None, "nvidia-smi was not run")
        if page is None and told is None:
            found.no_gpus[node] = f"{why_page}; {why_smi}"
        else:
            both = merged(page, told)
            found.gpus[node] = both.gpus
            found.counters[node] = both.counters
        if page is None:
            found.no_counters[node] = why_page
            found.counters.pop(node, None)
        done += 1
        tell(done, len(nodes))

    async with asyncio.TaskGroup() as group:
        for node in nodes:
            group.create_task(one(node))
    return found


Ask = Callable[["Client", Survey, str], Awaitable[Health]]


class _Unasked(Exception):  # noqa: N818  (it is no error: there is nobody to ask)
    """A node has no pod that could be asked."""


async def _asked(ask: Ask, client: "Client", survey: Survey, node: str) -> tuple[Health | None, str]:
    """What a node told, or why it told nothing."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await ask(client, survey, node), ""
    except TimeoutError:
        return None, f"no answer within {TIMEOUT_S:.0f} s"
    except errors.ClusterError as error:
        if lacking := permissions.missing(error):
            return None, permissions.tell(permissions.Denied(each) for each in lacking)
        return None, _general(str(error))
    except (_Unasked, ValueError) as error:
        return None, str(error)


def _general(reason: str) -> str:
    """An error's text without the pod's name, so that many nodes can say the same."""
    return re.sub(r"(pods?/|pod )\S+", r"\1…", reason)[:300]


async def _page(client: "Client", survey: Survey, node: str) -> Health:
    pod = next((each for each in _running(survey, node) if _labels(each).get("app") in EXPORTERS), None)
    if pod is None:
        raise _Unasked("no running exporter")
    metadata = pod["metadata"]
    port = metricslook.port_of(pod)
    health = of_page(await metricslook.text_of(client, metadata["namespace"], metadata["name"], port))
    if not health.gpus:
        raise _Unasked("the exporter's page has no GPU")
    return health


async def _smi(client: "Client", survey: Survey, node: str) -> Health:
    from ..cluster import execute

    pods = _running(survey, node)
    tried = ""
    for label, container in SMI_PODS:
        for pod in pods:
            labels = _labels(pod)
            if label not in (labels.get("app"), labels.get(names.COMPONENT_LABEL)):
                continue
            metadata = pod["metadata"]
            try:
                ran = await execute.execute(
                    client, metadata["name"], metadata["namespace"], SMI, container=container, timeout_s=TIMEOUT_S
                )
            except execute.NoSuchCommand:
                tried = "no operand has nvidia-smi"
                continue
            if ran.rc == 0:
                return of_smi(ran.out.decode("utf-8", "replace"))
            told = (ran.err or ran.out).decode("utf-8", "replace").strip()
            tried = f"nvidia-smi ended with {ran.rc}: {told[:200]}"
    raise _Unasked(tried or "no running driver, device plugin or exporter to run nvidia-smi in")


def _running(survey: Survey, node: str) -> list[dict[str, Any]]:
    return [
        pod
        for pod in survey.pods_by_node.get(node, ())
        if (pod.get("status") or {}).get("phase") == "Running" and pod["metadata"].get("namespace") == survey.namespace
    ]


def _labels(pod: Mapping[str, Any]) -> Mapping[str, str]:
    return pod["metadata"].get("labels") or {}
