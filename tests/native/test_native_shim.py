"""The runtime wrapper over a low-level runtime that shows what it gets (contracts/toolkit-cdi.md 4.5, 4.6 and 6)."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

RUNTIME = """#!/bin/sh
printf '%s\\n' "$0" "$@" > {folder}/arguments
echo "$PATH" > {folder}/path
echo out; echo err >&2
exit 3
"""
"""A low-level runtime: writes down its arguments and ends with a status of its own."""

GPU = "runtime.nvidia.com/gpu"
UUIDS = ("GPU-aaaa", "GPU-bbbb")
MIG = "MIG-cccc"


def spec(kind: str, **devices: str) -> dict[str, Any]:
    """A CDI spec in which each device, and each request of the spec, leaves a variable in the container."""
    named = [{"name": name, "containerEdits": {"env": [f"D_{edit}=1"]}} for name, edit in devices.items()]
    common = kind.translate(str.maketrans("./-", "___"))
    return {"cdiVersion": "0.6.0", "kind": kind, "devices": named, "containerEdits": {"env": [f"C_{common}=1"]}}


SHIM_SPECS = {
    "gpu.json": spec(
        GPU,
        **{
            "0": "g0",
            "1": "g1",
            UUIDS[0]: "g0",
            UUIDS[1]: "g1",
            "1:0": "m10",
            MIG: "m10",
            "all": "all",
            "none": "none",
        },
    ),
    "gds.json": spec("nvidia.com/gds", all="gds"),
    "gdrcopy.json": spec("nvidia.com/gdrcopy", all="gdrcopy"),
    "imex.json": spec("nvidia.com/imex-channel", **{"0": "i0", "7": "i7"}),
}
"""What the toolkit writes beside config.toml; the node has neither MOFED nor NVSwitch."""

NODE_SPECS = {
    "nvidia.json": spec("nvidia.com/gpu", **{"0": "n0", "1": "n1", "all": "nall"}),
    "management.json": spec("management.nvidia.com/gpu", all="mall"),
    "short.json": spec("x/y", z="short"),
}
"""CDI specs of the node itself."""

PROPERTIES = {
    "driver": "580.95.05",
    "cuda": "13.0",
    "gpus": [
        {"uuid": UUIDS[0], "arch": "9.0", "brand": "tesla"},
        {"uuid": UUIDS[1], "arch": "8.9", "brand": "geforce"},
    ],
    "aliases": {"MIG-GPU-bbbb/3/0": "1:0"},
}


@dataclass
class Node:
    """A node with the toolkit installed, and a bundle."""

    folder: Path
    toolkit: Path
    bundle: Any

    def configure(self, text: str = "", runtime: str = "", cdi: str = "", features: str = "") -> None:
        """Write config.toml with these lines at the top, and in [nvidia-container-runtime], its modes.cdi, features."""
        (self.folder / "config.toml").write_text(
            f'{text}\n[nvidia-container-runtime]\nruntimes = ["runc-of-test"]\nmodules-file = "{self.folder}/modules"\n'
            f"{runtime}\n[nvidia-container-runtime.modes.cdi]\n"
            f'spec-dirs = ["{self.folder}/etc-cdi", "{self.folder}/run-cdi"]\n'
            f"{cdi}\n[features]\n{features}\n"
        )

    def specs(self, folder: str, specs: Mapping[str, Any]) -> None:
        """Write CDI specs."""
        (self.folder / folder).mkdir(exist_ok=True)
        for name, content in specs.items():
            (self.folder / folder / name).write_text(json.dumps(content))

    def __call__(
        self, *arguments: str, name: str = "nvidia-container-runtime", **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the wrapper, by default to create the bundle's container."""
        environment = {"PATH": f"{self.folder}/bin", "NVIDIA_CTK_CONFIG_FILE_PATH": f"{self.folder}/config.toml", **env}
        command = [str(self.toolkit / name), *(arguments or ("create", "--bundle", str(self.bundle.folder), "c"))]
        (self.folder / "arguments").unlink(missing_ok=True)
        return subprocess.run(
            command, env=environment, cwd=self.folder, text=True, capture_output=True, timeout=60, check=False
        )

    @property
    def arguments(self) -> list[str] | None:
        """What the low-level runtime was started with; None if it was not."""
        file = self.folder / "arguments"
        return file.read_text().splitlines() if file.exists() else None

    def injected(self, done: subprocess.CompletedProcess[str]) -> set[str]:
        """The devices that the container got, by the variables they leave."""
        assert done.returncode == 3, done.stderr
        env = self.bundle.read()["process"]["env"]
        return {name[2:] for name in (line.partition("=")[0] for line in env) if name.startswith("D_")}


