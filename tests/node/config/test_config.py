"""The shared configuration: each program's options, the file's sections, what is refused (contract 1)."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node.fakeprocess import FakeProcess

from groundplane.api.release import Release
from groundplane.node import config, configtables
from groundplane.node.config import AllocationPolicy, IdStrategy, ListStrategy, MigStrategy, PluginConfig
from groundplane.node.options import Duration, OptionError
from groundplane.node.sharing import Pattern, Resources, Shared, Sharing, SharingStrategy, resource_name

OLD, NEW = Release.V26_3, Release.V26_7
FILE = "/config/config.yaml"
UUID = "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"

Load = Callable[..., Any]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Read a program's configuration, with a file of this text (or document) if one is given."""

    def load(
        reader: Callable[[Any], Any],
        file: str | Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        release: Release = NEW,
    ) -> Any:
        env = dict(env or {})
        if file is not None:
            env.setdefault("CONFIG_FILE", FILE)
        process = FakeProcess(tmp_path, ("program", *arguments), env, release=release)
        if file is not None:
            process.write(FILE, file if isinstance(file, str) else json.dumps(file))
        return reader(process)

    return load


def nested(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


# --- 1.2 --------------------------------------------------------------------------------------------------------------

# attribute | key in the file | flags | environment variables | a text | the same in JSON | default in JSON
PLUGIN_OPTIONS = """
mig_strategy | flags.migStrategy | mig-strategy | MIG_STRATEGY | mixed | "mixed" | "none"
fail_on_init_error | flags.failOnInitError | fail-on-init-error | FAIL_ON_INIT_ERROR | false | false | true
driver_root | flags.nvidiaDriverRoot | driver-root nvidia-driver-root | NVIDIA_DRIVER_ROOT | /x | "/x" | "/"
dev_root | flags.nvidiaDevRoot | dev-root nvidia-dev-root | NVIDIA_DEV_ROOT | /x | "/x" | "/"
gdrcopy | flags.gdrcopyEnabled | gdrcopy-enabled | GDRCOPY_ENABLED | 1 | true | false
gds | flags.gdsEnabled | gds-enabled | GDS_ENABLED | t | true | false
mofed | flags.mofedEnabled | mofed-enabled | MOFED_ENABLED | true | true | false
mps_root | flags.mpsRoot | mps-root | MPS_ROOT | /x | "/x" | ""
discovery | flags.deviceDiscoveryStrategy | device-discovery-strategy | DEVICE_DISCOVERY_STRATEGY \
 | tegra | "tegra" | "auto"
pass_device_specs | flags.plugin.passDeviceSpecs | pass-device-specs | PASS_DEVICE_SPECS | true | true | false
device_list_strategies | flags.plugin.deviceListStrategy | device-list-strategy | DEVICE_LIST_STRATEGY \
 | volume-mounts,cdi-cri | ["volume-mounts", "cdi-cri"] | ["envvar"]
device_list_strategies | flags.plugin.deviceListStrategy | device-list-strategy | DEVICE_LIST_STRATEGY \
 | cdi-annotations | "cdi-annotations" | ["envvar"]
device_id_strategy | flags.plugin.deviceIDStrategy | device-id-strategy | DEVICE_ID_STRATEGY | index | "index" | "uuid"
cdi_annotation_prefix | flags.plugin.cdiAnnotationPrefix | cdi-annotation-prefix | CDI_ANNOTATION_PREFIX \
 | a/ | "a/" | "cdi.k8s.io/"
cdi_hook_path | flags.plugin.nvidiaCTKPath | nvidia-cdi-hook-path nvidia-ctk-path \
 | NVIDIA_CDI_HOOK_PATH NVIDIA_CTK_PATH \
 | /x | "/x" | "/usr/bin/nvidia-ctk"
container_driver_root | flags.plugin.containerDriverRoot | driver-root-ctr-path container-driver-root \
 | DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT | /x | "/x" | "/driver-root"
allocation_policy | flags.plugin.sharedDevicesAllocationPolicy | shared-devices-allocation-policy \
 | SHARED_DEVICES_ALLOCATION_POLICY | packed | "packed" | "distributed"
imex_channels | imex.channelIDs | imex-channel-ids | IMEX_CHANNEL_IDS | 0 | [0] | []
imex_required | imex.required | imex-required | IMEX_REQUIRED | true | true | false
kubelet_socket | - | kubelet-socket | KUBELET_SOCKET | /x | "/x" | "/var/lib/kubelet/device-plugins/kubelet.sock"
cdi_feature_flags | - | cdi-feature-flags | CDI_FEATURE_FLAGS | a,b | ["a", "b"] | []
cdi_disable_hooks | - | cdi-disable-hooks | CDI_DISABLE_HOOKS | all | ["all"] | []
cdi_libraries | - | cdi-libraries | CDI_LIBRARIES | hooks | "hooks" | "hookless"
"""
GFD_OPTIONS = """
mig_strategy | flags.migStrategy | mig-strategy | GFD_MIG_STRATEGY MIG_STRATEGY | any | "any" | "none"
fail_on_init_error | flags.failOnInitError | fail-on-init-error | GFD_FAIL_ON_INIT_ERROR FAIL_ON_INIT_ERROR \
 | false | false | true
oneshot | flags.gfd.oneshot | oneshot | GFD_ONESHOT | true | true | false
no_timestamp | flags.gfd.noTimestamp | no-timestamp | GFD_NO_TIMESTAMP | true | true | false
sleep_interval | flags.gfd.sleepInterval | sleep-interval | GFD_SLEEP_INTERVAL | 1m30s | "90s" | "1m0s"
sleep_interval | flags.gfd.sleepInterval | sleep-interval | GFD_SLEEP_INTERVAL | 5ns | 5 | "1m0s"
sleep_interval | flags.gfd.sleepInterval | sleep-interval | GFD_SLEEP_INTERVAL | infinite | "infinite" | "1m0s"
output_file | flags.gfd.outputFile | output-file output o | GFD_OUTPUT_FILE | /x | "/x" \
 | "/etc/kubernetes/node-feature-discovery/features.d/gfd"
machine_type_file | flags.gfd.machineTypeFile | machine-type-file | GFD_MACHINE_TYPE_FILE \
 | /x | "/x" | "/sys/class/dmi/id/product_name"
use_node_feature_api | flags.useNodeFeatureAPI | use-node-feature-api | GFD_USE_NODE_FEATURE_API USE_NODE_FEATURE_API \
 | false | false | true
discovery | flags.deviceDiscoveryStrategy | device-discovery-strategy | DEVICE_DISCOVERY_STRATEGY \
 | vfio | "vfio" | "auto"
container_driver_root | flags.plugin.containerDriverRoot | driver-root-ctr-path container-driver-root \
 | DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT | /x | "/x" | "/driver-root"
kubeconfig | - | kubeconfig | KUBECONFIG | /x | "/x" | ""
kube_api_qps | - | kube-api-qps | KUBE_API_QPS | 2.5 | 2.5 | 5
kube_api_burst | - | kube-api-burst | KUBE_API_BURST | 3 | 3 | 10
namespace | - | namespace | NAMESPACE | x | "x" | ""
node_name | - | node-name | NODE_NAME | x | "x" | ""
pod_name | - | pod-name | POD_NAME | x | "x" | ""
"""
MPS_OPTIONS = """
mig_strategy | flags.migStrategy | mig-strategy | MIG_STRATEGY | mixed | "mixed" | "none"
"""
ROWS = [
    pytest.param(reader, *cells, id=f"{program}-{cells[2]}")
    for program, reader, table in (
        ("plugin", config.load_plugin, PLUGIN_OPTIONS),
        ("gfd", config.load_gfd, GFD_OPTIONS),
        ("mps", config.load_mps, MPS_OPTIONS),
    )
    for cells in ([cell.strip() for cell in line.split(" | ")] for line in table.strip().splitlines())
]


def plain(value: Any) -> Any:
    """A value as JSON has it, one word for a list of one."""
    if isinstance(value, Duration):
        return value.ns
    if isinstance(value, list | tuple):
        return value[0] if len(value) == 1 else list(value)
    return value


@pytest.mark.parametrize(("reader", "name", "key", "flags", "variables", "text", "same", "default"), ROWS)
def test_each_option_by_each_way(
    load: Load,
    reader: Callable[[Any], Any],
    name: str,
    key: str,
    flags: str,
    variables: str,
    text: str,
    same: str,
    default: str,
) -> None:
    """1.2, 1.6, 6: names, types and defaults."""

    def given(**source: Any) -> Any:
        return plain(getattr(load(reader, **source), name))

    of_json = Duration.decode if name == "sleep_interval" else lambda value: value
    wanted, usual = plain(of_json(json.loads(same))), plain(of_json(json.loads(default)))
    assert wanted != usual
    assert given() == usual
    first, *others = variables.split()
    for flag in flags.split():
        assert given(arguments=[f"--{flag}={text}"]) == wanted
        assert given(arguments=[f"--{flag}={text}"], env={first: "ignored"}) == wanted
    assert given(env={first: text}) == wanted
    for variable in others:
        assert given(env={variable: text}) == wanted
        assert given(env={first: text, variable: "ignored"}) == wanted
    if key != "-":
        assert given(file=nested(key, json.loads(same))) == wanted
        assert given(file=nested(key, None)) == usual
        assert given(file=nested(key, json.loads(default)), env={first: text}) == wanted


@pytest.mark.parametrize(
    ("command", "count"), [(configtables.PLUGIN, 23), (configtables.GFD, 17), (configtables.MPS, 2)]
)
def test_there_are_no_other_options(command: Any, count: int) -> None:
    assert len(command.options) == count
    flags = [flag for option in command.options for flag in option.flags]
    assert len(set(flags)) == len(flags)
    assert all(option.help for option in command.options)


class TestPlugin:
    def test_dev_root_is_the_driver_root_where_not_set(self, load: Load) -> None:
        assert (
            load(config.load_plugin, env={"NVIDIA_DRIVER_ROOT": "/run/nvidia/driver"}).dev_root == "/run/nvidia/driver"
        )
        both = {"NVIDIA_DRIVER_ROOT": "/run/nvidia/driver", "NVIDIA_DEV_ROOT": "/"}
        assert load(config.load_plugin, env=both).dev_root == "/"

    def test_types(self, load: Load) -> None:
        found: PluginConfig = load(config.load_plugin)
        assert found.mig_strategy is MigStrategy.NONE
        assert found.device_list_strategies == (ListStrategy.ENVVAR,)
        assert found.device_id_strategy is IdStrategy.UUID
        assert found.allocation_policy is AllocationPolicy.DISTRIBUTED

    def test_empty_kubelet_socket(self, load: Load) -> None:
        assert load(config.load_plugin, env={"KUBELET_SOCKET": ""}).kubelet_socket == ""

    def test_what_the_older_release_does_not_have(self, load: Load) -> None:
        """1.2, 13: an unknown key is ignored, an unknown flag is not."""
        file = {"flags": {"plugin": {"sharedDevicesAllocationPolicy": "no such"}}}
        env = {"SHARED_DEVICES_ALLOCATION_POLICY": "", "CDI_DISABLE_HOOKS": "all"}
        found = load(config.load_plugin, file, env, release=OLD)
        assert found.allocation_policy is AllocationPolicy.DISTRIBUTED
        assert found.cdi_disable_hooks == ()
        for flag in ("--shared-devices-allocation-policy=packed", "--cdi-disable-hooks=all"):
            with pytest.raises(OptionError, match="flag provided but not defined"):
                load(config.load_plugin, arguments=[flag], release=OLD)

    @pytest.mark.parametrize(
        ("strategies", "cdi", "only"),
        [
            ("envvar", False, False),
            ("envvar,cdi-cri", True, False),
            ("cdi-annotations,cdi-cri", True, True),
            ("volume-mounts", False, False),
        ],
    )
    def test_cdi(self, load: Load, strategies: str, cdi: bool, only: bool) -> None:
        found = load(config.load_plugin, env={"DEVICE_LIST_STRATEGY": strategies})
        assert (found.cdi, found.only_cdi) == (cdi, only)

    def test_the_other_programs_section_is_ignored(self, load: Load) -> None:
        file = {"flags": {"gfd": {"oneshot": True, "sleepInterval": "no duration"}}}
        assert "gfd" not in json.loads(load(config.load_plugin, file).effective(Resources()))["flags"]


# --- 1 and 1.1: the file ----------------------------------------------------------------------------------------------

READERS = pytest.mark.parametrize("reader", [config.load_plugin, config.load_gfd, config.load_mps])


@READERS
class TestFile:
    @pytest.mark.parametrize(
        "text", ["", "# nothing\n", "version: v1", "version:", 'version: ""', "{}", "flags: {}", "flags:"]
    )
    def test_empty_ones(self, load: Load, reader: Any, text: str) -> None:
        assert load(reader, text).mig_strategy == "none"

    @pytest.mark.parametrize("text", ["v2", "1", "V1", "true"])
    def test_version(self, load: Load, reader: Any, text: str) -> None:
        with pytest.raises(OptionError, match=r"^unknown version: "):
            load(reader, f"version: {text}")

    def test_unknown_keys_are_ignored(self, load: Load, reader: Any) -> None:
        text = "version: v1\nmore: 1\nflags: {x: 1, migStrategy: single, plugin: {y: 1}, gfd: {z: 1}}\nsharing: {w: 1}"
        assert load(reader, text).mig_strategy == "single"

    def test_missing(self, load: Load, reader: Any) -> None:
        with pytest.raises(OptionError, match="config file /nowhere cannot be read: No such file or directory"):
            load(reader, env={"CONFIG_FILE": "/nowhere"})

    def test_unreadable(self, load: Load, reader: Any, tmp_path: Path) -> None:
        (tmp_path / "root" / "folder").mkdir(parents=True)
        with pytest.raises(OptionError, match="config file /folder cannot be read: Is a directory"):
            load(reader, arguments=["--config-file", "/folder"])
        (tmp_path / "root" / "binary").write_bytes(b"\xff\xfe")
        with pytest.raises(OptionError, match="config file /binary cannot be read"):
            load(reader, arguments=["--config-file", "/binary"])

    def test_empty_path(self, load: Load, reader: Any) -> None:
        assert load(reader, env={"CONFIG_FILE": ""}).mig_strategy == "none"

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("a: [", "is neither YAML nor JSON"),
            ("- 1", "expected a mapping, found a list"),
            ("version", "expected a mapping, found a string"),
            ("flags: 1", "flags: expected a mapping, found a number"),
            ("flags: {plugin: []}", "flags.plugin: expected a mapping, found a list"),
            ("flags: {migStrategy: [single]}", "flags.migStrategy: expected a string, found a list"),
            ("flags: {migStrategy: yes}", "flags.migStrategy: expected a string, found a boolean"),
            ("sharing: []", "sharing: expected a mapping, found a list"),
            ("resources: x", "resources: expected a mapping, found a string"),
        ],
    )
    def test_malformed(self, load: Load, reader: Any, text: str, error: str) -> None:
        with pytest.raises(OptionError) as caught:
            load(reader, text)
        assert FILE in str(caught.value) and error in str(caught.value)

    def test_json(self, load: Load, reader: Any) -> None:
        assert load(reader, '{\n\t"version": "v1",\n\t"flags": {"migStrategy": "single"}\n}').mig_strategy == "single"

    def test_read_again(self, load: Load, reader: Any) -> None:
        assert load(reader, "flags: {migStrategy: single}").mig_strategy == "single"
        assert load(reader, "flags: {migStrategy: none}").mig_strategy == "none"


