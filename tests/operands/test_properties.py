"""What holds for every valid policy on every cluster, by generated examples."""

import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operands import notation, rendering

from groundplane.api.release import Release
from groundplane.operands import stack
from groundplane.operands.facts import ClusterFacts, GpuNode, OpenShift, Owner, Proxies, references

DNS_LABEL = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,10}[a-z0-9]", fullmatch=True)
SWITCH = st.sampled_from([None, True, False])
ENV = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["A", "B", "NODE_NAME", "CDI_ENABLED", "MIG_STRATEGY", "HOST_ROOT", "RUNTIME"]),
        },
        optional={"value": st.text(alphabet="ab/=", max_size=4)},
    ),
    max_size=4,
)
RESOURCES = st.none() | st.just({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": 1}})
VERSION = st.sampled_from(["1.2.3", "sha256:" + "ab" * 32])
RESERVED = ["app", "app.kubernetes.io/part-of", "name", "nvidia.com/gpu-operator.state"]
LABELS = st.dictionaries(st.sampled_from([*RESERVED, "team"]), NAMES, max_size=3)
TOLERATIONS = st.lists(
    st.fixed_dictionaries({"operator": st.just("Exists")}, optional={"key": NAMES, "effect": st.just("NoSchedule")}),
    max_size=2,
)


def section(**more):
    """An operand section: each field present or not. Switches and values of ``more`` are laid over the common ones."""
    common = {
        "enabled": SWITCH,
        "version": VERSION,
        "imagePullPolicy": st.sampled_from(["Always", "Never", "IfNotPresent", ""]),
        "imagePullSecrets": st.lists(NAMES, max_size=3),
        "env": ENV,
        "args": st.lists(NAMES, max_size=2),
        "resources": RESOURCES,
        "hostNetwork": SWITCH,
    }
    return st.fixed_dictionaries({}, optional={**common, **more})


def group(**fields):
    return st.fixed_dictionaries({}, optional=fields)


MAYBE_NAME = st.sampled_from(["", "custom"]) | NAMES
PROBE = group(
    initialDelaySeconds=st.integers(0, 9), periodSeconds=st.integers(1, 9), failureThreshold=st.integers(1, 9)
)
VALIDATOR_ENV = group(env=ENV)

POLICIES = group(
    operator=group(
        runtimeClass=st.sampled_from(["nvidia", "nvidia-cdi", "gpu"]),
        use_ocp_driver_toolkit=SWITCH,
        metrics=group(serviceMonitor=group(enabled=SWITCH, interval=st.just("15s"), honorLabels=SWITCH)),
    ),
    daemonsets=group(
        labels=LABELS,
        annotations=st.dictionaries(NAMES, NAMES, max_size=2),
        tolerations=TOLERATIONS,
        priorityClassName=NAMES,
        podSecurityContext=st.just({"fsGroup": 5}),
        updateStrategy=st.sampled_from(["RollingUpdate", "OnDelete"]),
        rollingUpdate=group(maxUnavailable=st.sampled_from(["1", "10%", "", "many"])),
    ),
    driver=section(
        useNvidiaDriverCRD=SWITCH,
        usePrecompiled=SWITCH,
        kernelModuleType=st.sampled_from(["auto", "open", "proprietary"]),
        startupProbe=PROBE,
        livenessProbe=PROBE,
        readinessProbe=PROBE,
        rdma=group(enabled=SWITCH, useHostMofed=SWITCH),
        repoConfig=group(configMapName=MAYBE_NAME),
        certConfig=group(name=MAYBE_NAME),
        kernelModuleConfig=group(name=MAYBE_NAME),
        virtualTopology=group(config=MAYBE_NAME),
        licensingConfig=group(secretName=MAYBE_NAME, configMapName=MAYBE_NAME, nlsEnabled=SWITCH),
        secretEnv=MAYBE_NAME,
    ),
    toolkit=section(installDir=st.just("/opt/nvidia")),
    devicePlugin=section(config=group(name=MAYBE_NAME, default=NAMES), mps=group(root=st.just("/data/mps"))),
    dcgm=section(),
    dcgmExporter=section(
        annotations=st.dictionaries(NAMES, NAMES, max_size=2),
        config=group(name=MAYBE_NAME),
        serviceMonitor=group(enabled=SWITCH),
        hostPID=SWITCH,
        hpcJobMapping=group(enabled=SWITCH, directory=st.just("/jobs")),
        enablePodLabels=SWITCH,
        enablePodUID=SWITCH,
        podLabelAllowlistRegex=st.lists(NAMES, max_size=2),
    ),
    gfd=section(),
    nodeStatusExporter=section(),
    mig=group(strategy=st.sampled_from(["none", "single", "mixed"])),
    migManager=section(config=group(name=MAYBE_NAME), gpuClientsConfig=group(name=MAYBE_NAME)),
    validator=group(
        imagePullSecrets=st.lists(NAMES, max_size=2),
        resources=RESOURCES,
        env=ENV,
        cuda=VALIDATOR_ENV,
        driver=VALIDATOR_ENV,
        plugin=VALIDATOR_ENV,
        toolkit=VALIDATOR_ENV,
        vfioPCI=VALIDATOR_ENV,
    ),
    gds=group(enabled=SWITCH, env=ENV),
    gdrcopy=group(enabled=SWITCH, env=ENV),
    sandboxWorkloads=group(
        enabled=SWITCH,
        mode=st.sampled_from(["kubevirt", "kata"]),
        defaultWorkload=st.sampled_from(["container", "vm-passthrough", "vm-vgpu"]),
    ),
    vfioManager=section(),
    sandboxDevicePlugin=section(),
    kataSandboxDevicePlugin=section(),
    vgpuManager=section(repository=st.just("r"), kernelModuleConfig=group(name=MAYBE_NAME)),
    vgpuDeviceManager=section(config=group(name=MAYBE_NAME)),
    ccManager=section(defaultMode=st.sampled_from(["on", "off", "devtools"])),
    cdi=group(enabled=SWITCH, nriPluginEnabled=SWITCH),
    hostPaths=group(
        rootFS=st.sampled_from(["/", "/mnt/root"]),
        driverInstallDir=st.sampled_from(["/run/nvidia/driver", "/opt/driver"]),
        kubeletRootDir=st.just("/data/kubelet"),
    ),
)

NODES = st.builds(
    GpuNode,
    name=NAMES,
    kernel=st.sampled_from(["6.8.0-60-generic", "5.14.0-427.37.1.el9_4.x86_64", ""]),
    os_id=st.sampled_from(["ubuntu", "rhel", "sles", "rhcos", "talos", ""]),
    os_version=st.sampled_from(["24.04", "9.4", "15.5", "4.18"]),
    ostree=st.sampled_from(["", "418.94"]),
)


@st.composite
def clusters(draw, spec):
    """A cluster in which each referenced object exists or not."""
    keys = st.none() | st.just(("a.conf", "b.conf"))
    wanted = references(spec)
    nodes = draw(st.lists(NODES, max_size=3) | st.just([rendering.node()]))
    openshift = st.builds(
        OpenShift, version=st.just("4.18"), driver_toolkit=st.sampled_from([None, {}, {"418.94": "dtk:1"}])
    )
    return ClusterFacts(
        namespace=draw(NAMES),
        release=draw(st.sampled_from(list(Release))),
        runtime=draw(st.sampled_from(["containerd", "crio", "docker"])),
        nodes=tuple(nodes),
        service_monitor_crd=draw(st.booleans()),
        default_images={"KATA_MANAGER_IMAGE": "kata:1"},
        config_maps={name: draw(keys) for name in sorted(wanted.config_maps)},
        secrets={name: draw(keys) for name in sorted(wanted.secrets)},
        openshift=draw(st.none() | openshift),
        proxies=draw(st.none() | st.just(Proxies(http="http://p", trusted_ca="ca"))),
        owner=Owner(name="cluster-policy", uid="u"),
    )


@st.composite
def cases(draw):
    spec = rendering.spec(changes=draw(POLICIES))
    return spec, draw(clusters(spec))


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def test_any_valid_policy_renders_sound_objects_or_a_clear_error(case):
    spec, facts = case
    results = stack.render(spec, facts)
    errors = [each.error for each in results if each.error]
    assert len(errors) <= 1
    again = stack.render(spec, facts)
    assert [each.objects for each in again] == [each.objects for each in results], "rendering is not deterministic"
    if errors:
        assert errors[0].state == results[-1].state
        assert errors[0].message
        assert str(again[-1].error) == str(errors[0])
    else:
        assert [each.state for each in results] == [each.name for each in stack.STATES]
    objects = [(each.state, obj) for each in results for obj in each.objects]
    keys = [(obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"]) for _, obj in objects]
    assert len(keys) == len(set(keys)), "an object is rendered twice"
    for state, obj in objects:
        check_object(state, obj)


def check_object(state, obj):
    assert obj["metadata"]["labels"]["nvidia.com/gpu-operator.state"] == state
    assert not has_null(obj)
    if obj["kind"] == "DaemonSet":
        check_daemon_set(obj)


def check_daemon_set(obj):
    template = obj["spec"]["template"]
    selector = obj["spec"]["selector"]["matchLabels"]
    assert template["metadata"]["labels"].items() >= selector.items(), "a selector that misses its own pods"
    pod = notation.pod(obj)
    volumes = [each["name"] for each in pod.get("volumes", [])]
    assert len(volumes) == len(set(volumes))
    assert all(DNS_LABEL.fullmatch(each) for each in volumes)
    containers = [*pod.get("initContainers", []), *pod["containers"]]
    names = [each["name"] for each in containers]
    assert len(names) == len(set(names))
    for container in containers:
        variables = [each["name"] for each in container.get("env", [])]
        assert len(variables) == len(set(variables)), container["name"]
        mounted = [each["name"] for each in container.get("volumeMounts", [])]
        assert set(mounted) <= set(volumes), container["name"]
        paths = [each["mountPath"] for each in container.get("volumeMounts", [])]
        assert len(paths) == len(set(paths)), container["name"]
        assert container["image"]


def has_null(value):
    if isinstance(value, dict):
        return any(each is None or has_null(each) for each in value.values())
    return isinstance(value, list) and any(map(has_null, value))