@pytest.fixture
def node(tmp_path: Path, toolkit: Path, bundle: Any) -> Node:
    """A node with GPUs, specs and a loaded driver."""
    made = Node(tmp_path, toolkit, bundle)
    (tmp_path / "bin").mkdir()
    runtime = tmp_path / "bin/runc-of-test"
    runtime.write_text(RUNTIME.format(folder=tmp_path))
    runtime.chmod(0o755)
    (tmp_path / "modules").write_text("nvidia_uvm 1 2\nnvidia 123 4 nvidia_uvm, Live 0x0\n")
    made.configure()
    made.specs("cdi", {**SHIM_SPECS, "properties.json": PROPERTIES})
    made.specs("etc-cdi", NODE_SPECS)
    return made


def process(*env: str, bounding: Sequence[str] = ()) -> dict[str, Any]:
    """A container's process with these variables."""
    made: dict[str, Any] = {"args": ["sh"], "cwd": "/", "env": ["PATH=/bin", *env], "user": {"uid": 0, "gid": 0}}
    return {**made, "capabilities": {"bounding": list(bounding), "effective": ["CAP_SYS_ADMIN"]}}


def volume(name: str, source: str = "/dev/null") -> dict[str, Any]:
    """A mount that asks for a device."""
    return {"source": source, "destination": f"/var/run/nvidia-container-devices/{name}", "type": "bind"}


PRIVILEGED = ("CAP_CHOWN", "CAP_SYS_ADMIN")

# --- 6.1: what is intercepted, and the modes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["--root", "/r", "state", "c"],
        ["--log", "create", "start", "c"],
        ["--root=/r", "--systemd-cgroup", "--debug", "delete", "--force", "create"],
        ["kill", "create", "9"],
        ["exec", "--cwd", "create", "c", "create", "--bundle", "."],
        ["--version"],
        [],
    ],
)
def test_everything_but_create_passes(node: Node, arguments: list[str]) -> None:
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=nothing-known"))
    node.configure(runtime='mode = "no mode at all"')
    (node.folder / "modules").unlink()
    done = subprocess.run(
        [str(node.toolkit / "nvidia-container-runtime"), *arguments],
        env={"PATH": f"{node.folder}/bin", "NVIDIA_CTK_CONFIG_FILE_PATH": f"{node.folder}/config.toml"},
        cwd=node.bundle.folder, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert node.arguments == [f"{node.folder}/bin/runc-of-test", *arguments]


@pytest.mark.parametrize(
    "arguments",
    [
        "create --bundle {} c",
        "create --bundle={} c",
        "create -b {} c",
        "create -b={} --pid-file create c",
        "create -bundle {} c",
        "create c --bundle {}",
        "--root /run/create --log-format json --log {}/log create --console-socket x --bundle {} c",
        "--systemd-cgroup --rootless auto --criu x create --no-pivot --bundle {} c",
        "--cgroup-manager=systemd --log-level debug create --preserve-fds 2 --bundle {} c",
    ],
)
def test_create_is_found_as_runc_and_crun_find_it(node: Node, arguments: str) -> None:
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=0"))
    assert node.injected(node(*arguments.format(*[node.bundle.folder] * 2).split())) == {"g0"}


def test_without_a_bundle_option_it_is_the_working_folder(node: Node) -> None:
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=0"))
    command = [str(node.toolkit / "nvidia-container-runtime"), "create", "c"]
    env = {"PATH": f"{node.folder}/bin", "NVIDIA_CTK_CONFIG_FILE_PATH": f"{node.folder}/config.toml"}
    done = subprocess.run(command, env=env, cwd=node.bundle.folder, text=True, capture_output=True, check=False)
    assert node.injected(done) == {"g0"}


ANNOTATED = {"cdi.k8s.io/plugin_0": "nvidia.com/gpu=1"}
MODES: list[tuple[str, str, str, dict[str, str], set[str]]] = [  # name, mode, devices asked for, annotations, result
    ("nvidia-container-runtime", "auto", "0", {}, {"g0"}),
    ("nvidia-container-runtime", "auto", "nvidia.com/gpu=0,nvidia.com/gpu=1", {}, {"n0", "n1"}),
    ("nvidia-container-runtime", "auto", "void", ANNOTATED, {"n1"}),
    ("nvidia-container-runtime", "auto", "0", {"cdi.k8s.io/p_0": "unqualified"}, {"g0"}),
    ("nvidia-container-runtime", "cdi", "0", {}, {"n0"}),
    ("nvidia-container-runtime", "cdi", "all", {}, {"nall"}),
    ("nvidia-container-runtime", "cdi", "management.nvidia.com/gpu=all,0", {}, {"mall", "n0"}),
    ("nvidia-container-runtime", "cdi", "0", ANNOTATED, {"n1"}),
    ("nvidia-container-runtime", "cdi", "x/y=z", {}, {"short"}),
    ("nvidia-container-runtime", "cdi", f"{GPU}=0", {}, {"g0"}),
    ("nvidia-container-runtime", "jit-cdi", "1", {}, {"g1"}),
    ("nvidia-container-runtime", "jit-cdi", "1", ANNOTATED, {"g1"}),
    ("nvidia-container-runtime", "jit-cdi", f"{GPU}=1", {}, {"g1"}),
    ("nvidia-container-runtime", "jit-cdi", "nvidia.com/gpu=0", {}, {"n0"}),
    ("nvidia-container-runtime", "csv", "0,1", ANNOTATED, {"g0", "g1"}),
    ("nvidia-container-runtime", "legacy", "all", ANNOTATED, {"all"}),
    ("nvidia-container-runtime.cdi", "legacy", "0", {}, {"n0"}),
    ("nvidia-container-runtime.legacy", "cdi", "0", {}, {"g0"}),
    ("nvidia-container-runtime.real", "cdi", "0", {}, {"n0"}),
    ("nvidia-container-runtime.cdi.real", "auto", "0", {}, {"n0"}),
]


@pytest.mark.parametrize(("name", "mode", "devices", "annotations", "result"), MODES)
def test_modes(node: Node, name: str, mode: str, devices: str, annotations: dict[str, str], result: set[str]) -> None:
    node.configure(runtime=f'mode = "{mode}"')
    node.bundle.write(process=process(f"NVIDIA_VISIBLE_DEVICES={devices}"), annotations=annotations)
    assert node.injected(node(name=name)) == result


def test_another_mode_is_invalid(node: Node) -> None:
    node.configure(runtime='mode = "other"')
    done = node()
    assert (done.returncode, node.arguments) == (1, None)
    assert 'invalid mode "other"' in done.stderr


def test_the_default_kind_and_the_prefixes_are_those_of_the_configuration(node: Node) -> None:
    node.configure(
        runtime='mode = "cdi"', cdi='default-kind = "management.nvidia.com/gpu"\nannotation-prefixes = ["a/", "b/"]'
    )
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=all"), annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0"})
    assert node.injected(node()) == {"mall"}
    node.bundle.write(process=process(), annotations={"b/1": "nvidia.com/gpu=0, x/y=z", "a/1": "nvidia.com/gpu=1"})
    assert node.injected(node()) == {"n1", "n0", "short"}
    env = node.bundle.read()["process"]["env"]
    assert [line for line in env if line.startswith("D_")] == ["D_n1=1", "D_n0=1", "D_short=1"]  # keys sorted