def test_yaml_1_1_booleans(load: Load) -> None:
    found = load(config.load_plugin, "flags: {failOnInitError: no, gdsEnabled: on, mofedEnabled: y}")
    assert (found.fail_on_init_error, found.gds, found.mofed) == (False, True, True)


def test_gfd_has_a_variable_of_its_own_for_the_file(load: Load) -> None:
    """1.6: GFD_CONFIG_FILE before CONFIG_FILE."""
    env = {"GFD_CONFIG_FILE": FILE, "CONFIG_FILE": "/nowhere"}
    assert load(config.load_gfd, "flags: {migStrategy: single}", env).mig_strategy == "single"
    assert load(config.load_gfd, env={**env, "GFD_CONFIG_FILE": ""}).mig_strategy == "none"


def test_mps_subcommand_needs_no_file(load: Load) -> None:
    assert load(config.load_mps, env={"CONFIG_FILE": "/nowhere"}, arguments=["mount-shm"]).word == "mount-shm"


# --- 1.3 --------------------------------------------------------------------------------------------------------------

MPS = {"sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}}
REFUSED: list[tuple[dict[str, Any] | None, dict[str, str], str]] = [
    (None, {"DEVICE_LIST_STRATEGY": "envvar,other"}, "invalid strategy: other "),
    (None, {"DEVICE_LIST_STRATEGY": ""}, "invalid strategy:  "),
    ({"flags": {"plugin": {"deviceListStrategy": "envvar,cdi-cri"}}}, {}, "invalid strategy: envvar,cdi-cri "),
    (None, {"MIG_STRATEGY": ""}, "unknown MIG strategy:  "),
    (None, {"MIG_STRATEGY": "Single"}, "unknown MIG strategy: Single "),
    ({"flags": {"migStrategy": "both"}}, {}, "unknown MIG strategy: both "),
    (None, {"DEVICE_ID_STRATEGY": ""}, "invalid device ID strategy:  "),
    (None, {"DEVICE_ID_STRATEGY": "name"}, "invalid device ID strategy: name "),
    (None, {"SHARED_DEVICES_ALLOCATION_POLICY": ""}, "invalid shared devices allocation policy:  "),
    (None, {"SHARED_DEVICES_ALLOCATION_POLICY": "random"}, "invalid shared devices allocation policy: random "),
    (None, {"DEVICE_DISCOVERY_STRATEGY": ""}, "invalid device discovery strategy:  "),
    (None, {"DEVICE_DISCOVERY_STRATEGY": "vfio"}, "invalid device discovery strategy: vfio "),
    (MPS, {"MIG_STRATEGY": "mixed", "MPS_ROOT": "/mps"}, "using --mig-strategy=mixed is not supported with MPS"),
    (MPS, {}, "using MPS requires --mps-root to be specified"),
    (MPS, {"MPS_ROOT": ""}, "using MPS requires --mps-root to be specified"),
    (None, {"IMEX_CHANNEL_IDS": "1"}, "invalid IMEX channel IDs [1]: "),
    (None, {"IMEX_CHANNEL_IDS": "0,0"}, "invalid IMEX channel IDs [0, 0]: "),
    ({"imex": {"channelIDs": [0, 1]}}, {}, "invalid IMEX channel IDs [0, 1]: "),
    (None, {"FAIL_ON_INIT_ERROR": "yes"}, 'invalid value "yes" for --fail-on-init-error'),
]


@pytest.mark.parametrize(("file", "env", "text"), REFUSED)
def test_what_the_plugin_refuses(load: Load, file: dict[str, Any] | None, env: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        load(config.load_plugin, file, env)
    assert (str(caught.value) + " ").startswith(text)
    assert "\n" not in str(caught.value)


def test_mistakes_say_where_the_value_came_from(load: Load) -> None:
    for file, env, where in (
        ({"flags": {"migStrategy": "x"}}, {}, f"(--mig-strategy, from config file {FILE})"),
        (None, {"MIG_STRATEGY": "x"}, "(--mig-strategy, from environment variable MIG_STRATEGY)"),
    ):
        with pytest.raises(OptionError) as caught:
            load(config.load_plugin, file, env)
        assert str(caught.value).endswith(where)


def test_mps_with_a_root(load: Load) -> None:
    assert load(config.load_plugin, MPS, {"MPS_ROOT": "/run/nvidia/mps"}).sharing.mps


def test_cdi_needs_the_library(load: Load) -> None:
    """1.3.2."""
    found = load(config.load_plugin, env={"DEVICE_LIST_STRATEGY": "cdi-annotations,envvar"})
    config.check_library(found, has_library=True)
    with pytest.raises(OptionError, match=r"cdi-annotations needs NVML: no libnvidia-ml.so.1 below /driver-root"):
        config.check_library(found, has_library=False)
    config.check_library(load(config.load_plugin), has_library=False)


def test_gfd_takes_any_mig_strategy_and_mps_daemon_does_not(load: Load) -> None:
    """1.6, last line."""
    assert load(config.load_gfd, env={"MIG_STRATEGY": ""}).mig_strategy == ""
    with pytest.raises(OptionError, match="unknown MIG strategy: "):
        load(config.load_mps, env={"MIG_STRATEGY": ""})


# --- 1.4 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("gpu", "nvidia.com/gpu"),
        ("nvidia.com/gpu", "nvidia.com/gpu"),
        ("nvidia.com/mig-1g.10gb.me", "nvidia.com/mig-1g.10gb.me"),
        ("mig-1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
        ("a" * 52, "nvidia.com/" + "a" * 52),
        ("a" * 53, None),
        ("", None),
        ("GPU", None),
        ("gpu_1", None),
        ("-gpu", None),
        ("gpu-", None),
        ("a..b", None),
        ("a/b", None),
        ("example.com/gpu", None),
        ("gpu\n", None),
    ],
)
def test_resource_names(text: str, full: str | None) -> None:
    if full is None:
        with pytest.raises(ValueError, match="resource name"):
            resource_name(text)
    else:
        assert resource_name(text) == full


@READERS
@pytest.mark.parametrize(
    ("section", "error"),
    [
        ({"gpus": [{"pattern": "*"}]}, "resources.gpus[0]: name is missing"),
        ({"gpus": [{"name": "gpu"}]}, "resources.gpus[0]: pattern is missing"),
        (
            {"mig": [{"pattern": "*", "name": "a"}, {"pattern": "*", "name": "A"}]},
            'resources.mig[1].name: resource name "nvidia.com/A" is invalid',
        ),
        ({"gpus": [{"pattern": "*", "name": "a" * 53}]}, "has more than 63 characters"),
        ({"gpus": {}}, "resources.gpus: expected a list, found a mapping"),
        ({"gpus": ["*"]}, "resources.gpus[0]: expected a mapping, found a string"),
        ({"gpus": [{"pattern": 1, "name": "gpu"}]}, "resources.gpus[0].pattern: expected a string, found a number"),
    ],
)
def test_mistakes_in_resources_are_fatal(load: Load, reader: Any, section: Any, error: str) -> None:
    """1.4: even though the section is then discarded."""
    with pytest.raises(OptionError) as caught:
        load(reader, {"resources": section})
    assert error in str(caught.value) and FILE in str(caught.value)


@READERS
def test_custom_resources_are_one_warning(load: Load, reader: Any) -> None:
    item = {"pattern": "*A100*", "name": "a100"}
    assert len(load(reader, {"resources": {"gpus": [item, item], "mig": [item]}}).warnings) == 1
    assert load(reader, {"resources": {"gpus": [], "mig": None}}).warnings == ()
    assert load(reader).warnings == ()


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("*", "anything", True),
        ("*", "", True),
        ("1g.24gb", "1g.24gb", True),
        ("1g.24gb", "1g.24gb-me", False),
        ("1g.24gb", "1g.24gb+me.all", False),
        ("1g.24gb", "1g.24gb+gfx", False),
        ("1g.24gb", "11g.24gb", False),
        ("1g.24gb", "1gx24gb", False),
        ("*A100*", "NVIDIA A100-SXM4-40GB", True),
        ("A100*", "NVIDIA A100-SXM4-40GB", False),
        ("NVIDIA A100 (x)", "NVIDIA A100 (x)", True),
        ("a*c", "abbc", True),
        ("a*c", "ab", False),
        ("a?", "ab", False),
        ("[a]", "a", False),
    ],
)
def test_patterns(pattern: str, text: str, fits: bool) -> None:
    """1.4: anchored in both releases, as required."""
    assert Pattern(pattern, "nvidia.com/gpu").fits(text) is fits


