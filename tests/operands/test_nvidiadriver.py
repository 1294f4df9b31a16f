"""An NVIDIADriver's objects, row by row: contracts/control-plane.md 2, 2.1, 2.4, 4.3, 4.4, 4.6 and 9.2."""

import pytest
from operands import notation, nvidiadrivers
from operands.nvidiadrivers import (
    DEPLOY,
    MANAGER,
    OS_ID,
    OS_VERSION,
    OWNER,
    PRESENT,
    UID,
    daemon_set,
    driver,
    facts,
    node,
    render,
)

from groundplane.api.release import Release
from groundplane.operands import nvidiadriver
from groundplane.operands.errors import RenderError
from groundplane.operands.facts import OpenShift, Proxies

RELEASES = (Release.V26_3, Release.V26_7)
NAME = "nvidia-gpu-driver-ubuntu24.04-67cc6dbb79"
ACCOUNT = "nvidia-gpu-driver-a-ubuntu24.04"
MANAGER_ENV = [
    "NODE_NAME<-spec.nodeName",
    "NVIDIA_VISIBLE_DEVICES=void",
    "ENABLE_GPU_POD_EVICTION=true",
    "ENABLE_AUTO_DRAIN=false",
    "DRAIN_USE_FORCE=false",
    "DRAIN_POD_SELECTOR_LABEL=",
    "DRAIN_TIMEOUT_SECONDS=0s",
    "DRAIN_DELETE_EMPTYDIR_DATA=false",
    "OPERATOR_NAMESPACE<-metadata.namespace",
]
SYSTEM = {
    Release.V26_3: "sysfs-memory-online:/sys/devices/system/memory/auto_online_blocks",
    Release.V26_7: "host-sys-devices-system:/sys/devices/system",
}
DRIVER_MOUNTS = [
    "run-nvidia:/run/nvidia:B",
    "run-nvidia-fabricmanager:/run/nvidia-fabricmanager",
    "run-nvidia-topologyd:/run/nvidia-topologyd",
    "var-log:/var/log",
    "dev-log:/dev/log",
    "host-os-release:/host-etc/os-release:ro",
    "mlnx-ofed-usr-src:/run/mellanox/drivers/usr/src:H",
    "run-mellanox-drivers:/run/mellanox/drivers:H",
    "SYSTEM",
    "firmware-search-path:/sys/module/firmware_class/parameters/path",
    "nv-firmware:/lib/firmware",
    "driver-startup-probe-script:/usr/local/bin/startup-probe.sh (sub=startup-probe.sh)",
]
PRE_STOP = {
    Release.V26_3: "rm -f /run/nvidia/validations/.driver-ctr-ready",
    Release.V26_7: "rm -f /run/nvidia/validations/.driver-ctr-ready /run/nvidia/validations/.driver-daemons-status",
}


def ctr(made, name="nvidia-driver-ctr"):
    return notation.container(made, name)


def env_rows(made, name="nvidia-driver-ctr"):
    return [row for row in notation.env(ctr(made, name)) if not row.startswith("DRIVER_CONFIG_DIGEST=")]


def digest(made):
    values = {notation.env_dict(each)["DRIVER_CONFIG_DIGEST"] for each in (ctr(made, "k8s-driver-manager"), ctr(made))}
    (value,) = values
    return value


def problem(*args, **kwargs):
    with pytest.raises(RenderError) as caught:
        render(*args, **kwargs)
    return caught.value.message