def test_automatic_devices_do_not_mix_with_others(node: Node) -> None:
    before = node.bundle.path.read_bytes()
    node.bundle.write(process=process(f"NVIDIA_VISIBLE_DEVICES={GPU}=0,nvidia.com/gpu=0"))
    before = node.bundle.path.read_bytes()
    done = node()
    assert "requesting a CDI device with vendor 'runtime.nvidia.com' is not supported" in done.stderr
    assert (done.returncode, node.arguments, node.bundle.path.read_bytes()) == (1, None, before)


@pytest.mark.parametrize("mode", ["cdi", "jit-cdi", "csv", "legacy"])
def test_nvidias_prestart_hook_goes_and_others_stay(node: Node, mode: str) -> None:
    others = {
        "createRuntime": [{"path": "/usr/bin/nvidia-container-runtime-hook"}],
        "prestart": [{"path": "/bin/mine"}],
    }
    theirs = [{"path": f"/usr/bin/{name}"} for name in ("nvidia-container-runtime-hook", "nvidia-container-toolkit")]
    node.configure(runtime=f'mode = "{mode}"')
    node.bundle.write(
        process=process("NVIDIA_VISIBLE_DEVICES=0"), hooks={**others, "prestart": [*theirs, *others["prestart"]]}
    )
    assert node().returncode == 3
    assert node.bundle.read()["hooks"] == others


# --- 6.2: what is asked for ------------------------------------------------------------------------------------------