@given(st.lists(st.text(alphabet="ab.+(*", max_size=4).map(lambda text: text.replace("*", "")), min_size=1, max_size=4))
def test_a_pattern_fits_whatever_stands_for_its_stars(parts: list[str]) -> None:
    pattern = Pattern("*".join(parts), "x")
    assert pattern.fits("".join(parts))
    assert pattern.fits("any\nrun".join(parts))
    if parts[-1]:
        assert not Pattern("".join(parts), "x").fits("".join(parts) + "z")
        assert not Pattern("".join(parts), "x").fits("z" + "".join(parts))


# --- 1.5 --------------------------------------------------------------------------------------------------------------


def sharing(load: Load, section: Any, release: Release = NEW) -> tuple[Sharing, tuple[str, ...]]:
    found = load(config.load_gfd, {"sharing": section}, release=release)
    return found.sharing, found.warnings


def entry(**fields: Any) -> dict[str, Any]:
    return {"resources": [{"name": "gpu", "replicas": 4, **fields}]}


class TestSharing:
    def test_none(self, load: Load) -> None:
        for section in (None, {}, {"timeSlicing": None, "mps": None}):
            found, warnings = sharing(load, section)
            assert found == Sharing() and warnings == ()
            assert found.strategy is SharingStrategy.NONE and found.of("nvidia.com/gpu") is None

    def test_time_slicing(self, load: Load) -> None:
        found, warnings = sharing(load, {"timeSlicing": entry()})
        assert warnings == ()
        assert found.strategy is SharingStrategy.TIME_SLICING and not found.mps
        assert found.of("nvidia.com/gpu") == Shared("nvidia.com/gpu", "nvidia.com/gpu", 4)
        assert found.of("nvidia.com/mig-1g.5gb") is None

    def test_renaming_by_default(self, load: Load) -> None:
        found, _ = sharing(load, {"timeSlicing": {"renameByDefault": True, **entry()}})
        assert found.of("nvidia.com/gpu") == Shared("nvidia.com/gpu", "nvidia.com/gpu.shared", 4)

    @pytest.mark.parametrize(
        ("section", "wish", "release", "fail"),
        [
            ("timeSlicing", None, NEW, False),
            ("timeSlicing", False, NEW, False),
            ("timeSlicing", True, NEW, True),
            ("timeSlicing", None, OLD, False),
            ("timeSlicing", True, OLD, True),
            ("mps", None, NEW, True),
            ("mps", True, NEW, True),
            ("mps", False, NEW, False),
            ("mps", None, OLD, True),
            ("mps", False, OLD, True),
        ],
    )
    def test_fail_requests_greater_than_one(
        self, load: Load, section: str, wish: bool | None, release: Release, fail: bool
    ) -> None:
        found, _ = sharing(load, {section: {"failRequestsGreaterThanOne": wish, **entry()}}, release)
        assert found.fail_requests_greater_than_one is fail

    def test_mps_is_used_alone(self, load: Load) -> None:
        slicing = {"resources": [{"name": "mig-1g.5gb", "replicas": 2}]}
        found, _ = sharing(load, {"timeSlicing": slicing, "mps": entry()})
        assert found.strategy is SharingStrategy.MPS and found.mps
        assert [each.name for each in found.resources] == ["nvidia.com/gpu"]

    @pytest.mark.parametrize("section", ["timeSlicing", "mps"])
    @pytest.mark.parametrize(
        ("value", "error"),
        [
            ({}, "no resources specified"),
            ({"resources": []}, "no resources specified"),
            ({"resources": None}, "no resources specified"),
            ({"renameByDefault": True}, "no resources specified"),
            ([], "expected a mapping, found a list"),
            ({"resources": {}}, "resources: expected a list, found a mapping"),
            ({"resources": ["gpu"]}, "resources[0]: expected a mapping, found a string"),
            ({"resources": [{"replicas": 2}]}, "resources[0]: name is missing"),
            ({"resources": [{"name": "gpu"}]}, "resources[0]: replicas is missing"),
            (entry(name="GPU"), "resources[0].name: resource name"),
            (entry(name=1), "resources[0].name: expected a string, found a number"),
            (entry(rename="GPU"), "resources[0].rename: resource name"),
            (entry(rename=1), "resources[0].rename: expected a string, found a number"),
            (entry(replicas=1), "resources[0].replicas: expected 2 or more, found 1"),
            (entry(replicas=0), "resources[0].replicas: expected 2 or more, found 0"),
            (entry(replicas=-4), "resources[0].replicas: expected 2 or more, found -4"),
            (entry(replicas="4"), "resources[0].replicas: expected a whole number, found a string"),
            (entry(replicas=4.5), "resources[0].replicas: expected a whole number, found a number"),
            (entry(replicas=True), "resources[0].replicas: expected a whole number, found a boolean"),
            ({"renameByDefault": "yes", **entry()}, "renameByDefault: expected true or false, found a string"),
            ({"failRequestsGreaterThanOne": 1, **entry()}, "expected true or false, found a number"),
        ],
    )
    def test_mistakes(self, load: Load, section: str, value: Any, error: str) -> None:
        with pytest.raises(OptionError) as caught:
            sharing(load, {section: value})
        assert f"{FILE}: sharing.{section}" in str(caught.value) and error in str(caught.value)

    @pytest.mark.parametrize(
        "devices",
        [1, 8, [], [0, 1], ["0"], ["0:1", 3], [f"GPU-{UUID}"], [f"MIG-{UUID}"], [f"MIG-GPU-{UUID}/1/0"]],
    )
    def test_devices_are_read_and_then_all(self, load: Load, devices: Any) -> None:
        found, warnings = sharing(load, {"timeSlicing": entry(devices=devices)})
        assert found.resources == (Shared("nvidia.com/gpu", "nvidia.com/gpu", 4),)
        assert len(warnings) == 1 and "devices" in warnings[0]

    def test_the_first_entry_of_a_resource_counts(self, load: Load) -> None:
        items = [
            {"name": "gpu", "replicas": 3},
            {"name": "nvidia.com/gpu", "replicas": 5},
            {"name": "b", "replicas": 2},
        ]
        found, warnings = sharing(load, {"timeSlicing": {"resources": items}})
        assert found.of("nvidia.com/gpu") == Shared("nvidia.com/gpu", "nvidia.com/gpu", 3)
        text = "sharing.timeSlicing.resources[1]: nvidia.com/gpu is listed before; only its first entry counts"
        assert warnings == (text,)

    @pytest.mark.parametrize("devices", ["all", None])
    def test_all_devices_is_no_warning(self, load: Load, devices: Any) -> None:
        assert sharing(load, {"timeSlicing": entry(devices=devices)})[1] == ()

    @pytest.mark.parametrize(
        "devices",
        [
            *(0, -1, 1.5, True, "some", "0", f"GPU-{UUID}", {}),
            *(
                [-1],
                [1.5],
                [True],
                ["all"],
                ["x"],
                ["0:"],
                ["0:1:2"],
                ["GPU-1"],
                [f"MIG-GPU-{UUID}"],
                [f"MIG-GPU-{UUID}/1"],
            ),
            *([f"gpu-{UUID}"], [None], [[0]], ["0\n"]),
        ],
    )
    def test_no_devices(self, load: Load, devices: Any) -> None:
        with pytest.raises(OptionError, match=r"sharing.timeSlicing.resources\[0\].devices: "):
            sharing(load, {"timeSlicing": entry(devices=devices)})

    @pytest.mark.parametrize(
        ("rename", "by_default", "advertised", "warned"),
        [
            ("other", False, "nvidia.com/gpu", True),
            ("other", True, "nvidia.com/gpu.shared", True),
            ("gpu.shared", True, "nvidia.com/gpu.shared", False),
            ("", False, "nvidia.com/gpu", False),
            (None, True, "nvidia.com/gpu.shared", False),
        ],
    )
    def test_renaming_is_forced(
        self, load: Load, rename: str | None, by_default: bool, advertised: str, warned: bool
    ) -> None:
        found, warnings = sharing(load, {"timeSlicing": {"renameByDefault": by_default, **entry(rename=rename)}})
        assert found.resources[0].advertised == advertised
        assert len(warnings) == warned