# --- The whole of a plain driver --------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_2_4_frame(release):
    made = daemon_set(release=release)
    labels = {
        "app": NAME,
        "app.kubernetes.io/component": "nvidia-driver",
        "nvidia.com/node.os-version": "ubuntu24.04",
        "nvidia.com/precompiled": "false",
    }
    assert made["metadata"]["name"] == NAME
    assert made["metadata"]["namespace"] == "gpu-operator"
    assert made["metadata"]["labels"] == {**labels, "nvidia.com/gpu-operator.state": "state-driver"}
    assert made["metadata"]["annotations"] == {"openshift.io/scc": ACCOUNT}
    assert made["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "nvidia.com/v1alpha1",
            "kind": "NVIDIADriver",
            "name": "a",
            "uid": UID,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert made["spec"]["selector"] == {"matchLabels": {"app": NAME}}
    assert made["spec"]["updateStrategy"] == {"type": "OnDelete"}
    template = made["spec"]["template"]
    assert template["metadata"]["labels"] == labels
    assert template["metadata"]["annotations"] == {"kubectl.kubernetes.io/default-container": "nvidia-driver-ctr"}
    pod = template["spec"]
    assert pod["serviceAccountName"] == ACCOUNT
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert pod["hostPID"] is True
    assert not {"hostNetwork", "dnsPolicy", "securityContext", "terminationGracePeriodSeconds"} & pod.keys()
    owner = {OWNER: "a"} if release is Release.V26_7 else {}
    system = {OS_ID: "ubuntu", OS_VERSION: "24.04"}
    assert pod["nodeSelector"] == {DEPLOY: "true", PRESENT: "true", **owner, **system}
    (term,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    (away,) = term["labelSelector"]["matchExpressions"]
    assert (away["key"], away["operator"]) == ("app.kubernetes.io/component", "In")
    assert set(away["values"]) == {"nvidia-driver", "nvidia-vgpu-manager", "nvidia-vgpu-host-manager"}
    assert "nodeAffinity" not in pod["affinity"]


@pytest.mark.parametrize("release", RELEASES)
def test_9_2_containers_of_a_plain_driver(release):
    made = daemon_set(release=release)
    pod = notation.pod(made)
    assert [each["name"] for each in pod["initContainers"]] == ["k8s-driver-manager"]
    assert [each["name"] for each in pod["containers"]] == ["nvidia-driver-ctr"]
    manager, main = ctr(made, "k8s-driver-manager"), ctr(made)
    assert (manager["image"], main["image"]) == (MANAGER, "nvcr.io/nvidia/driver:580.126.20-ubuntu24.04")
    assert (manager["command"], manager["args"]) == (["driver-manager"], ["uninstall_driver"])
    assert (main["command"], main["args"]) == (["nvidia-driver"], ["init"])
    assert env_rows(made, "k8s-driver-manager") == MANAGER_ENV
    assert env_rows(made) == [
        "NVIDIA_VISIBLE_DEVICES=void",
        "NODE_NAME<-spec.nodeName",
        "NODE_IP<-status.hostIP",
        "KERNEL_MODULE_TYPE=auto",
    ]
    assert digest(made).isdigit()
    assert notation.mounts(main) == [SYSTEM[release] if row == "SYSTEM" else row for row in DRIVER_MOUNTS]
    assert notation.mounts(manager) == [
        "run-nvidia:/run/nvidia:B",
        "host-root:/host:ro:H",
        "host-sys:/sys",
        "run-mellanox-drivers:/run/mellanox/drivers:H",
    ]
    assert (notation.security(manager), notation.security(main)) == ("privileged", "privileged S0")
    assert main["startupProbe"]["exec"]["command"] == ["sh", "/usr/local/bin/startup-probe.sh"]
    assert main["lifecycle"]["preStop"]["exec"]["command"] == ["/bin/sh", "-c", PRE_STOP[release]]
    assert {"livenessProbe", "readinessProbe", "envFrom", "resources"} & main.keys() == set()
    assert {each["imagePullPolicy"] for each in (manager, main)} == {"IfNotPresent"}
    assert "driver-startup-probe-script=nvidia-driver-startup-probe(0755)" in notation.volumes(pod)
    assert "host-root=/(-)" in notation.volumes(pod)


@pytest.mark.parametrize("release", RELEASES)
def test_2_4_rights_have_the_other_name(release):
    made = render(release=release)
    assert [(each["kind"], each["metadata"]["name"]) for each in made.objects] == [
        *((kind, ACCOUNT) for kind in ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")),
        ("DaemonSet", NAME),
    ]
    by_kind = {each["kind"]: each for each in made.objects}
    claims = ["resource.k8s.io/resourceclaims: get,list"] if release is Release.V26_7 else []
    assert notation.rules(by_kind["ClusterRole"]) == sorted(
        [
            "config.openshift.io/clusterversions: get,list",
            "/nodes: get,list,patch,update,watch",
            "/pods: get,list,watch",
            "/pods/eviction: create",
            "apps/daemonsets: get",
            *claims,
        ]
    )
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        assert by_kind[kind]["roleRef"]["name"] == ACCOUNT
        subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "gpu-operator"}
        assert by_kind[kind]["subjects"] == [subject]
    assert {owner["uid"] for each in made.objects for owner in each["metadata"]["ownerReferences"]} == {UID}


def test_pools_of_one_system_share_their_rights():
    nodes = {"n1": node(kernel="6.8.0-60-generic"), "n2": node(kernel="6.8.0-61-generic")}
    made = render({"usePrecompiled": True}, nodes)
    kinds = [each["kind"] for each in made.objects]
    assert (kinds.count("ServiceAccount"), kinds.count("DaemonSet")) == (1, 2)


def test_without_nodes_there_is_nothing():
    made = render(nodes={"cpu": {}})
    assert (made.objects, made.pools, made.skipped) == ([], [], {})


def test_before_it_has_a_uid_objects_have_no_owner():
    made = render(given=driver(uid=""))
    assert not any("ownerReferences" in each["metadata"] for each in made.objects)


# --- The fields of section 2 ------------------------------------------------------------------------------------------


def test_2_pod_fields():
    made = daemon_set(
        {
            "tolerations": [
                {"key": "spot", "operator": "Exists"},
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            ],
            "priorityClassName": "mine",
            "podSecurityContext": {"runAsUser": 0},
            "hostNetwork": True,
            "annotations": {"note": "x"},
            "labels": {
                "team": "gpu",
                "app": "other",
                "app.kubernetes.io/component": "other",
                "app.kubernetes.io/name": "other",
                "nvidia.com/precompiled": "true",
            },
            "resources": {"limits": {"cpu": "1"}},
            "imagePullPolicy": "Always",
            "imagePullSecrets": ["one", "two"],
            "manager": {"imagePullSecrets": ["two", "three"], "env": [{"name": "ENABLE_AUTO_DRAIN", "value": "true"}]},
            "env": [{"name": "HTTPS_PROXY", "value": "p"}, {"name": "NODE_NAME", "value": "fixed"}],
            "args": ["--accept-license"],
        }
    )
    pod = notation.pod(made)
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert pod["tolerations"] == [gpu, {"key": "spot", "operator": "Exists"}]
    assert (pod["priorityClassName"], pod["securityContext"]) == ("mine", {"runAsUser": 0})
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    for metadata in (made["metadata"], made["spec"]["template"]["metadata"]):
        assert metadata["annotations"]["note"] == "x"
        labels = metadata["labels"]
        assert (labels["team"], labels["app"]) == ("gpu", NAME)
        assert labels["app.kubernetes.io/component"] == "nvidia-driver"
        assert labels["nvidia.com/precompiled"] == "false"
        assert "app.kubernetes.io/name" not in labels
    assert {each["name"] for each in pod["imagePullSecrets"]} == {"one", "two", "three"}
    assert ctr(made)["resources"] == ctr(made, "k8s-driver-manager")["resources"] == {"limits": {"cpu": "1"}}
    assert ctr(made)["imagePullPolicy"] == "Always"
    assert ctr(made)["args"] == ["init", "--accept-license"]
    assert notation.env_dict(ctr(made))["HTTPS_PROXY"] == "p"
    assert notation.env_dict(ctr(made))["NODE_NAME"] == "fixed"
    assert notation.env_dict(ctr(made, "k8s-driver-manager"))["ENABLE_AUTO_DRAIN"] == "true"


def test_2_node_affinity_reaches_the_pod():
    wanted = {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
        },
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}}
        ],
    }
    affinity = notation.pod(daemon_set({"nodeAffinity": wanted}))["affinity"]
    assert affinity["nodeAffinity"] == wanted
    assert "podAntiAffinity" in affinity