LEGACY = ("CUDA_VERSION=12.4.1",)
ENV: list[tuple[tuple[str, ...], set[str]]] = [
    ((), set()),
    (LEGACY, {"all"}),
    ((*LEGACY, "NVIDIA_REQUIRE_CUDA=cuda>=12.4"), set()),
    ((*LEGACY, "NVIDIA_VISIBLE_DEVICES="), set()),
    (("NVIDIA_VISIBLE_DEVICES=",), set()),
    (("NVIDIA_VISIBLE_DEVICES= , ,",), set()),
    (("NVIDIA_VISIBLE_DEVICES=void",), set()),
    (("NVIDIA_VISIBLE_DEVICES=0,void",), set()),
    (("NVIDIA_VISIBLE_DEVICES=none",), {"none"}),
    (("NVIDIA_VISIBLE_DEVICES=3,all",), {"all"}),
    (("NVIDIA_VISIBLE_DEVICES=none,all",), {"none"}),
    (("NVIDIA_VISIBLE_DEVICES=all,none",), {"all"}),
    (("NVIDIA_VISIBLE_DEVICES=0",), {"g0"}),
    (("NVIDIA_VISIBLE_DEVICES= 0 ,, 1",), {"g0", "g1"}),
    (("NVIDIA_VISIBLE_DEVICES=0,0",), {"g0"}),
    (("NVIDIA_VISIBLE_DEVICES=1:0",), {"m10"}),
    ((f"NVIDIA_VISIBLE_DEVICES={UUIDS[1]}",), {"g1"}),
    ((f"NVIDIA_VISIBLE_DEVICES={MIG}",), {"m10"}),
    (("NVIDIA_VISIBLE_DEVICES=MIG-GPU-bbbb/3/0",), {"m10"}),
    (("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=1"), {"g1"}),
]


@pytest.mark.parametrize(("env", "result"), ENV)
def test_devices_by_variable(node: Node, env: tuple[str, ...], result: set[str]) -> None:
    node.bundle.write(process=process(*env))
    before = node.bundle.path.read_bytes()
    assert node.injected(node()) == result
    assert (node.bundle.path.read_bytes() == before) == (not result)


@pytest.mark.parametrize(
    ("swarm", "env", "result"),
    [
        ("DOCKER_RESOURCE_GPU", ["DOCKER_RESOURCE_GPU=1", "NVIDIA_VISIBLE_DEVICES=0"], {"g1"}),
        ("DOCKER_RESOURCE_GPU", ["NVIDIA_VISIBLE_DEVICES=0"], {"g0"}),
        ("A, B", ["B=1", "A=0"], {"g0", "g1"}),
        ("A,B", ["B=", "NVIDIA_VISIBLE_DEVICES=0"], set()),
    ],
)
def test_swarm_resources_go_before_the_variable(node: Node, swarm: str, env: list[str], result: set[str]) -> None:
    node.configure(f'swarm-resource = "{swarm}"')
    node.bundle.write(process=process(*env))
    assert node.injected(node()) == result


@pytest.mark.parametrize(
    ("accepted", "bounding", "result"),
    [("true", (), {"g0"}), ("false", (), set()), ("false", PRIVILEGED, {"g0"}), ("true", PRIVILEGED, {"g0"})],
)
def test_variables_of_unprivileged_containers_count_where_they_may(
    node: Node, accepted: str, bounding: tuple[str, ...], result: set[str]
) -> None:
    node.configure(f"accept-nvidia-visible-devices-envvar-when-unprivileged = {accepted}")
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=0", bounding=bounding))
    done = node()
    assert node.injected(done) == result
    assert ("Ignoring devices requested by environment variable(s) in unprivileged" in done.stderr) == (not result)


MOUNTS: list[tuple[list[dict[str, Any]], set[str]]] = [
    ([volume("0")], {"g0"}),
    ([volume("0"), volume("1"), volume("0/")], {"g0", "g1"}),
    ([volume(UUIDS[0])], {"g0"}),
    ([volume("0", source="/dev/zero")], {"m10"}),
    ([{**volume("0"), "destination": "/var/run/nvidia-container-devices-other/0"}], {"m10"}),
    ([volume("")], {"m10"}),
    ([volume("cdi/nvidia.com/gpu/1")], {"n1"}),
    ([volume("cdi/nvidia.com/gpu=1")], {"n1"}),
    ([volume("cdi/nonsense")], {"m10"}),
    ([volume("imex/7")], {"m10", "i7"}),
    ([volume("0"), volume("imex/channel7")], {"g0", "i7"}),
    ([volume("0"), volume("imex/all")], {"g0", "i0", "i7"}),
]


@pytest.mark.parametrize(("mounts", "result"), MOUNTS)
def test_devices_by_volume_go_before_variables(node: Node, mounts: list[dict[str, Any]], result: set[str]) -> None:
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=1:0"), mounts=mounts)
    node.configure("accept-nvidia-visible-devices-as-volume-mounts = true")
    assert node.injected(node()) == result
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=1:0"), mounts=mounts)
    node.configure("accept-nvidia-visible-devices-as-volume-mounts = false")
    assert node.injected(node()) == {"m10"}


