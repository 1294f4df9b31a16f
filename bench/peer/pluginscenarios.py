"""The scenarios in which the device plugin is compared with NVIDIA's."""

from collections.abc import Iterator, Mapping
from itertools import combinations, product
from typing import Any

from groundplane.node.devices.simfile import Links, Topology

from .nodescenarios import H100, MACHINES, STRATEGIES, dgx1, gpus, random_machine, shared, table
from .nodeworld import Scenario

TWO, UNIFORM = MACHINES["two H100"], MACHINES["MIG uniform"]
WAYS = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
ALL_WAYS = ",".join(WAYS)
SPECS = {"PASS_DEVICE_SPECS": "true"}


def scenarios() -> Iterator[Scenario]:
    """All of them."""
    for (name, machine), strategy in product(MACHINES.items(), STRATEGIES):
        yield Scenario(name=f"{name}, {strategy}", machine=machine, env={"MIG_STRATEGY": strategy, **SPECS})
    for part in (_aligned, _sharing, _mps, _ways, _roots, _settings, _files, _entries, _arguments, _faults):
        yield from part()


def measured() -> Scenario:
    """The one in which time and memory are measured."""
    return Scenario(name="eight H100", machine=gpus(*[H100] * 8), env=SPECS)


def _two(name: str, config: str | None = None, env: Mapping[str, str] | None = None, **more: Any) -> Scenario:
    return Scenario(name=name, machine=TWO, config=config, env=env or {}, **more)


def _aligned() -> Iterator[Scenario]:
    pairs = tuple((at, at + 1) for at in range(0, 8, 2))
    bridged = tuple(Links((at, at + 4), 4) for at in range(4))
    near = Topology(single_switch=pairs, same_node=((0, 1, 2, 3), (4, 5, 6, 7)))
    yield Scenario(name="aligned: DGX-1", machine=dgx1())
    yield Scenario(name="aligned: pairs on switches", machine=gpus(*[H100] * 8, topology=near))
    across = gpus(*["A100-PCIE-80GB"] * 8, topology=near, nvlinks=bridged)
    yield Scenario(name="aligned: bridges across", machine=across)
    for seed in range(24):
        yield Scenario(name=f"aligned: chance {seed}", machine=random_machine(seed))


def _sharing() -> Iterator[Scenario]:
    for rename, refuse in product((None, False, True), repeat=2):
        config = shared(renameByDefault=rename, failRequestsGreaterThanOne=refuse)
        yield _two(f"sharing: rename {rename}, refuse {refuse}", config, SPECS)
    for strategy, name in product(STRATEGIES, ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "mig-1g.5gb", "other")):
        config, env = shared(name=name, renameByDefault=True), {"MIG_STRATEGY": strategy}
        yield Scenario(name=f"sharing: {name}, {strategy}", machine=UNIFORM, config=config, env=env)
    twice = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 3}, {name: gpu, replicas: 5}]}}"
    yield _two("sharing: two entries", twice)
    yield Scenario(name="sharing: ten on four", machine=MACHINES["four T4"], config=shared(replicas=10))
    yield _two("sharing: packed", shared(replicas=6), {"SHARED_DEVICES_ALLOCATION_POLICY": "packed"})
    yield _two("sharing: both", shared() + shared("mps").partition("sharing:\n")[2])


def _mps() -> Iterator[Scenario]:
    answering = {"bin/nvidia-cuda-mps-control": "#!/bin/sh\ncat >/dev/null\necho 25.0\n"}
    env = {"MPS_ROOT": "/run/nvidia/mps", "PATH": "@/bin:/usr/bin:/bin"}
    yield _two("MPS: no root", shared("mps"))
    yield _two("MPS: mixed", shared("mps"), {"MIG_STRATEGY": "mixed", "MPS_ROOT": "/run/nvidia/mps"})
    yield _two("MPS: no daemon", shared("mps"), env)
    for rename, refuse in product((False, True), (None, False, True)):
        config = shared("mps", renameByDefault=rename, failRequestsGreaterThanOne=refuse)
        yield _two(f"MPS: rename {rename}, refuse {refuse}", config, env, files=answering)
    for strategy in ("none", "single"):
        yield Scenario(
            name=f"MPS: MIG {strategy}",
            machine=UNIFORM,
            config=shared("mps"),
            env={**env, "MIG_STRATEGY": strategy},
            files=answering,
        )