@pytest.mark.parametrize(("release", "owner"), [(Release.V26_3, "theirs"), (Release.V26_7, "a")])
def test_2_4_the_selector_cannot_override_what_the_operator_adds(release, owner):
    selector = {"pool": "x", PRESENT: "false", OWNER: "theirs", DEPLOY: "no"}
    there = {"n": node(pool="x", owner=owner, **{DEPLOY: "no"})}
    found = notation.pod(daemon_set({"nodeSelector": selector}, there, release))["nodeSelector"]
    assert (found["pool"], found[PRESENT], found[DEPLOY]) == ("x", "true", "true")
    assert found[OWNER] == owner, "26.3 knows no owner's label: there it is the user's own"


PROBES = [
    (None, False, (60, 60, 10, 1, 120)),
    (None, True, (5, 60, 10, 1, 120)),
    ({"initialDelaySeconds": 7, "failureThreshold": 3}, False, (7, 60, 10, 1, 3)),
    ({"initialDelaySeconds": 7, "failureThreshold": 3}, True, (7, 60, 10, 1, 3)),
    ({"initialDelaySeconds": 0, "periodSeconds": 30}, True, (5, 60, 30, 1, 120)),
    ({"timeoutSeconds": 9, "successThreshold": 1}, False, (60, 9, 10, 1, 120)),
]