# --- 6.3: capabilities, gated devices, IMEX --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "bounding", "error"),
    [
        ([], (), ""),
        (["NVIDIA_DRIVER_CAPABILITIES="], (), ""),
        (["NVIDIA_DRIVER_CAPABILITIES=all"], (), ""),
        (["NVIDIA_DRIVER_CAPABILITIES=compute, utility,graphics,compat32,video,display,ngx"], (), ""),
        (["NVIDIA_DRIVER_CAPABILITIES=compute,other"], (), "unsupported capabilities found in 'compute,other'"),
        (["NVIDIA_MIG_CONFIG_DEVICES=all"], (), "cannot set NVIDIA_MIG_CONFIG_DEVICES in non privileged container"),
        (["NVIDIA_MIG_MONITOR_DEVICES=0"], (), "cannot set NVIDIA_MIG_MONITOR_DEVICES in non privileged container"),
        (["NVIDIA_MIG_MONITOR_DEVICES=0"], PRIVILEGED, ""),
    ],
)
def test_capabilities_are_checked_in_mode_legacy_only(
    node: Node, env: list[str], bounding: tuple[str, ...], error: str
) -> None:
    node.configure('supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"')
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=0", *env, bounding=bounding))
    done = node(name="nvidia-container-runtime.legacy")
    assert (done.returncode == 1) == bool(error), done.stderr
    assert error in done.stderr
    assert node.injected(node()) == {"g0"}


GATED: list[tuple[list[str], set[str], str]] = [
    (["NVIDIA_GDS=enabled"], {"gds"}, ""),
    (["NVIDIA_GDS=Enabled", "NVIDIA_GDRCOPY=true"], set(), ""),
    (["NVIDIA_GDS=enabled", "NVIDIA_GDRCOPY=enabled"], {"gds", "gdrcopy"}, ""),
    (["NVIDIA_MOFED=enabled"], set(), "passing over nvidia.com/mofed=all: this node has no such devices"),
    (["NVIDIA_NVSWITCH=enabled"], set(), "passing over nvidia.com/nvswitch=all: this node has no such devices"),
    (["NVIDIA_IMEX_CHANNELS=0,7"], {"i0", "i7"}, ""),
    (["NVIDIA_IMEX_CHANNELS=channel7,7"], {"i7"}, ""),
    (["NVIDIA_IMEX_CHANNELS=all"], set(), ""),
    (["NVIDIA_IMEX_CHANNELS="], set(), ""),
]


@pytest.mark.parametrize(("env", "result", "warning"), GATED)
@pytest.mark.parametrize("mode", ["jit-cdi", "csv", "legacy"])
def test_gated_devices(node: Node, mode: str, env: list[str], result: set[str], warning: str) -> None:
    node.configure(runtime=f'mode = "{mode}"')
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=0", *env))
    done = node()
    assert node.injected(done) == {"g0"} | result
    assert warning in done.stderr


def test_gates_open_nothing_without_a_device_and_nothing_in_mode_cdi(node: Node) -> None:
    env = ("NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=0")
    node.bundle.write(process=process(*env))
    before = node.bundle.path.read_bytes()
    assert node.injected(node()) == set()
    assert node.bundle.path.read_bytes() == before
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=0", *env))
    assert node.injected(node(name="nvidia-container-runtime.cdi")) == {"n0"}


@pytest.mark.parametrize(
    ("channels", "error"),
    [
        ("x", 'invalid IMEX channel "x": use a number from 0 to 1048575'),
        ("1048576", 'invalid IMEX channel "1048576"'),
        ("-1", 'invalid IMEX channel "-1"'),
        ("3", "IMEX channel 3 does not exist on this node"),
    ],
)
def test_an_imex_channel_that_cannot_be_is_an_error(node: Node, channels: str, error: str) -> None:
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_IMEX_CHANNELS={channels}"))
    done = node()
    assert (done.returncode, node.arguments) == (1, None)
    assert error in done.stderr
    node.configure(features="ignore-imex-channel-requests = true")
    assert node.injected(node()) == {"g0"}


# --- 6.4: requirements -----------------------------------------------------------------------------------------------