def _ways() -> Iterator[Scenario]:
    for size, ids in product((1, 2, 3, 4), ("uuid", "index")):
        for chosen in map(",".join, combinations(WAYS, size)):
            env = {"DEVICE_LIST_STRATEGY": chosen, "DEVICE_ID_STRATEGY": ids, **SPECS}
            yield _two(f"ways: {chosen}, {ids}", env=env)
    for ids in ("uuid", "index"):
        env = {"DEVICE_LIST_STRATEGY": ALL_WAYS, "DEVICE_ID_STRATEGY": ids, **SPECS}
        yield Scenario(name=f"ways: all, {ids}, MIG", machine=UNIFORM, env={**env, "MIG_STRATEGY": "single"})
        yield _two(f"ways: all, {ids}, shared", shared(), env)
        yield Scenario(name=f"ways: all, {ids}, minors", machine=MACHINES["minors are not indices"], env=env)
    extras = {"GDRCOPY_ENABLED": "true", "GDS_ENABLED": "true", "MOFED_ENABLED": "true"}
    for chosen in ("envvar", ALL_WAYS, "cdi-cri"):
        yield _two(f"extras: {chosen}", env={**extras, "DEVICE_LIST_STRATEGY": chosen})
    for chosen, there, required in product((ALL_WAYS, "volume-mounts"), ((0,), ()), ("true", "false")):
        env = {"IMEX_CHANNEL_IDS": "0", "IMEX_REQUIRED": required, "DEVICE_LIST_STRATEGY": chosen, **SPECS}
        yield _two(f"imex: {there}, required {required}, {chosen}", env=env, imex=there)
    for channels in ("0,1", "", "a"):
        yield _two(f"imex: {channels!r} asked for", env={"IMEX_CHANNEL_IDS": channels}, imex=(0, 1))


def _roots() -> Iterator[Scenario]:
    roots = {"NVIDIA_DRIVER_ROOT": "/run/nvidia/driver", "DEVICE_LIST_STRATEGY": "envvar,cdi-annotations,cdi-cri"}
    for more in ({}, {"NVIDIA_DEV_ROOT": "/elsewhere"}, {"NVIDIA_DEV_ROOT": ""}, {"CDI_ANNOTATION_PREFIX": "a.com/"}):
        yield _two(f"roots: {more}", env={**roots, **SPECS, **more})
    yield _two("nodes missing", env=SPECS, absent_nodes=("nvidia-uvm-tools", "nvidia-modeset"))
    yield _two("no NUMA", numa=False)


_FILE = (
    "version: v1\nflags: {migStrategy: single, failOnInitError: false, plugin: {passDeviceSpecs: true, "
    "deviceIDStrategy: index, deviceListStrategy: [volume-mounts, envvar]}}\n"
)
_NAMES = "MIG_STRATEGY DEVICE_ID_STRATEGY DEVICE_LIST_STRATEGY DEVICE_DISCOVERY_STRATEGY"
_MORE_NAMES = (
    "SHARED_DEVICES_ALLOCATION_POLICY NVIDIA_DRIVER_ROOT CDI_ANNOTATION_PREFIX NVIDIA_CTK_PATH MPS_ROOT KUBELET_SOCKET "
    "CONFIG_FILE CDI_FEATURE_FLAGS"
)


def _settings() -> Iterator[Scenario]:
    yield _two("settings: file", _FILE)
    env = {"MIG_STRATEGY": "none", "DEVICE_ID_STRATEGY": "uuid", "PASS_DEVICE_SPECS": "false"}
    yield _two("settings: env over file", _FILE, {**env, "DEVICE_LIST_STRATEGY": "envvar"})
    flags = "--mig-strategy=mixed --device-id-strategy uuid --pass-device-specs=false"
    lists = "--device-list-strategy=envvar --device-list-strategy=volume-mounts"
    yield _two("settings: flags over all", _FILE, {"MIG_STRATEGY": "none"}, args=(*flags.split(), *lists.split()))
    yield _two("settings: flags by commas", args=("--device-list-strategy=envvar,volume-mounts",))
    others = "--nvidia-driver-root=/a --nvidia-dev-root /b --nvidia-ctk-path=/c -pass-device-specs"
    yield _two("settings: other names of flags", args=tuple(others.split()))
    yield _two("settings: hook path", env={"NVIDIA_CTK_PATH": "/two", "NVIDIA_CDI_HOOK_PATH": "/one"})
    booleans = ("PASS_DEVICE_SPECS", "FAIL_ON_INIT_ERROR", "GDS_ENABLED", "IMEX_REQUIRED")
    values = ("", "1", "t", "TRUE", "True", "0", "F", "false", "yes", " true", "tRUE", "on")
    for name, value in product(booleans, values):
        yield _two(f"settings: {name}={value!r}", env={name: value})
    for name in (*_NAMES.split(), *_MORE_NAMES.split()):
        yield _two(f"settings: {name}=''", env={name: ""})
    for name in (*_NAMES.split(), "SHARED_DEVICES_ALLOCATION_POLICY"):
        yield _two(f"settings: {name}=other", env={name: "other"})
    for value in ("envvar, volume-mounts", "envvar,envvar"):
        yield _two(f"settings: list {value}", env={"DEVICE_LIST_STRATEGY": value})
    for value in ("nvml", "tegra"):
        yield _two(f"settings: discovery {value}", env={"DEVICE_DISCOVERY_STRATEGY": value, **SPECS})