@pytest.mark.parametrize(("given", "precompiled", "timing"), PROBES)
def test_2_startup_probe(given, precompiled, timing):
    spec = {"startupProbe": given, **({"usePrecompiled": True} if precompiled else {})}
    probe = ctr(daemon_set(spec))["startupProbe"]
    keys = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
    assert tuple(probe[key] for key in keys) == timing


def test_2_other_probes_on_request():
    made = ctr(daemon_set({"livenessProbe": {"periodSeconds": 5}, "readinessProbe": {"periodSeconds": 6}}))
    assert (made["livenessProbe"]["periodSeconds"], made["readinessProbe"]["periodSeconds"]) == (5, 6)


MODULES = [
    (None, ["KERNEL_MODULE_TYPE=auto"]),
    ("auto", ["KERNEL_MODULE_TYPE=auto"]),
    ("proprietary", ["KERNEL_MODULE_TYPE=proprietary"]),
    ("open", ["KERNEL_MODULE_TYPE=open", "OPEN_KERNEL_MODULES_ENABLED=true"]),
]


@pytest.mark.parametrize(("kind", "rows"), MODULES)
def test_4_4_kernel_modules(kind, rows):
    made = daemon_set({"kernelModuleType": kind, "useOpenKernelModules": True})
    assert [row for row in env_rows(made) if "MODULE" in row] == rows


def test_4_3_extras():
    extra = {"enabled": True, "repository": "r.example/x", "version": "v2", "env": [{"name": "E", "value": "1"}]}
    made = daemon_set(
        {
            "rdma": {"enabled": True, "useHostMofed": True},
            "gds": {**extra, "image": "nvidia-fs", "imagePullSecrets": ["g"]},
            "gdrcopy": {**extra, "image": "gdrdrv"},
            "kernelModuleType": "open",
        }
    )
    pod = notation.pod(made)
    assert [(each["name"], each["image"]) for each in pod["containers"]] == [
        ("nvidia-driver-ctr", "nvcr.io/nvidia/driver:580.126.20-ubuntu24.04"),
        ("nvidia-peermem-ctr", "nvcr.io/nvidia/driver:580.126.20-ubuntu24.04"),
        ("nvidia-fs-ctr", "r.example/x/nvidia-fs:v2-ubuntu24.04"),
        ("nvidia-gdrcopy-ctr", "r.example/x/gdrdrv:v2-ubuntu24.04"),
    ]
    assert notation.env(ctr(made, "nvidia-peermem-ctr")) == ["NVIDIA_VISIBLE_DEVICES=void", "USE_HOST_MOFED=true"]
    assert notation.env(ctr(made, "nvidia-fs-ctr")) == ["E=1"]
    flags = {"GPU_DIRECT_RDMA_ENABLED", "USE_HOST_MOFED", "GDS_ENABLED", "GDRCOPY_ENABLED"}
    assert flags <= {row.removesuffix("=true") for row in env_rows(made)}
    assert {"GPU_DIRECT_RDMA_ENABLED=true", "USE_HOST_MOFED=true"} <= set(env_rows(made, "k8s-driver-manager"))
    assert "mlnx-ofed-usr-src=/usr/src(DC)" in notation.volumes(pod)
    assert pod["imagePullSecrets"] == [{"name": "g"}]


LICENCES = [
    ({"secretName": "s"}, "licensing-config=secret s gridd.conf->gridd.conf", True),
    ({"secretName": "s", "name": "c", "nlsEnabled": True}, "licensing-config=secret s gridd.conf->gridd.conf", True),
    ({"secretName": "s", "nlsEnabled": False}, "licensing-config=secret s gridd.conf->gridd.conf", False),
    ({"name": "c"}, "licensing-config=c gridd.conf->gridd.conf", True),
]


