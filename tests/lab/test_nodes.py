"""Node files: defaults, presets and errors that say place, finding and remedy."""

from pathlib import Path

import pytest

from groundplane.lab import nodes
from groundplane.lab.host import HostError, SimulatedHost
from groundplane.node.hostroot import HostRoot

FILE = """
nodes:
  - name: a
    gpus: [{model: H100, count: 2}, {model: T4, memoryMiB: 100, pciId: "abcd", migCapable: true}]
    kernel: 5.14.0-570.el9.x86_64
    os: {id: rhel, versionId: "9.6"}
    runtime: {name: cri-o, version: 1.33.1}
    hostDriver: 580.126.20
    labels: {rack: r1}
    taints: [{key: nvidia.com/gpu, effect: NoSchedule}]
    capacity: {cpu: "8"}
  - name: b
"""


def parse(text: str) -> list[nodes.NodeSpec]:
    return nodes.parse(nodes.yaml_document(text, "nodes.yaml"), "nodes.yaml")


def test_fields_and_presets(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(FILE)
    first, second = nodes.load(path)
    assert [(card.product, card.memory_mib, card.pci_id, card.mig) for card in first.cards()] == [
        ("NVIDIA H100 80GB HBM3", 81559, "2330", True),
        ("NVIDIA H100 80GB HBM3", 81559, "2330", True),
        ("Tesla T4", 100, "abcd", True),
    ]
    assert (first.os.version_id, first.host_driver, first.taints[0].effect) == ("9.6", "580.126.20", "NoSchedule")
    assert (second.gpus, second.os.id, second.runtime.name, second.nfd) == ((), "ubuntu", "containerd", True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes: [", r"(?s)nodes.yaml is not valid YAML.*line"),
        ("- a", r"nodes.yaml: expected a mapping, found list"),
        ("nodes: []", "at least one node"),
        ("nodes: [{name: a, gpu: 1}]", r"nodes.yaml: nodes\[0\]|unknown field `gpu`"),
        ("nodes: [{name: a, kernel: 6}]", r"nodes\[0\]\.kernel: Expected `str`"),
        ("nodes: [{name: a, capacity: {cpu: lots}}]", r"nodes\[0\]\.capacity\.cpu: 'lots' is no quantity"),
        ("nodes: [{name: a}, {name: a}]", r"nodes\[1\]\.name: 'a' is used twice"),
        ("nodes: [{name: A}]", r"nodes\[0\]\.name: 'A' is no DNS name"),
        (
            "nodes: [{name: a, gpus: [{model: H1000}]}]",
            r"nodes\[0\]\.gpus\[0\]\.model: 'H1000' is not known; known are A10",
        ),
        ("nodes: [{name: a, gpus: [{model: T4, count: 0}]}]", r"count: 0 GPUs"),
        ("nodes: [{name: a, gpus: [{model: T4, count: 17}]}]", "more than 16 GPUs"),
        ("nodes: [{name: a, gpus: [{model: T4, pciId: '12'}]}]", "four hexadecimal digits"),
        ("nodes: [{name: a, gpus: [{model: T4, memoryMiB: -1}]}]", "memoryMiB"),
        ("nodes: [{name: a, runtime: {name: podman}}]", r"runtime\.name: 'podman'; expected one of containerd"),
        ("nodes: [{name: a, hostDriver: latest}]", "hostDriver: 'latest' is no driver version"),
        ("nodes: [{name: a, taints: [{key: k, effect: Never}]}]", r"taints\[0\]\.effect"),
    ],
)
def test_errors(text: str, expected: str) -> None:
    with pytest.raises(nodes.NodeFileError, match=expected):
        parse(text)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(nodes.NodeFileError, match=r"nope\.yaml cannot be read"):
        nodes.load(tmp_path / "nope.yaml")


def test_generated_nodes() -> None:
    assert [node.name for node in nodes.generate(2)] == ["gpu-1", "gpu-2"]
    with pytest.raises(nodes.NodeFileError, match="1 or more"):
        nodes.generate(0)


def test_the_reference_page_lists_every_model_and_field() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/node-file.md").read_text()
    assert not [name for name in (*nodes.MODELS, *nodes.ALIASES) if f"`{name}`" not in text]
    fields = {
        field.encode_name
        for struct in (nodes.NodeSpec, nodes.GpuSpec)
        for field in nodes.msgspec.structs.fields(struct)
    }
    assert not [name for name in fields if f"`{name}`" not in text]


# --- the host made of a description -----------------------------------------------------------------------------------


def host(tmp_path: Path, **fields: object) -> SimulatedHost:
    return SimulatedHost(HostRoot(tmp_path), nodes.NodeSpec("n", **fields))  # type: ignore[arg-type]


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("h")


def test_host_files(short: Path) -> None:
    made = host(short, gpus=(nodes.GpuSpec("L40S", 2),))
    assert [device["device"] for device in made.pci_devices()] == ["0x26b9", "0x26b9"]
    assert made.root.read_text("/proc/sys/kernel/osrelease") == "6.8.0-60-generic\n"
    assert 'VERSION_ID="24.04"' in made.root.read_text("/etc/os-release")
    assert (made.modules(), made.driver_version, made.has_host_driver()) == ([], None, False)
    assert made.gpus[0].uuid != made.gpus[1].uuid
    assert host(short, gpus=(nodes.GpuSpec("L40S", 2),)).gpus == made.gpus


def test_modules_and_devices(short: Path) -> None:
    made = host(short, gpus=(nodes.GpuSpec("T4"),))
    made.load_module("nvidia", version="580.1.2")
    made.load_module("nvidia", version="ignored")
    made.create_device_nodes()
    assert (made.modules(), made.driver_version) == (["nvidia"], "580.1.2")
    assert "/dev/nvidia0" in made.device_nodes()
    made.root.write_atomic("/sys/module/nvidia/refcnt", "2\n")
    with pytest.raises(HostError, match="in use"):
        made.unload_module("nvidia")
    made.boot()
    assert (made.modules(), made.device_nodes(), made.loaded("nvidia")) == ([], [], False)


def test_a_kernel_that_was_installed_runs_after_a_boot(short: Path) -> None:
    made = host(short, kernel="6.8.0-60-generic")
    made.install_kernel("6.8.0-61-generic")
    assert made.kernel == "6.8.0-60-generic"
    made.boot()
    assert made.kernel == "6.8.0-61-generic"


def test_another_process_finds_the_machine_as_it_is(short: Path) -> None:
    made = host(short / "n", gpus=(nodes.GpuSpec("T4"),))
    made.load_module("nvidia", version="580.1.2")
    found = SimulatedHost.attached(short / "n")
    assert (found.spec, found.gpus, found.driver_version) == (made.spec, made.gpus, "580.1.2")
    with pytest.raises(HostError, match="no node 'm'; there are n"):
        SimulatedHost.attached(short / "m")


def test_host_driver_survives_a_boot(short: Path) -> None:
    made = host(short, gpus=(nodes.GpuSpec("T4"),), host_driver="550.54.15")
    made.boot()
    assert (made.has_host_driver(), made.driver_version) == (True, "550.54.15")


@pytest.mark.parametrize(
    ("runtime", "path", "text"),
    [
        (
            "containerd",
            "/etc/containerd/config.toml",
            '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\nBinaryName = "/x"\n',
        ),
        ("cri-o", "/etc/crio/crio.conf.d/99.conf", '[crio.runtime.runtimes.nvidia]\nruntime_path = "/x"\n'),
        ("docker", "/etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "/x"}}}'),
    ],
)
def test_runtime_reads_its_configuration_on_restart_only(short: Path, runtime: str, path: str, text: str) -> None:
    made = host(short, runtime=nodes.RuntimeSpec(runtime))
    made.root.write_atomic(path, text)
    assert "nvidia" not in made.runtime_handlers
    made.restart_runtime()
    assert made.runtime_handlers["nvidia"] == "/x"
    made.root.write_atomic(path, "[[[")
    with pytest.raises(HostError, match="refuses"):
        made.restart_runtime()


def test_a_too_long_folder_is_refused_with_advice(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 90)
    with pytest.raises(HostError, match="use a shorter work folder"):
        SimulatedHost(HostRoot(folder), nodes.NodeSpec("n"))