_FILES = r"""
empty |
only version | version: v1
no version | flags: {migStrategy: mixed}
json | {"version": "v1", "flags": {"migStrategy": "single"}}
v2 | version: v2
version empty | version: ''
version number | version: 1
unknown keys | version: v1\nother: 3\nflags: {none: 1, migStrategy: single}
yaml booleans | version: v1\nflags: {failOnInitError: yes, gdsEnabled: on}
bool text | version: v1\nflags: {gdsEnabled: 'true'}
null flag | version: v1\nflags: {migStrategy: null, gdsEnabled: null}
flags null | version: v1\nflags:
list as text | version: v1\nflags: {plugin: {deviceListStrategy: 'envvar,volume-mounts'}}
list of one | version: v1\nflags: {plugin: {deviceListStrategy: volume-mounts}}
list empty | version: v1\nflags: {plugin: {deviceListStrategy: []}}
list null | version: v1\nflags: {plugin: {deviceListStrategy: null}}
number for text | version: v1\nflags: {migStrategy: 3}
gfd section | version: v1\nflags: {gfd: {oneshot: true, sleepInterval: 30s}}
gfd section wrong | version: v1\nflags: {gfd: {sleepInterval: '60'}}
gfd interval number | version: v1\nflags: {gfd: {sleepInterval: 5}}
node feature api | version: v1\nflags: {useNodeFeatureAPI: true}
not yaml | version: [v1
a list | - version: v1
a text | hello
tab | version: v1\nflags:\n\tmigStrategy: none
twice | version: v1\nversion: v1
case | Version: v1\nflags: {MIGSTRATEGY: single}
two documents | version: v1\n---\nversion: v2
anchors | version: v1\nflags: &a {migStrategy: single}\nother: *a
resources | version: v1\nresources: {gpus: [{pattern: 'NVIDIA*', name: nvidia.com/mine}]}
resources wrong | version: v1\nresources: {gpus: [{pattern: 'NVIDIA*'}]}
resources bad name | version: v1\nresources: {gpus: [{pattern: '*', name: Bad_Name}]}
resources mig | version: v1\nresources: {mig: [{pattern: '*', name: x}]}
resources other domain | version: v1\nresources: {gpus: [{pattern: '*', name: amd.com/gpu}]}
imex | version: v1\nimex: {channelIDs: [0], required: false}
imex wrong | version: v1\nimex: {channelIDs: [3]}
imex text | version: v1\nimex: {channelIDs: 'x'}
imex twice | version: v1\nimex: {channelIDs: [0, 0]}
imex null | version: v1\nimex: null
container root | version: v1\nflags: {plugin: {containerDriverRoot: /x, nvidiaCTKPath: /y, cdiAnnotationPrefix: z/}}
allocation policy | version: v1\nflags: {plugin: {sharedDevicesAllocationPolicy: packed}}
allocation policy wrong | version: v1\nflags: {plugin: {sharedDevicesAllocationPolicy: other}}
discovery | version: v1\nflags: {deviceDiscoveryStrategy: nvml}
"""
_SECTIONS = """
empty | timeSlicing: {}
null | timeSlicing: null
no resources | timeSlicing: {resources: []}
text | timeSlicing: x
mps empty | mps: {}
mps null | mps: null
mps no resources | mps: {resources: []}
none | {}
"""


def _files() -> Iterator[Scenario]:
    for name, text in table(_FILES):
        yield _two(f"file: {name}", f"{text}\n")
    yield _two("file: missing", env={"CONFIG_FILE": "/nowhere"})
    for name, text in table(_SECTIONS):
        yield _two(f"sharing file: {name}", f"version: v1\nsharing:\n  {text}\n")