@pytest.mark.parametrize(("given", "volume", "token"), LICENCES)
def test_2_licensing_with_nls_unless_switched_off(given, volume, token):
    made = daemon_set({"driverType": "vgpu", "licensingConfig": given})
    file = "client_configuration_token.tok"
    assert volume + (f" {file}->{file}" if token else "") in notation.volumes(notation.pod(made))
    mounted = f"licensing-config:/drivers/ClientConfigToken/{file}:ro (sub={file})" in notation.mounts(ctr(made))
    assert mounted is token
    assert "licensing-config:/drivers/gridd.conf:ro (sub=gridd.conf)" in notation.mounts(ctr(made))


FILES = {
    "repoConfig": {"name": "repos"},
    "certConfig": {"name": "certs"},
    "kernelModuleConfig": {"name": "params"},
    "virtualTopologyConfig": {"name": "topology"},
    "secretEnv": "hidden",
}
THERE = {
    "config_maps": {
        "repos": ("a.list",),
        "certs": ("ca.crt",),
        "params": ("nvidia.conf",),
        "topology": ("nvidia-topologyd.conf",),
    },
    "secrets": {"hidden": ("TOKEN",)},
}


def test_4_6_files_and_secrets():
    made = ctr(daemon_set(FILES, **THERE))
    assert {
        "repos:/etc/apt/sources.list.d/a.list:ro (sub=a.list)",
        "certs:/usr/local/share/ca-certificates/ca.crt:ro (sub=ca.crt)",
        "params:/drivers/nvidia.conf:ro (sub=nvidia.conf)",
        "topology-config:/etc/nvidia/nvidia-topologyd.conf:ro (sub=nvidia-topologyd.conf)",
    } <= set(notation.mounts(made))
    assert made["envFrom"] == [{"secretRef": {"name": "hidden"}}]
    skipped = ctr(daemon_set({**FILES, "usePrecompiled": True}, **THERE))
    assert "envFrom" not in skipped
    assert not [row for row in notation.mounts(skipped) if row.startswith(("repos:", "certs:"))]
    assert "params:/drivers/nvidia.conf:ro (sub=nvidia.conf)" in notation.mounts(skipped)


MISSING = [
    ({"secretEnv": "x"}, "spec.secretEnv: Secret 'x' does not exist in namespace 'gpu-operator'"),
    ({"repoConfig": {"name": "x"}}, "spec.repoConfig.name: ConfigMap 'x' does not exist"),
    ({"certConfig": {"name": "x"}}, "spec.certConfig.name: ConfigMap 'x' does not exist"),
    ({"kernelModuleConfig": {"name": "x"}}, "spec.kernelModuleConfig.name: ConfigMap 'x' does not exist"),
    ({"virtualTopologyConfig": {"name": "x"}}, "spec.virtualTopologyConfig.name: ConfigMap 'x' does not exist"),
    ({"licensingConfig": {"secretName": "x"}}, "spec.licensingConfig.secretName: Secret 'x' does not exist"),
    ({"licensingConfig": {"name": "x"}}, "spec.licensingConfig.name: ConfigMap 'x' does not exist"),
]


@pytest.mark.parametrize(("spec", "text"), MISSING)
def test_2_2_what_is_missing_is_named_by_its_field_here(spec, text):
    assert text in problem(spec, config_maps={"x": None}, secrets={"x": None})


def test_references_are_what_must_be_looked_up():
    licensed = driver({"licensingConfig": {"secretName": "licence", "name": "old"}})
    found = nvidiadriver.references([driver(FILES).spec, licensed.spec, driver().spec])
    assert found.config_maps == {"repos", "certs", "params", "topology", "old"}
    assert found.secrets == {"hidden", "licence"}


def test_2_2_host_root_is_the_policys():
    pod = notation.pod(daemon_set(host_root="/host"))
    assert "host-root=/host(-)" in notation.volumes(pod)
    assert "host-root=/(-)" in notation.volumes(notation.pod(daemon_set(host_root="")))