# --- the effective configuration --------------------------------------------------------------------------------------

ALWAYS = (
    *("migStrategy", "failOnInitError", "gdrcopyEnabled", "gdsEnabled", "mofedEnabled", "useNodeFeatureAPI"),
    "deviceDiscoveryStrategy",
)
EFFECTIVE_PLUGIN = {
    "version": "v1",
    "flags": {
        "migStrategy": "none",
        "failOnInitError": True,
        "mpsRoot": "/run/nvidia/mps",
        "nvidiaDriverRoot": "/run/nvidia/driver",
        "nvidiaDevRoot": "/run/nvidia/driver",
        "gdrcopyEnabled": False,
        "gdsEnabled": False,
        "mofedEnabled": False,
        "useNodeFeatureAPI": None,
        "deviceDiscoveryStrategy": "auto",
        "plugin": {
            "passDeviceSpecs": True,
            "deviceListStrategy": ["cdi-annotations", "cdi-cri"],
            "deviceIDStrategy": "uuid",
            "cdiAnnotationPrefix": "cdi.k8s.io/",
            "nvidiaCTKPath": "/usr/bin/nvidia-ctk",
            "containerDriverRoot": "/driver-root",
        },
    },
    "resources": {"gpus": [{"pattern": "*", "name": "nvidia.com/gpu"}]},
    "sharing": {
        "timeSlicing": {},
        "mps": {
            "failRequestsGreaterThanOne": True,
            "resources": [{"name": "nvidia.com/gpu", "devices": "all", "replicas": 2}],
        },
    },
    "imex": {"channelIDs": [0], "required": True},
}