_UUID = "aec22a00-9713-5990-8c82-8f0f9829450a"
_REPLICAS = "1 0 -1 2 '3' 2.5 3.0 x null 1e1 0x10 010"
_DEVICES = (
    "all ALL 1 0 -1 1.5 '1' [0] ['0'] ['0:1'] ['0:1:2'] [-1] ['x'] [GPU-x] "
    f"[GPU-{_UUID}] [GPU-{_UUID.upper()}] [MIG-{_UUID}] [MIG-GPU-{_UUID}/1/0] [MIG-GPU-{_UUID}/1] "
    "[] null [null] [1.0] [1.5] {} true [all] [''] ['00'] ['-1'] ['0:'] [0,0] 3.0 'all'"
)
_ITEMS = (
    *("{name: nvidia.com/gpu}", "{replicas: 2}", "x", "null", "{}"),
    *("{name: gpu, replicas: 2}", "{name: amd.com/gpu, replicas: 2}", "{name: '', replicas: 2}"),
    *("{name: nvidia.com/GPU, replicas: 2}", "{name: nvidia.com/a/b, replicas: 2}", "{name: 3, replicas: 2}"),
    *(f"{{name: {'a' * length}, replicas: 2}}" for length in (45, 46, 52, 53)),
    *(f"{{name: gpu, replicas: 2, rename: {name}}}" for name in ("BAD", "''", "null", "mine")),
    *("{name: gpu, replicas: 2, extra: 1}", "{name: gpu, replicas: 2, devices: [0]}"),
    *("{name: .a, replicas: 2}", "{name: a., replicas: 2}", "{name: a..b, replicas: 2}"),
)


def _entries() -> Iterator[Scenario]:
    """What an entry of shared resources may say."""
    for text in _REPLICAS.split():
        yield _two(f"replicas: {text}", shared(replicas=text))
    for item in _ITEMS:
        config = f"version: v1\nsharing: {{timeSlicing: {{renameByDefault: true, resources: [{item}]}}}}\n"
        yield _two(f"item: {item}", config)
    for text in _DEVICES.split():
        item = f"{{name: gpu, replicas: 2, devices: {text}}}"
        yield _two(f"devices: {text}", f"version: v1\nsharing: {{timeSlicing: {{resources: [{item}]}}}}\n")


_ARGUMENTS = """
--nothing | --mig-strategy | --pass-device-specs=maybe | extra | --help | --version | -h | -v | help | version
--imex-channel-ids=0 --imex-channel-ids=0 | --imex-channel-ids=x | --pass-device-specs true | -- --nothing
--mig-strategy=single --mig-strategy=none
"""


def _arguments() -> Iterator[Scenario]:
    for words in _ARGUMENTS.strip().replace("\n", " | ").split(" | "):
        yield _two(f"arguments: {words}", args=tuple(words.split()))


_FUNCTIONS = (
    "DeviceGetCount DeviceGetHandleByIndex DeviceGetUUID DeviceGetName DeviceGetMinorNumber DeviceGetMemoryInfo "
    "DeviceGetCudaComputeCapability DeviceGetMigMode DeviceGetPciInfo DeviceGetTopologyCommonAncestor "
    "DeviceGetNvLinkState DeviceRegisterEvents DeviceGetSupportedEventTypes EventSetCreate EventSetWait "
    "SystemGetDriverVersion SystemGetCudaDriverVersion"
)
_MIG_FUNCTIONS = (
    "DeviceGetMaxMigDeviceCount DeviceGetMigDeviceHandleByIndex DeviceGetGpuInstanceId DeviceGetComputeInstanceId "
    "DeviceGetAttributes DeviceGetGpuInstanceById DeviceGetGpuInstanceProfileInfo DeviceGetHandleByUUID "
    "DeviceGetDeviceHandleFromMigDeviceHandle"
)


def _faults() -> Iterator[Scenario]:
    cdi, mixed = {"DEVICE_LIST_STRATEGY": "cdi-cri"}, {"MIG_STRATEGY": "mixed"}
    for fail in ("true", "false"):
        env = {"FAIL_ON_INIT_ERROR": fail}
        yield _two(f"no library, fail {fail}", env=env, library=False)
        yield _two(f"no library, cdi, fail {fail}", env={**env, **cdi}, library=False)
        yield _two(f"init fails, fail {fail}", env=env, init=9)
        yield _two(f"init fails, mixed, fail {fail}", env={**env, **mixed}, init=9)
        yield _two(f"init fails, cdi, fail {fail}", env={**env, **cdi}, init=9)
    for function, code in product(_FUNCTIONS.split(), (3, 999)):
        yield _two(f"fault: {function} {code}", faults={function: code})
    for function, strategy in product(_MIG_FUNCTIONS.split(), ("single", "mixed")):
        name, env = f"fault: {function} 999, {strategy}", {"MIG_STRATEGY": strategy}
        yield Scenario(name=name, machine=UNIFORM, faults={function: 999}, env=env)