# --- The kinds of driver ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_2_4_host_manager(release):
    made = daemon_set(
        {
            "driverType": "vgpu-host-manager",
            "livenessProbe": {"periodSeconds": 5},
            "readinessProbe": {"periodSeconds": 5},
        },
        release=release,
    )
    assert made["metadata"]["name"] == "nvidia-vgpu-host-manager-driver-ubuntu24.04-67cc6dbb79"
    assert made["metadata"]["labels"]["app.kubernetes.io/component"] == "nvidia-vgpu-host-manager"
    pod = notation.pod(made)
    assert pod["serviceAccountName"] == "nvidia-vgpu-manager-a-ubuntu24.04"
    assert pod["terminationGracePeriodSeconds"] == 120
    assert pod["nodeSelector"]["nvidia.com/gpu.deploy.vgpu-manager"] == "true"
    assert DEPLOY not in pod["nodeSelector"]
    main = ctr(made)
    assert {"cgroup:/sys/fs/cgroup", "vfio:/dev/vfio"} <= set(notation.mounts(main))
    assert {"cgroup=/sys/fs/cgroup(-)", "vfio=/dev/vfio(-)"} <= set(notation.volumes(pod))
    assert "startupProbe" not in main and "lifecycle" not in main
    assert main["livenessProbe"]["exec"] == main["readinessProbe"]["exec"], "no file tells that it is ready"


def test_vgpu_guest_is_named_so():
    made = daemon_set({"driverType": "vgpu"})
    assert made["metadata"]["name"] == "nvidia-vgpu-driver-ubuntu24.04-67cc6dbb79"
    assert notation.pod(made)["serviceAccountName"] == "nvidia-vgpu-driver-a-ubuntu24.04"
    assert notation.pod(made)["nodeSelector"][DEPLOY] == "true"


def test_2_4_precompiled():
    made = daemon_set({"usePrecompiled": True, "version": "580"})
    kernel = "6.8.0-60-generic"
    assert ctr(made)["image"] == f"nvcr.io/nvidia/driver:580-{kernel}-ubuntu24.04"
    for metadata in (made["metadata"], made["spec"]["template"]["metadata"]):
        assert metadata["labels"]["nvidia.com/precompiled"] == "true"
        assert metadata["labels"]["nvidia.com/precompiled.kernel-version"] == kernel
    assert notation.pod(made)["nodeSelector"][nvidiadrivers.KERNEL] == kernel
    assert made["metadata"]["name"] != NAME


RHCOS = {"os": "rhcos:4.18", "ostree": "418.94.1"}


def test_2_4_driver_toolkit_of_openshift():
    shift = OpenShift(version="4.18", driver_toolkit={"418.94.1": "toolkit:1"})
    proxies = Proxies(http="h", https="s", no_proxy="n", trusted_ca="own")
    made = daemon_set(None, {"n": node(**RHCOS)}, openshift=shift, proxies=proxies)
    labels = made["spec"]["template"]["metadata"]["labels"]
    assert labels["openshift.driver-toolkit"] == "true"
    assert labels["openshift.driver-toolkit.rhcos"] == "418.94.1"
    assert notation.pod(made)["nodeSelector"][nvidiadrivers.OSTREE] == "418.94.1"
    assert [each["name"] for each in notation.pod(made)["containers"]][-1] == "openshift-driver-toolkit-ctr"
    assert (ctr(made)["command"], ctr(made)["args"]) == (["ocp_dtk_entrypoint"], ["nv-ctr-run-with-dtk"])
    rows = env_rows(made)
    assert {"OPENSHIFT_VERSION=4.18", "HTTPS_PROXY=s", "https_proxy=s", "NO_PROXY=n"} <= set(rows)
    sidecar = notation.env_dict(ctr(made, "openshift-driver-toolkit-ctr"))
    assert sidecar["DRIVER_CONFIG_DIGEST"] == digest(made)
    assert notation.mounts(ctr(made, "openshift-driver-toolkit-ctr")) == [
        "shared-nvidia-driver-toolkit:/mnt/shared-nvidia-driver-toolkit",
        "var-log:/var/log",
        "mlnx-ofed-usr-src:/run/mellanox/drivers/usr/src:H",
        "host-os-release:/host-etc/os-release:ro",
        "firmware-search-path:/sys/module/firmware_class/parameters/path",
        "nv-firmware:/lib/firmware",
    ]
    missing = daemon_set(None, {"n": node(**{**RHCOS, "ostree": "9"})}, openshift=shift)
    assert missing["metadata"]["labels"]["openshift.driver-toolkit.rhcos-image-missing"] == "true"
    assert "RHCOS_IMAGE_MISSING=true" in env_rows(missing)


