"""The scenarios in which GPU features are compared with NVIDIA's: a file is written, once."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from groundplane.node.devices.simfile import Description, FabricEntry, GpuEntry

from .nodescenarios import H100, MACHINES, SEVEN, STRATEGIES, gpus, shared, table
from .nodeworld import Scenario

TWO, UNIFORM = MACHINES["two H100"], MACHINES["MIG uniform"]
ENVIRONMENT = {
    "USE_NODE_FEATURE_API": "false",
    "GFD_ONESHOT": "true",
    "GFD_NO_TIMESTAMP": "true",
    "GFD_OUTPUT_FILE": "@/out/features.d/gfd",
    "GFD_MACHINE_TYPE_FILE": "@/product_name",
}
_FOLDER = {"out/features.d/.keep": ""}


def scenarios() -> Iterator[Scenario]:
    """All of them."""
    for (name, machine), strategy in product(MACHINES.items(), STRATEGIES):
        yield _scenario(f"{name}, {strategy}", machine, env={"MIG_STRATEGY": strategy})
    for part in (_kinds, _sharing, _cliques, _machines, _faults, _settings):
        yield from part()


def measured() -> Scenario:
    """The one in which time and memory are measured."""
    return _scenario("eight H100", gpus(*[H100] * 8))


def _scenario(
    name: str,
    machine: Description,
    config: str | None = None,
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    **more: Any,
) -> Scenario:
    full = {**ENVIRONMENT, **(env or {})}
    return Scenario(name=name, machine=machine, config=config, env=full, files={**_FOLDER, **(files or {})}, **more)


_MODELS = (
    "C1060 M2090 K20 K80 M60 P4 TITAN-X-PASCAL V100-SXM2-16GB T4 RTX-8000 A10 A30 A100-PCIE-80GB L40S RTX-4090 "
    "H200-SXM5-141GB"
)
_COMPUTE = "0.0 1.0 4.0 7.2 7.5 8.7 8.9 10.0 10.3 11.0 12.0 12.1 13.0 14.0"
_NAMES = (
    *("NVIDIA (odd) name/with: chars_.-", "  spaced   out  ", "ends-", "é unicode", "a" * 80, "()", "tab\tin"),
    *("NVIDIA Thor", "Orin (nvgpu)"),
)


def _kinds() -> Iterator[Scenario]:
    for model in _MODELS.split():
        yield _scenario(f"model {model}", gpus(model))
    for compute in _COMPUTE.split():
        yield _scenario(f"compute {compute}", gpus(GpuEntry("L4", compute=compute)))
    for text in _NAMES:
        yield _scenario(f"name {text!r}", gpus(GpuEntry("L4", name=text)))
    for version in ("580.65.06", "550.54", "470.01.00", "1", "a.b.c", "1.2.3.4", "535.104.05-open", ""):
        yield _scenario(f"driver {version}", gpus("L4"), lines=f"driver {version}\n")
    for cuda in (12040, 13000, 9020, 11100, 1090, 0):
        yield _scenario(f"cuda {cuda}", gpus("L4"), lines=f"cuda {cuda}\n")
    for mib in (0, 1, 1023, 81559):
        yield _scenario(f"memory {mib}", gpus(GpuEntry("L4", memory_mib=mib)))
    yield _scenario("two models, one MIG", gpus("L40S", "L40S", SEVEN))
    yield _scenario("display and compute", gpus("RTX-A6000", "RTX-A6000"))
    yield _scenario("display among compute", gpus(GpuEntry("L4", name="same"), GpuEntry("RTX-A6000", name="same")))


def _sharing() -> Iterator[Scenario]:
    machines = ("two H100", "MIG uniform", "MIG and not")
    ways = product(("timeSlicing", "mps"), (False, True), STRATEGIES, machines, ("gpu", "mig-1g.5gb"))
    for kind, rename, strategy, name, resource in ways:
        config = shared(kind, name=resource, renameByDefault=rename)
        title = f"{kind}: {resource}, rename {rename}, {name}, {strategy}"
        yield _scenario(title, MACHINES[name], config, {"MIG_STRATEGY": strategy})


def _cliques() -> Iterator[Scenario]:
    cluster = "a1b2c3d4-0000-1111-2222-333344445555"
    seven, eight = FabricEntry(cluster, 7), FabricEntry(cluster, 8)
    zero, failed = FabricEntry(clique=7), FabricEntry(cluster, 7, "completed", "ERROR_UNKNOWN")
    members: dict[str, tuple[FabricEntry | None, FabricEntry | None]] = {
        "all": (seven, seven),
        "two cliques": (seven, eight),
        "one of two": (seven, None),
        "in progress": (FabricEntry(cluster, 7, "inProgress"),) * 2,
        "failed": (failed, failed),
        "failed and not": (failed, seven),
        "zero": (zero, zero),
        "zero and not": (zero, seven),
        "first pending": (FabricEntry(cluster, 7, "notStarted"), seven),
        "clique 0": (FabricEntry(cluster, 0),) * 2,
    }
    for name, fabrics in members.items():
        yield _scenario(f"clique: {name}", gpus(*(GpuEntry(H100, fabric=fabric) for fabric in fabrics)))


def _machines() -> Iterator[Scenario]:
    texts = {"empty": "", "spaces": "  Dell R750\n", "odd": "/\\?*\n", "two lines": "two\nlines\n", "long": "x" * 90}
    for name, text in texts.items():
        env = {"GFD_MACHINE_TYPE_FILE": "@/product"}
        yield _scenario(f"machine type: {name}", TWO, env=env, files={"product": text})
    for path in ("", "/nowhere", "/"):
        yield _scenario(f"machine type: file {path!r}", TWO, env={"GFD_MACHINE_TYPE_FILE": path})


_FUNCTIONS = (
    "DeviceGetCount DeviceGetHandleByIndex DeviceGetName DeviceGetMemoryInfo DeviceGetCudaComputeCapability "
    "DeviceGetMigMode DeviceGetPciInfo DeviceGetGpuFabricInfo SystemGetDriverVersion SystemGetCudaDriverVersion "
    "DeviceGetMaxMigDeviceCount DeviceGetMigDeviceHandleByIndex DeviceGetAttributes DeviceGetUUID DeviceGetMinorNumber"
)


def _faults() -> Iterator[Scenario]:
    for fail in ("true", "false"):
        env = {"FAIL_ON_INIT_ERROR": fail}
        yield _scenario(f"no library, fail {fail}", TWO, env=env, library=False)
        nvml = {**env, "DEVICE_DISCOVERY_STRATEGY": "nvml"}
        yield _scenario(f"no library, nvml, fail {fail}", TWO, env=nvml, library=False)
        yield _scenario(f"init fails, fail {fail}", TWO, env=env, init=9)
    for function, code, (name, machine) in product(_FUNCTIONS.split(), (3, 999), (("plain", TWO), ("MIG", UNIFORM))):
        title, env = f"fault: {function} {code}, {name}", {"MIG_STRATEGY": "single"}
        yield _scenario(title, machine, env=env, faults={function: code})


_VALUES = """
MIG_STRATEGY | other
MIG_STRATEGY |
DEVICE_DISCOVERY_STRATEGY | other
DEVICE_DISCOVERY_STRATEGY |
DEVICE_DISCOVERY_STRATEGY | nvml
DEVICE_DISCOVERY_STRATEGY | tegra
DEVICE_DISCOVERY_STRATEGY | vfio
GFD_SLEEP_INTERVAL | 60
GFD_SLEEP_INTERVAL |
GFD_SLEEP_INTERVAL | 1m30s
GFD_SLEEP_INTERVAL | infinite
GFD_SLEEP_INTERVAL | -1s
GFD_SLEEP_INTERVAL | 1d
GFD_ONESHOT | yes
USE_NODE_FEATURE_API | maybe
USE_NODE_FEATURE_API | true
GFD_OUTPUT_FILE |
GFD_OUTPUT_FILE | @/nowhere/gfd
GFD_OUTPUT_FILE | /dev/null/x
GFD_NO_TIMESTAMP |
GFD_CONFIG_FILE | /nowhere
GFD_MIG_STRATEGY | mixed
"""
_FILES = r"""
file | version: v1\nflags: {migStrategy: mixed, gfd: {oneshot: false, sleepInterval: 5, noTimestamp: true}}
plugin section | version: v1\nflags: {plugin: {passDeviceSpecs: true, deviceListStrategy: envvar}}
plugin wrong | version: v1\nflags: {plugin: {deviceListStrategy: other, deviceIDStrategy: other}}
unit | version: v1\nflags: {gfd: {sleepInterval: '60'}}
infinite | version: v1\nflags: {gfd: {sleepInterval: infinite}}
interval null | version: v1\nflags: {gfd: {sleepInterval: null}}
interval float | version: v1\nflags: {gfd: {sleepInterval: 1.5}}
interval text | version: v1\nflags: {gfd: {sleepInterval: 1h2m3.5s}}
v2 | version: v2
imex | version: v1\nimex: {channelIDs: [3]}
sharing empty | version: v1\nsharing: {timeSlicing: {}}
resources | version: v1\nresources: {gpus: [{pattern: x, name: z}]}
"""
_ARGUMENTS = (
    "--nothing | extra | --output @/out/features.d/other | -o @/out/features.d/other | --help | --version | "
    "--oneshot false | --no-timestamp=false | --kube-api-qps=x"
)


def _settings() -> Iterator[Scenario]:
    for (name, value), machine in product(table(_VALUES), ("two H100", "no GPU", "MIG uniform")):
        env = {"MIG_STRATEGY": "single", name: value}
        yield _scenario(f"settings: {name}={value!r}, {machine}", MACHINES[machine], env=env)
    for name, text in table(_FILES):
        yield _scenario(f"file: {name}", MACHINES["MIG off"], f"{text}\n")
    for words in _ARGUMENTS.split(" | "):
        yield _scenario(f"arguments: {words}", TWO, args=tuple(words.split()))
