"""CDI specs as hypothesis makes them: any that keep the rules, with odd texts in every place that takes some."""

from hypothesis import strategies as st

from groundplane.node.cdi.model import (
    HOOK_NAMES,
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
)

ODD = (
    "null",
    "~",
    "0:1",
    "0666",
    "1e3",
    "yes",
    "y",
    "<<",
    "=",
    "- a",
    "a: b",
    "#",
    "!x",
    "*a",
    "&a",
    "'",
    '"',
    "\t",
    "é\n",
)
TEXTS = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), st.sampled_from(ODD))
SOME = TEXTS.filter(bool)
NAMES = st.sampled_from(["X", "PATH", "A", "NVIDIA_VISIBLE_DEVICES"])
ENV = st.lists(st.builds("{}={}".format, NAMES, TEXTS), max_size=3).map(tuple)
PATHS = st.sampled_from(["/a", "/a/b", "/a//b", "/a/../b", "/", "//c", "/c/d/e", "rel", "rel/x", "/dev/x"])
UINT32 = st.integers(0, (1 << 32) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)

NODES = st.builds(
    DeviceNode,
    path=PATHS,
    host_path=st.one_of(st.just(""), PATHS),
    type=st.sampled_from(["", "b", "c", "u", "p"]),
    major=st.one_of(st.just(0), INT64),
    minor=st.one_of(st.just(0), INT64),
    file_mode=st.none() | UINT32,
    permissions=st.sampled_from(["", "r", "rw", "rwm", "none"]),
    uid=st.none() | UINT32,
    gid=st.none() | UINT32,
)
MOUNTS = st.builds(
    Mount,
    host_path=SOME,
    container_path=PATHS,
    options=st.lists(st.sampled_from(["ro", "bind", "rbind", "idmap", "ridmap"]), max_size=3).map(tuple),
    type=st.sampled_from(["", "bind", "tmpfs"]),
)
HOOKS = st.builds(
    Hook,
    hook_name=st.sampled_from(sorted(HOOK_NAMES)),
    path=TEXTS.map("/{}".format),
    args=st.lists(TEXTS, max_size=2).map(tuple),
    env=ENV,
    timeout=st.none() | st.integers(1, 1 << 40),
)
RDTS = st.builds(
    IntelRdt,
    clos_id=st.sampled_from(["", "/", "a"]),
    l3_cache_schema=TEXTS,
    mem_bw_schema=TEXTS,
    schemata=st.lists(TEXTS, max_size=2).map(tuple),
    enable_monitoring=st.booleans(),
)
NET_DEVICES = st.lists(
    st.builds(NetDevice, SOME, SOME),
    max_size=2,
    unique_by=(lambda each: each.host_interface_name, lambda each: each.name),
).map(tuple)
EDITS = st.builds(
    ContainerEdits,
    env=ENV,
    device_nodes=st.lists(NODES, max_size=3).map(tuple),
    net_devices=st.just(()) | NET_DEVICES,
    hooks=st.lists(HOOKS, max_size=2).map(tuple),
    mounts=st.lists(MOUNTS, max_size=3).map(tuple),
    intel_rdt=st.none() | RDTS,
    additional_gids=st.lists(UINT32, max_size=3).map(tuple),
)
ANNOTATIONS = st.dictionaries(st.sampled_from(["a", "Gpu.nvidia.com/X_1", "0"]), TEXTS, max_size=2)
DEVICE_NAMES = st.sampled_from(["0", "0:1", "GPU-5a", "all", "gpu0", "1e3", "yes"])
DEVICES = st.lists(
    st.builds(Device, DEVICE_NAMES, EDITS.filter(bool), ANNOTATIONS),
    min_size=1,
    max_size=3,
    unique_by=lambda device: device.name,
).map(tuple)
SPECS = st.builds(
    Spec,
    kind=st.sampled_from(["nvidia.com/gpu", "x/y", "k8s.device-plugin.nvidia.com/gpu", "a/gpu.coherent"]),
    annotations=ANNOTATIONS,
    devices=DEVICES,
    container_edits=EDITS,
)