REQUIREMENTS: list[tuple[list[str], str, str]] = [  # variables, devices, error
    (["NVIDIA_REQUIRE_CUDA=cuda>=12.4"], "0", ""),
    (["NVIDIA_REQUIRE_CUDA=cuda>=13.1"], "0", "unsatisfied condition: cuda>=13.1"),
    (["NVIDIA_REQUIRE_CUDA=cuda>=13.1 driver>=580"], "0", ""),
    (["NVIDIA_REQUIRE_CUDA=cuda>=13.1 brand=tesla,driver>=580,driver<581"], "0", ""),
    (["NVIDIA_REQUIRE_CUDA=cuda>=13.1 brand=tesla,driver>=580,driver<581"], "1", "cuda>=13.1 or brand=tesla"),
    (["NVIDIA_REQUIRE_CUDA=cuda>=13.1 brand=tesla"], "all", "unsatisfied condition"),
    (["NVIDIA_REQUIRE_CUDA=cuda>=12", "NVIDIA_REQUIRE_OTHER=arch>9.0"], "0", "unsatisfied condition: arch>9.0"),
    (["NVIDIA_REQUIRE_A=arch=8.9"], UUIDS[1], ""),
    (["NVIDIA_REQUIRE_A=arch=8.9"], "1:0", ""),
    (["NVIDIA_REQUIRE_A=arch=8.9"], "MIG-GPU-bbbb/3/0", ""),
    (["NVIDIA_REQUIRE_A=arch=8.9"], MIG, "unsatisfied condition"),  # of any GPU
    (["NVIDIA_REQUIRE_A=arch=1"], "none", ""),  # no GPU, no architecture
    (["NVIDIA_REQUIRE_A=driver!=580.95.05"], "none", "unsatisfied condition"),
    (["NVIDIA_REQUIRE_A=driver=580.95.5"], "0", ""),
    (["NVIDIA_REQUIRE_A=unknown>=3"], "0", ""),
    (["NVIDIA_REQUIRE_A="], "0", ""),
    (["NVIDIA_REQUIRE_JETPACK=csv-mounts=all", "NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS=x"], "0", ""),
    (["NVIDIA_REQUIRE_A=cuda"], "0", "invalid constraint: cuda"),
    (["NVIDIA_REQUIRE_A=cuda>=12 cuda>=x"], "0", "invalid constraint: cuda>=x"),
    (["NVIDIA_REQUIRE_A=cuda!12"], "0", "invalid constraint: cuda!12"),
    (["NVIDIA_REQUIRE_A=cuda>=99", "NVIDIA_DISABLE_REQUIRE=true"], "0", ""),
    (["NVIDIA_REQUIRE_A=cuda>=99", "NVIDIA_DISABLE_REQUIRE=1"], "0", ""),
    (["NVIDIA_REQUIRE_A=cuda>=99", "NVIDIA_DISABLE_REQUIRE=no"], "0", "unsatisfied"),
    (["CUDA_VERSION=12.4.1"], "0", ""),
    (["CUDA_VERSION=13.1.0"], "0", "unsatisfied condition: cuda>=13.1"),
    (["CUDA_VERSION=nonsense"], "0", "invalid CUDA version nonsense"),
]


@pytest.mark.parametrize(("env", "devices", "error"), REQUIREMENTS)
@pytest.mark.parametrize("mode", ["csv", "legacy"])
def test_requirements(node: Node, mode: str, env: list[str], devices: str, error: str) -> None:
    node.configure(runtime=f'mode = "{mode}"')
    node.bundle.write(process=process(f"NVIDIA_VISIBLE_DEVICES={devices}", *env))
    done = node()
    assert (done.returncode == 1) == bool(error), done.stderr
    assert error in done.stderr
    node.configure("disable-require = true", runtime=f'mode = "{mode}"')
    assert node().returncode == 3


@pytest.mark.parametrize("mode", ["jit-cdi", "cdi", "auto"])
def test_requirements_do_not_count_in_other_modes(node: Node, mode: str) -> None:
    node.configure(runtime=f'mode = "{mode}"')
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=99"))
    assert node().returncode == 3


# --- devices that are not there --------------------------------------------------------------------------------------


def test_an_unknown_device_is_named_with_what_there_is(node: Node) -> None:
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=0,9"))
    before = node.bundle.path.read_bytes()
    done = node("--log", "l", "--log-format", "json", "create", "-b", str(node.bundle.folder), "c")
    assert (done.returncode, node.arguments, node.bundle.path.read_bytes()) == (1, None, before)
    reason = json.loads((node.folder / "l").read_text())
    assert reason["level"] == "error"
    assert 'unknown device "9": this node offers 0, 1, 1:0, GPU-aaaa, GPU-bbbb, MIG-cccc, all, none' in reason["msg"]
    assert "the toolkit's pod on this node refreshes" in reason["msg"]
    assert reason["msg"] in done.stderr


def test_without_the_toolkits_specs_that_is_said(node: Node) -> None:
    for file in (node.folder / "cdi").iterdir():
        file.unlink()
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=0"))
    assert "there are no CDI specs for the NVIDIA runtime in" in node().stderr
    node.specs("cdi", {"gpu.json": {"kind": GPU, "nonsense": 1}})
    assert "field nonsense not found" in node().stderr


def test_unresolvable_devices_of_mode_cdi_are_listed_with_bad_specs(node: Node) -> None:
    node.specs("run-cdi", {"bad.json": {"cdiVersion": "9.9.9", "kind": "a/b"}})
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=0,8,nvidia.com/gpu=9"))
    done = node(name="nvidia-container-runtime.cdi")
    assert "unresolvable CDI devices nvidia.com/gpu=8, nvidia.com/gpu=9" in done.stderr
    assert "run-cdi/bad.json" in done.stderr
    assert node.arguments is None