class TestEffective:
    def test_plugin(self, load: Load) -> None:
        env = {
            "MPS_ROOT": "/run/nvidia/mps",
            "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
            "PASS_DEVICE_SPECS": "true",
            "DEVICE_LIST_STRATEGY": "cdi-annotations,cdi-cri",
            "IMEX_CHANNEL_IDS": "0",
            "IMEX_REQUIRED": "true",
        }
        text = load(config.load_plugin, MPS, env, release=OLD).effective(Resources((Pattern("*", "nvidia.com/gpu"),)))
        assert text == json.dumps(EFFECTIVE_PLUGIN, indent=2)

    def test_what_is_always_printed(self, load: Load) -> None:
        for reader in (config.load_plugin, config.load_gfd, config.load_mps):
            flags = json.loads(load(reader).effective(Resources()))["flags"]
            assert set(ALWAYS) <= set(flags)
        assert set(flags) == set(ALWAYS), (
            "mpsRoot, nvidiaDriverRoot, nvidiaDevRoot, plugin, gfd are left out when unset"
        )
        assert [key for key in flags if flags[key] is not None] == ["migStrategy"]

    def test_gfd(self, load: Load) -> None:
        document = json.loads(load(config.load_gfd, env={"GFD_SLEEP_INTERVAL": "infinite"}).effective(Resources()))
        assert document["flags"]["gfd"]["sleepInterval"] == "infinite"
        assert document["flags"]["useNodeFeatureAPI"] is True
        plugin = document["flags"]["plugin"]
        assert list(plugin) == [*EFFECTIVE_PLUGIN["flags"]["plugin"], "sharedDevicesAllocationPolicy"]
        assert {key: value for key, value in plugin.items() if value is not None} == {
            "containerDriverRoot": "/driver-root"
        }
        assert document["resources"] == {"gpus": None}
        assert "mpsRoot" not in document["flags"]
        assert document["sharing"] == {"timeSlicing": {}}
        assert document["imex"] == {}

    def test_renamed_and_mig(self, load: Load) -> None:
        found = load(config.load_plugin, {"sharing": {"timeSlicing": {"renameByDefault": True, **entry()}}})
        mig = (Pattern("1g.5gb", "nvidia.com/mig-1g.5gb"),)
        document = json.loads(found.effective(Resources((), mig)))
        assert document["resources"] == {"gpus": None, "mig": [{"pattern": "1g.5gb", "name": "nvidia.com/mig-1g.5gb"}]}
        assert document["sharing"]["timeSlicing"] == {
            "renameByDefault": True,
            "resources": [
                {"name": "nvidia.com/gpu", "rename": "nvidia.com/gpu.shared", "devices": "all", "replicas": 4}
            ],
        }