def test_the_toolkit_loads_a_host_manager_itself():
    shift = OpenShift(version="4.18", driver_toolkit={"418.94.1": "toolkit:1"})
    made = daemon_set({"driverType": "vgpu-host-manager"}, {"n": node(**RHCOS)}, openshift=shift)
    assert "run-nvidia:/run/nvidia:B" in notation.mounts(ctr(made, "openshift-driver-toolkit-ctr"))


def test_on_openshift_each_driver_has_its_scc():
    made = render(None, {"n": node(**RHCOS)}, openshift=OpenShift(version="4.18"))
    (scc,) = [each for each in made.objects if each["kind"] == "SecurityContextConstraints"]
    assert scc["metadata"]["name"] == "nvidia-gpu-driver-a-rhcos4.18"
    assert scc["users"] == ["system:serviceaccount:gpu-operator:nvidia-gpu-driver-a-rhcos4.18"]


# --- Images: 2.1 ------------------------------------------------------------------------------------------------------
DIGEST = "sha256:" + "0123456789abcdef" * 4
IMAGES = [
    ({}, "nvcr.io/nvidia/driver:580.126.20-ubuntu24.04"),
    ({"version": DIGEST}, f"nvcr.io/nvidia/driver@{DIGEST}"),
    ({"repository": None, "version": None, "image": "r.example:5000/d:1.2"}, "r.example:5000/d:1.2-ubuntu24.04"),
    ({"repository": None, "version": None, "image": f"r.example/d@{DIGEST}"}, f"r.example/d@{DIGEST}"),
    ({"usePrecompiled": True, "version": "580"}, "nvcr.io/nvidia/driver:580-6.8.0-60-generic-ubuntu24.04"),
    (
        {"usePrecompiled": True, "repository": None, "version": None, "image": "r/d:580"},
        "r/d:580-6.8.0-60-generic-ubuntu24.04",
    ),
]


@pytest.mark.parametrize(("spec", "image"), IMAGES)
def test_2_1_image(spec, image):
    assert ctr(daemon_set(spec))["image"] == image


NO_IMAGES = [
    ({"repository": None, "version": None, "image": "nvcr.io/nvidia/driver"}, "neither a tag nor a digest"),
    ({"repository": None, "version": None, "image": None}, "'nvcr.io/nvidia/driver' has neither a tag"),
    ({"repository": None, "version": None, "image": "host:5000/driver"}, "neither a tag nor a digest"),
    ({"usePrecompiled": True, "repository": None, "version": None, "image": "r/d"}, "neither a tag nor a digest"),
    ({"image": "driver:1"}, "spec.image: 'driver:1' holds a tag or a digest"),
    ({"image": f"driver@{DIGEST}"}, "holds a tag or a digest"),
    ({"image": None}, "'nvcr.io/nvidia/driver' begins with spec.repository"),
    ({"version": None}, "found repository='nvcr.io/nvidia', image='driver', version=''"),
    ({"repository": None}, "found repository='', image='driver', version='580.126.20'"),
    ({"usePrecompiled": True, "version": DIGEST}, "cannot be pinned by digest"),
    ({"repository": "NVCR.io/Nvidia"}, "'NVCR.io/Nvidia/driver:580.126.20-ubuntu24.04', which is no image reference"),
    ({"version": "580 126"}, "no image reference"),
    ({"version": "sha256:12"}, "no image reference"),
    ({"gds": {"enabled": True}, "kernelModuleType": "open"}, "spec.gds: no image: set repository"),
    ({"gdrcopy": {"enabled": True, "image": "g"}}, "spec.gdrcopy.image: 'g' has neither a tag"),
]


@pytest.mark.parametrize(("spec", "text"), NO_IMAGES)
def test_2_1_what_is_no_image(spec, text):
    assert text in problem(spec)


def test_the_manager_falls_back_to_the_operators_default_and_the_driver_does_not():
    manager = {"repository": "r", "image": "m", "version": "1"}
    assert ctr(daemon_set({"manager": manager}), "k8s-driver-manager")["image"] == "r/m:1"
    assert "spec.manager: no image" in problem(default_images={})


# --- The operator's own manager image: 2.4, default-image rule --------------------------------------------------------
NEWER = {"DRIVER_MANAGER_IMAGE": "manager:newer"}