# --- the driver, the low-level runtime, the configuration ------------------------------------------------------------


@pytest.mark.parametrize("modules", ["nvidia_uvm 1 2\nnvidiafb 1\n", "", None])
def test_without_the_driver_the_container_starts_as_it_is(node: Node, modules: str | None) -> None:
    (node.folder / "modules").unlink()
    if modules is not None:
        (node.folder / "modules").write_text(modules)
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=unknown"))
    before = node.bundle.path.read_bytes()
    done = node()
    assert (done.returncode, node.bundle.path.read_bytes()) == (3, before)
    assert "the nvidia driver is not loaded" in done.stderr


def test_the_first_runtime_that_is_there_is_taken(node: Node) -> None:
    own = node.toolkit / "nvidia-container-runtime"
    (node.folder / "bin/plain").write_text("not executable")
    candidates = [str(own), "nvidia-container-runtime", "plain", "/no/runc", "runc-of-test", "sh"]
    node.configure()
    text = (node.folder / "config.toml").read_text()
    (node.folder / "config.toml").write_text(text.replace('["runc-of-test"]', json.dumps(candidates)))
    assert node("start", "c").returncode == 3
    assert node.arguments == [f"{node.folder}/bin/runc-of-test", "start", "c"]
    assert (node.folder / "path").read_text().startswith(f"{node.toolkit}:{node.folder}/bin:")


def test_without_a_runtime_that_is_said(node: Node) -> None:
    text = (node.folder / "config.toml").read_text()
    (node.folder / "config.toml").write_text(text.replace("runc-of-test", "no-runtime"))
    for arguments in (("start", "c"), ()):
        done = node(*arguments)
        assert done.returncode == 1
        assert "no runtime binary found from candidate list: [no-runtime]" in done.stderr


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("mode = ", "is not valid; correct it, or restart the toolkit's pod"),
        ('[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"', "nvidia-container-cli.ldconfig is"),
        ("disable-require = 7", "is not valid"),
    ],
)
def test_a_configuration_that_is_wrong_is_named(node: Node, text: str, error: str) -> None:
    (node.folder / "config.toml").write_text(text)
    done = node()
    assert (done.returncode, node.arguments) == (1, None)
    assert error in done.stderr
    assert f"{node.folder}/config.toml" in done.stderr


def test_with_a_wrong_configuration_containers_can_still_be_removed(node: Node) -> None:
    (node.folder / "config.toml").write_text("mode = ")
    (node.folder / "bin/runc").symlink_to("runc-of-test")
    done = node("--log", "l", "delete", "c")
    assert (done.returncode, done.stderr) == (3, "err\n")
    assert node.arguments == [f"{node.folder}/bin/runc", "--log", "l", "delete", "c"]
    assert "is not valid" in (node.folder / "l").read_text()
    assert node().returncode == 1


def test_ldconfig_of_the_container_may_be_allowed(node: Node) -> None:
    text = (
        (node.folder / "config.toml")
        .read_text()
        .replace("[features]", "[features]\nallow-ldconfig-from-container=true")
    )
    (node.folder / "config.toml").write_text(text + '[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"')
    assert node().returncode == 3


def test_the_configuration_beside_the_program_counts_then_that_of_the_host(node: Node, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    installed.mkdir()
    program = installed / "nvidia-container-runtime"
    program.write_bytes((node.toolkit / "groundplane-host").read_bytes())
    program.chmod(0o755)
    text = (node.folder / "config.toml").read_text()
    for folder, runtime in (("installed/.config", "first"), ("xdg", "second")):
        path = tmp_path / folder / "nvidia-container-runtime/config.toml"
        path.parent.mkdir(parents=True)
        path.write_text(text.replace("runc-of-test", f"{runtime}-runtime"))
    env = {"PATH": "", "XDG_CONFIG_HOME": str(tmp_path / "xdg")}

    def said() -> str:
        return subprocess.run([str(program), "state"], env=env, text=True, capture_output=True, check=False).stderr

    assert "first-runtime" in said()
    (installed / ".config/nvidia-container-runtime/config.toml").unlink()
    assert "second-runtime" in said()


# --- what is written -------------------------------------------------------------------------------------------------


def test_what_the_specification_does_not_know_stays(node: Node) -> None:
    mounts = [
        {"destination": "/a/b", "source": "s", "later": {"x": 1.50}},
        {"destination": "/", "source": "t", "number": 12345678901234567890},
    ]
    node.bundle.write(
        process={**process("NVIDIA_VISIBLE_DEVICES=0"), "future": [1, {"y": None}]}, mounts=mounts, zzz={"a": "<&>"}
    )
    edits = {
        "mounts": [{"hostPath": "/h", "containerPath": "/c"}],
        "deviceNodes": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 3}],
    }
    node.specs(
        "cdi", {"gpu.json": {"cdiVersion": "0.5.0", "kind": GPU, "devices": [{"name": "0", "containerEdits": edits}]}}
    )
    node.bundle.path.chmod(0o604)
    before = node.bundle.config
    assert node().returncode == 3
    after = node.bundle.read()
    assert after["mounts"] == [mounts[1], {"destination": "/c", "source": "/h"}, mounts[0]]
    assert (after["process"], after["zzz"], after["root"]) == (before["process"], before["zzz"], before["root"])
    assert "12345678901234567890" in node.bundle.path.read_text()
    assert node.bundle.path.stat().st_mode & 0o777 == 0o604
    assert after["linux"]["devices"] == [{"path": "/dev/x", "type": "c", "major": 1, "minor": 3}]
    assert sorted(path.name for path in node.bundle.folder.iterdir()) == ["config.json", "rootfs"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"process": 7}'])
def test_a_configuration_of_the_container_that_is_none_is_an_error(node: Node, text: str) -> None:
    node.bundle.path.write_text(text)
    done = node()
    assert (done.returncode, node.arguments, node.bundle.path.read_text()) == (1, None, text)
    assert f"cannot read the container's configuration {node.bundle.path}" in done.stderr


def test_the_log_has_what_was_decided(node: Node) -> None:
    log = node.folder / "logs/shim.log"
    node.configure(runtime=f'debug = "{log}"\nlog-level = "info"')
    node.bundle.write(process=process("NVIDIA_VISIBLE_DEVICES=0"))
    assert node().stderr == "err\n"
    assert 'level=info msg="mode jit-cdi, devices requested: 0"' in log.read_text()
    assert "level=debug" not in log.read_text()
    node("--debug", "--log-format=json", "create", "-b", str(node.bundle.folder), "c")
    last = json.loads(log.read_text().splitlines()[-1])
    assert (last["level"], last["msg"]) == ("debug", f"executing {node.folder}/bin/runc-of-test")
    node.configure(runtime=f'debug = "{log}"\nlog-level = "loud"')
    assert "invalid log-level 'loud'" in node().stderr


# --- nvidia-container-runtime-hook and nvidia-ctk --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "status"),
    [
        ((), 0),
        (("NVIDIA_VISIBLE_DEVICES=void",), 0),
        (("NVIDIA_VISIBLE_DEVICES=none",), 0),
        (("NVIDIA_VISIBLE_DEVICES=0",), 1),
    ],
)
def test_the_prestart_hook_lets_containers_without_gpus_start(
    node: Node, hook: Any, env: tuple[str, ...], status: int
) -> None:
    node.bundle.write(process=process(*env))
    environment = {"NVIDIA_CTK_CONFIG_FILE_PATH": f"{node.folder}/config.toml"}
    done = hook("prestart", name="nvidia-container-runtime-hook", env=environment, ok=not status)
    assert ("runtimeClassName: nvidia" in done.stderr) == bool(status)
    assert done.returncode == status


@pytest.mark.parametrize(
    ("arguments", "status"), [(["poststart"], 0), (["poststop"], 0), ([], 2), (["other"], 2), (["--x"], 2)]
)
def test_other_hooks_of_it_do_nothing(hook: Any, arguments: list[str], status: int) -> None:
    assert hook(*arguments, name="nvidia-container-runtime-hook", ok=not status).returncode == status


def test_nvidia_ctk_lists_devices_of_the_host(node: Node) -> None:
    node.specs("run-cdi", {"bad.json": {"cdiVersion": "9.9.9", "kind": "a/b"}})
    folders = ["--spec-dir", f"{node.folder}/etc-cdi", f"--spec-dir={node.folder}/run-cdi"]
    expected = ["management.nvidia.com/gpu=all", "nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=all", "x/y=z"]
    for arguments, env in (
        (folders, {}),
        ([], {"NVIDIA_CTK_CDI_SPEC_DIRS": f"{node.folder}/etc-cdi,{node.folder}/run-cdi"}),
    ):
        done = node("cdi", "list", *arguments, name="nvidia-ctk", **env)
        assert (done.returncode, done.stdout.splitlines()) == (0, expected)
        assert "run-cdi/bad.json" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["cdi", "generate"], ["system", "create-dev-char-symlinks"], ["runtime", "configure"]]
)
def test_nvidia_ctk_says_where_the_rest_is(node: Node, arguments: list[str]) -> None:
    done = node(*arguments, name="nvidia-ctk")
    assert done.returncode == 1
    assert f"-- nvidia-ctk {' '.join(arguments)}" in done.stderr


def test_under_another_name_the_program_says_its_names(node: Node) -> None:
    done = node("x", name="groundplane-host")
    assert done.returncode == 2
    assert "nvidia-cdi-hook, nvidia-container-runtime" in done.stderr