def manager_of(spec, live, **more):
    return ctr(daemon_set(spec, live=live, default_images=NEWER, **more), "k8s-driver-manager")["image"]


def test_2_4_an_upgrade_of_the_operator_alone_rolls_no_driver():
    before = daemon_set()
    assert daemon_set(live=[before], default_images=NEWER) == before
    assert manager_of(None, []) == "manager:newer"


KEEP = [
    ({"tolerations": [{"operator": "Exists"}]}, True),
    ({"labels": {"a": "b"}}, True),
    ({"version": "595.91.07"}, False),
    ({"env": [{"name": "A", "value": "b"}]}, False),
    ({"kernelModuleType": "open"}, False),
    ({"manager": {"env": [{"name": "A", "value": "b"}]}}, False),
]


@pytest.mark.parametrize(("spec", "keeps"), KEEP)
def test_2_4_the_new_manager_comes_with_the_next_installation(spec, keeps):
    assert manager_of(spec, [daemon_set()]) == (MANAGER if keeps else "manager:newer")


def test_2_4_a_manager_that_the_driver_names_is_taken_at_once():
    own = {"manager": {"repository": "r", "image": "m", "version": "2"}}
    assert manager_of(own, [daemon_set({"manager": {**own["manager"], "version": "1"}})]) == "r/m:2"


def test_a_live_daemon_set_without_a_manager_counts_for_nothing():
    live = daemon_set()
    live["spec"]["template"]["spec"]["initContainers"] = []
    assert manager_of(None, [live]) == "manager:newer"


# --- The digest: contracts/driver-lifecycle.md 4 ----------------------------------------------------------------------
SAME = [
    {"tolerations": [{"operator": "Exists"}]},
    {"labels": {"a": "b"}},
    {"annotations": {"a": "b"}},
    {"priorityClassName": "x"},
    {"resources": {"limits": {"cpu": "1"}}},
    {"startupProbe": {"periodSeconds": 5}},
    {"hostNetwork": True},
    {"nodeSelector": {PRESENT: "true"}},
    {"upgradePolicy": {"autoUpgrade": False}},
    {"manager": {"env": []}},
]
OTHER = [
    {"version": "1"},
    {"driverType": "vgpu-host-manager"},
    {"kernelModuleType": "open"},
    {"args": ["-m", "4"]},
    {"env": [{"name": "A", "value": "b"}]},
    {"rdma": {"enabled": True}},
    {"manager": {"env": [{"name": "A", "value": "b"}]}},
    {"usePrecompiled": True},
    {"kernelModuleConfig": {"name": "params"}},
    {"secretEnv": "hidden"},
    {"licensingConfig": {"secretName": "s"}},
]


@pytest.mark.parametrize("spec", SAME, ids=str)
def test_4_what_leaves_the_digest_alone(spec):
    assert digest(daemon_set(spec)) == digest(daemon_set())


@pytest.mark.parametrize("spec", OTHER, ids=str)
def test_4_what_changes_the_digest(spec):
    assert digest(daemon_set(spec, **THERE)) != digest(daemon_set())


# --- What all drivers share -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_2_4_the_startup_probe_belongs_to_all_drivers_and_is_controlled_by_none(release):
    drivers = [
        driver(name="b", uid="2"),
        driver(name="a", uid="1"),
        driver(name="c", uid="3", deletionTimestamp="2026-01-01T00:00:00Z"),
    ]
    (made,) = nvidiadriver.shared(drivers, facts(release))
    assert (made["kind"], made["metadata"]["name"]) == ("ConfigMap", "nvidia-driver-startup-probe")
    assert made["metadata"]["labels"]["nvidia.com/gpu-operator.state"] == "state-driver"
    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "name": name, "uid": uid}
        for name, uid in (("a", "1"), ("b", "2"))
    ]
    assert ("daemons" in made["data"]["startup-probe.sh"]) is (release is Release.V26_7)
    assert nvidiadriver.shared([], facts(release)) == []
    assert nvidiadriver.shared(drivers[2:], facts(release)) == []


def test_openshifts_authorities_are_shared_too():
    proxied = facts(openshift=OpenShift(version="4.18"), proxies=Proxies(trusted_ca="own"))
    assert [each["metadata"]["name"] for each in nvidiadriver.shared([driver()], proxied)] == [
        "nvidia-driver-startup-probe",
        "gpu-operator-trusted-ca",
    ]
