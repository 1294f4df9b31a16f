"""Every option of the driver section, on and off: contracts/control-plane.md 1.3, 1.5, 4.4 and 4.6."""

import pytest
from operands import notation, rendering

from groundplane.api.release import Release

DRIVER = "nvidia-driver-daemonset"
CTR, MANAGER = "nvidia-driver-ctr", "k8s-driver-manager"
PLAIN = rendering.daemon_set(DRIVER)


def render(changes, name="26.7.0-default", **more):
    return rendering.daemon_set(DRIVER, name, changes, **more)


def added(kind, changed, container=CTR, name="26.7.0-default"):
    """Rows that a container (or with ``volumes`` the pod) has beyond the plain policy's, digest aside."""
    rows = getattr(notation, kind)
    of = notation.pod if kind == "volumes" else lambda ds: notation.container(ds, container)
    before = rows(of(rendering.daemon_set(DRIVER, name)))
    return [row for row in rows(of(changed)) if row not in before and not row.startswith("DRIVER_CONFIG_DIGEST")]


def containers(daemon_set):
    return [each["name"] for each in notation.pod(daemon_set)["containers"]]


# --- Images and common fields -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("section", "variables", "image"),
    [
        ({"repository": "r", "image": "d", "version": "1"}, {}, "r/d:1-ubuntu24.04"),
        ({"repository": "r", "image": "d", "version": "sha256:ab"}, {}, "r/d@sha256:ab"),
        ({"repository": None, "image": "r/d:1", "version": None}, {}, "r/d:1-ubuntu24.04"),
        ({"repository": None, "image": "r/d@sha256:ab", "version": None}, {}, "r/d@sha256:ab"),
        ({"repository": None, "image": None, "version": None}, {"DRIVER_IMAGE": "e/d:2"}, "e/d:2-ubuntu24.04"),
    ],
)
def test_image(section, variables, image):
    found = render({"driver": section}, default_images=variables)
    assert notation.container(found, CTR)["image"] == image


@pytest.mark.parametrize(
    ("release", "os_id", "version", "tag"),
    [
        (Release.V26_7, "rhel", "9.4", "rhel9"),
        (Release.V26_3, "rhel", "9.4", "rhel9.4"),
        (Release.V26_3, "rhel", "10.0", "rhel10"),
        (Release.V26_7, "rocky", "9.4", "rocky9"),
        (Release.V26_3, "ol", "9.4", "ol9.4"),
        (Release.V26_7, "sl-micro", "6.0", "sl-micro6.0"),
    ],
)
def test_image_suffix_is_the_nodes_operating_system(release, os_id, version, tag):
    nodes = (rendering.node(os_id=os_id, os_version=version),)
    found = render({}, rendering.DEFAULTS[release], nodes=nodes)
    assert notation.container(found, CTR)["image"].endswith(f"-{tag}")


def test_image_errors_name_the_field():
    error = rendering.error({"driver": {"version": None}})
    assert error.state == "state-driver"
    assert "spec.driver" in error.message
    assert "version=''" in error.message
    error = rendering.error({"driver": {"repository": None, "image": None, "version": None}})
    assert "DRIVER_IMAGE" in error.message
    error = rendering.error({"driver": {"manager": {"repository": None, "image": None, "version": None}}})
    assert "spec.driver.manager" in error.message
    assert "DRIVER_MANAGER_IMAGE" in error.message


def test_node_without_operating_system_labels_is_an_error():
    error = rendering.error({}, nodes=(rendering.node("gpu-7", os_version=""),))
    assert error.state == "state-driver"
    assert "gpu-7" in error.message
    assert "system-os_release.VERSION_ID" in error.message


def test_pull_policy_and_secrets():
    changes = {
        "driver": {
            "imagePullPolicy": "Always",
            "imagePullSecrets": ["a", "b"],
            "manager": {"imagePullPolicy": "nonsense", "imagePullSecrets": ["m", "a"]},
        },
        "gds": {"enabled": True, "imagePullPolicy": "Never", "imagePullSecrets": ["g", "b"]},
        "gdrcopy": {"enabled": True, "imagePullSecrets": ["c"]},
    }
    found = render(changes)
    assert notation.pod(found)["imagePullSecrets"] == [{"name": name} for name in ("m", "a", "b", "g", "c")]
    assert notation.container(found, CTR)["imagePullPolicy"] == "Always"
    assert notation.container(found, MANAGER)["imagePullPolicy"] == "IfNotPresent"
    assert notation.container(found, "nvidia-fs-ctr")["imagePullPolicy"] == "Never"


RESOURCES = {"limits": {"memory": "2Gi"}, "requests": {"cpu": "500m"}}


@pytest.mark.parametrize(("file", "init"), [("26.3.3-default", False), ("26.7.0-default", True)])
def test_resources_reach_every_container(file, init):
    changes = {"driver": {"resources": RESOURCES, "rdma": {"enabled": True}}, "gds": {"enabled": True}}
    found = render(changes, file)
    assert containers(found) == [CTR, "nvidia-peermem-ctr", "nvidia-fs-ctr"]
    assert all(each["resources"] == RESOURCES for each in notation.pod(found)["containers"])
    assert notation.container(found, MANAGER).get("resources") == (RESOURCES if init else None)


def test_args_env_and_host_network():
    changes = {
        "driver": {
            "args": ["init", "-m", "8"],
            "env": [{"name": "KERNEL_MODULE_TYPE", "value": "mine"}, {"name": "A", "value": "1"}, {"name": "E"}],
            "hostNetwork": True,
            "manager": {"env": [{"name": "ENABLE_AUTO_DRAIN", "value": "true"}, {"name": "B", "value": "2"}]},
        }
    }
    found = render(changes)
    assert notation.container(found, CTR)["args"] == ["init", "-m", "8"]
    assert notation.env(notation.container(found, CTR))[2:-1] == ["KERNEL_MODULE_TYPE=mine", "A=1", "E="]
    manager = notation.env(notation.container(found, MANAGER))
    assert manager[3] == "ENABLE_AUTO_DRAIN=true"
    assert manager[-2] == "B=2"
    pod = notation.pod(found)
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (None, []),
        ("auto", ["KERNEL_MODULE_TYPE=auto"]),
        ("proprietary", ["KERNEL_MODULE_TYPE=proprietary"]),
        ("open", ["KERNEL_MODULE_TYPE=open", "OPEN_KERNEL_MODULES_ENABLED=true"]),
    ],
)
def test_kernel_module_type(kind, rows):
    found = render({"driver": {"kernelModuleType": kind, "useOpenKernelModules": True}})
    assert notation.env(notation.container(found, CTR))[2:-1] == rows


def test_a_user_cannot_set_the_digest():
    found = render({"driver": {"env": [{"name": "DRIVER_CONFIG_DIGEST", "value": "7"}]}})
    plain = notation.env_dict(notation.container(PLAIN, CTR))["DRIVER_CONFIG_DIGEST"]
    assert notation.env_dict(notation.container(found, CTR))["DRIVER_CONFIG_DIGEST"] == plain


# --- Probes -----------------------------------------------------------------------------------------------------------
def test_probe_timing_overrides_what_is_set():
    changes = {"driver": {"startupProbe": {"initialDelaySeconds": 5, "timeoutSeconds": 0, "failureThreshold": None}}}
    probe = notation.container(render(changes), CTR)["startupProbe"]
    assert (probe["initialDelaySeconds"], probe["timeoutSeconds"]) == (5, 60)
    assert (probe["periodSeconds"], probe["failureThreshold"]) == (10, 120)


@pytest.mark.parametrize(
    ("field", "file"),
    [
        ("livenessProbe", "/sys/module/nvidia/refcnt"),
        ("readinessProbe", "/run/nvidia/validations/.driver-ctr-ready"),
    ],
)
def test_probes_on_request(field, file):
    assert field not in notation.container(render({"driver": {field: {}}}), CTR)
    probe = notation.container(render({"driver": {field: {"periodSeconds": 30}}}), CTR)[field]
    assert probe == {"exec": {"command": ["sh", "-c", f"[ -f {file} ]"]}, "periodSeconds": 30}


# --- RDMA, GDS, GDRCopy -----------------------------------------------------------------------------------------------
def test_rdma():
    found = render({"driver": {"rdma": {"enabled": True}}})
    assert containers(found) == [CTR, "nvidia-peermem-ctr"]
    assert added("env", found) == ["GPU_DIRECT_RDMA_ENABLED=true"]
    assert added("env", found, MANAGER) == ["GPU_DIRECT_RDMA_ENABLED=true"]
    assert added("volumes", found) == []
    peermem = notation.container(found, "nvidia-peermem-ctr")
    assert peermem["image"] == notation.container(found, CTR)["image"]
    assert (peermem["command"], peermem["args"]) == (["nvidia-driver"], ["reload_nvidia_peermem"])
    assert notation.env(peermem) == []
    assert notation.mounts(peermem) == [
        "run-nvidia:/run/nvidia:B",
        "var-log:/var/log",
        "dev-log:/dev/log:ro",
        "run-mellanox-drivers:/run/mellanox/drivers:H",
    ]
    check = {"command": ["sh", "-c", "nvidia-driver probe_nvidia_peermem"]}
    timing = {"timeoutSeconds": 10, "successThreshold": 1, "exec": check}
    assert peermem["startupProbe"] == {
        **timing,
        "initialDelaySeconds": 10,
        "periodSeconds": 10,
        "failureThreshold": 120,
    }
    assert peermem["livenessProbe"] == {
        **timing,
        "initialDelaySeconds": 30,
        "periodSeconds": 30,
        "failureThreshold": 1,
    }
    assert notation.security(peermem) == "privileged S0"


def test_rdma_with_the_hosts_network_driver():
    found = render({"driver": {"rdma": {"enabled": True, "useHostMofed": True}}})
    flags = ["GPU_DIRECT_RDMA_ENABLED=true", "USE_HOST_MOFED=true"]
    assert added("env", found) == flags
    assert added("env", found, MANAGER) == flags
    assert notation.env(notation.container(found, "nvidia-peermem-ctr")) == ["USE_HOST_MOFED=true"]
    assert added("volumes", found) == ["mlnx-ofed-usr-src=/usr/src(DC)"]


def test_host_network_driver_counts_only_with_rdma():
    assert render({"driver": {"rdma": {"enabled": False, "useHostMofed": True}}}) == PLAIN


EXTRAS = {
    "gds": ("nvidia-fs-ctr", "GDS_ENABLED=true", "nvidia-gds-driver", "nvidia_fs"),
    "gdrcopy": ("nvidia-gdrcopy-ctr", "GDRCOPY_ENABLED=true", "nvidia-gdrcopy-driver", "gdrdrv"),
}


@pytest.mark.parametrize("section", EXTRAS)
def test_extra_modules(section):
    name, flag, installer, module = EXTRAS[section]
    changes = {
        section: {
            "enabled": True,
            "repository": "r",
            "image": "x",
            "version": "v2",
            "env": [{"name": "A", "value": "1"}],
        }
    }
    found = render(changes)
    assert containers(found) == [CTR, name]
    assert added("env", found) == [flag]
    assert added("env", found, MANAGER) == []
    extra = notation.container(found, name)
    assert extra["image"] == "r/x:v2-ubuntu24.04"
    assert extra["command"] == ["bash", "-xc"]
    (script,) = extra["args"]
    assert "[ -d /run/nvidia/driver/usr/src ] && lsmod | grep nvidia" in script
    assert script.endswith(f"exec {installer} install")
    assert notation.env(extra) == ["A=1"]
    assert notation.mounts(extra) == ["run-nvidia:/run/nvidia:H", "var-log:/var/log", "dev-log:/dev/log:ro"]
    assert notation.security(extra) == "privileged S0"
    assert extra["startupProbe"] == {
        "exec": {"command": ["sh", "-c", f"lsmod | grep {module}"]},
        "initialDelaySeconds": 10,
        "periodSeconds": 10,
        "timeoutSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 120,
    }
    assert "envFrom" not in extra
    replaced = render({section: {**changes[section], "args": ["exec mine"]}})
    assert notation.container(replaced, name)["args"] == ["exec mine"]
    assert render({section: {"enabled": False}}) == PLAIN


def test_extra_modules_in_order_after_peermem():
    changes = {"driver": {"rdma": {"enabled": True}}, "gds": {"enabled": True}, "gdrcopy": {"enabled": True}}
    found = render(changes)
    assert containers(found) == [CTR, "nvidia-peermem-ctr", "nvidia-fs-ctr", "nvidia-gdrcopy-ctr"]
    assert added("env", found) == ["GDRCOPY_ENABLED=true", "GDS_ENABLED=true", "GPU_DIRECT_RDMA_ENABLED=true"]


@pytest.mark.parametrize("section", EXTRAS)
def test_extra_modules_exclude_precompiled_drivers(section):
    error = rendering.error({"driver": {"usePrecompiled": True}, section: {"enabled": True}})
    assert error.state == "state-driver"
    assert f"spec.{section}.enabled" in error.message
    assert "spec.driver.usePrecompiled" in error.message


@pytest.mark.parametrize(("section", "variable"), [("gds", "GDS_IMAGE"), ("gdrcopy", "GDRCOPY_IMAGE")])
def test_extra_modules_without_an_image(section, variable):
    nothing = {"enabled": True, "repository": None, "image": None, "version": None}
    assert variable in rendering.error({section: nothing}).message
    found = render({section: nothing}, default_images={variable: "e/x:1"})
    assert notation.pod(found)["containers"][1]["image"] == "e/x:1-ubuntu24.04"


# --- Licensing, topology, module parameters ---------------------------------------------------------------------------
GRIDD = "licensing-config:/drivers/gridd.conf:ro (sub=gridd.conf)"
TOKEN_FILE = "client_configuration_token.tok"
TOKEN = f"licensing-config:/drivers/ClientConfigToken/{TOKEN_FILE}:ro (sub={TOKEN_FILE})"
ITEMS = f" gridd.conf->gridd.conf {TOKEN_FILE}->{TOKEN_FILE}"


@pytest.mark.parametrize(
    ("licensing", "mounts", "volume"),
    [
        ({"secretName": "s", "nlsEnabled": True}, [GRIDD, TOKEN], f"licensing-config=secret s{ITEMS}"),
        ({"secretName": "s", "nlsEnabled": False}, [GRIDD], "licensing-config=secret s gridd.conf->gridd.conf"),
        ({"secretName": "s", "nlsEnabled": None}, [GRIDD], "licensing-config=secret s gridd.conf->gridd.conf"),
        ({"configMapName": "c", "nlsEnabled": True}, [GRIDD, TOKEN], f"licensing-config=c{ITEMS}"),
        ({"secretName": "s", "configMapName": "c"}, [GRIDD, TOKEN], f"licensing-config=secret s{ITEMS}"),
    ],
)
def test_licensing(licensing, mounts, volume):
    found = render({"driver": {"licensingConfig": licensing}})
    assert added("mounts", found) == mounts
    assert added("volumes", found) == [volume]


def test_no_licensing():
    assert render({"driver": {"licensingConfig": {"nlsEnabled": True, "secretName": "", "configMapName": ""}}}) == PLAIN


def test_topology():
    found = render({"driver": {"virtualTopology": {"config": "topo"}}})
    file = "nvidia-topologyd.conf"
    assert added("mounts", found) == [f"topology-config:/etc/nvidia/{file}:ro (sub={file})"]
    assert added("volumes", found) == [f"topology-config=topo {file}->{file}"]


def test_module_parameters_reach_driver_and_peermem():
    changes = {"driver": {"kernelModuleConfig": {"name": "params"}, "rdma": {"enabled": True}}}
    found = render(changes, config_maps={"params": ("nvidia.conf", "nvidia-uvm.conf")})
    rows = [
        "params:/drivers/nvidia-uvm.conf:ro (sub=nvidia-uvm.conf)",
        "params:/drivers/nvidia.conf:ro (sub=nvidia.conf)",
    ]
    assert added("mounts", found) == rows
    assert notation.mounts(notation.container(found, "nvidia-peermem-ctr"))[-2:] == rows
    assert added("volumes", found) == ["params=params nvidia-uvm.conf->nvidia-uvm.conf nvidia.conf->nvidia.conf"]


# --- Repositories, certificates, secrets ------------------------------------------------------------------------------
REPO_AND_CERT = {"driver": {"repoConfig": {"configMapName": "repos"}, "certConfig": {"name": "certs"}}}
FILES = {"repos": ("b.repo", "a.repo"), "certs": ("ca.pem",)}
RED_HAT = ("/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem")
DEBIAN = ("/etc/apt/sources.list.d", "/usr/local/share/ca-certificates")
SUSE = ("/etc/zypp/repos.d", "/etc/pki/trust/anchors")
FAMILIES = {
    "centos": RED_HAT,
    "rhcos": RED_HAT,
    "rhel": RED_HAT,
    "rocky": RED_HAT,
    "ol": RED_HAT,
    "debian": DEBIAN,
    "ubuntu": DEBIAN,
    "sles": SUSE,
    "sl-micro": SUSE,
}


@pytest.mark.parametrize("os_id", FAMILIES)
def test_repositories_and_certificates(os_id):
    repositories, certificates = FAMILIES[os_id]
    changes = {**REPO_AND_CERT, "gds": {"enabled": True}, "gdrcopy": {"enabled": True}}
    found = render(changes, config_maps=FILES, nodes=(rendering.node(os_id=os_id, os_version="9"),))
    rows = [
        f"repos:{repositories}/a.repo:ro (sub=a.repo)",
        f"repos:{repositories}/b.repo:ro (sub=b.repo)",
        f"certs:{certificates}/ca.pem:ro (sub=ca.pem)",
    ]
    for name in (CTR, "nvidia-fs-ctr", "nvidia-gdrcopy-ctr"):
        mounts = notation.mounts(notation.container(found, name))
        assert [row for row in mounts if row.startswith(("repos", "certs"))] == rows
    volumes = ["repos=repos a.repo->a.repo b.repo->b.repo", "certs=certs ca.pem->ca.pem"]
    assert [row for row in added("volumes", found) if "subscription" not in row] == volumes


@pytest.mark.parametrize("field", ["repoConfig", "certConfig"])
def test_unsupported_operating_system(field):
    key = "configMapName" if field == "repoConfig" else "name"
    changes = {"driver": {field: {key: "repos"}}}
    nodes = (rendering.node(os_id="talos", os_version="v1.9.1"),)
    error = rendering.error(changes, config_maps=FILES, nodes=nodes)
    assert error.state == "state-driver"
    assert f"spec.driver.{field}.{key}" in error.message
    assert "'talos'" in error.message
    assert "ubuntu" in error.message


def test_one_config_map_for_two_purposes_is_one_volume():
    changes = {"driver": {"repoConfig": {"configMapName": "both"}, "certConfig": {"name": "both"}}}
    found = render(changes, config_maps={"both": ("x",)})
    assert len(added("mounts", found)) == 2
    assert added("volumes", found) == ["both=both x->x"]


@pytest.mark.parametrize("name", ["my.repos", "run-nvidia", "subscription-config-0", "r" * 64])
def test_config_map_whose_name_no_volume_can_have(name):
    changes = {"driver": {"repoConfig": {"configMapName": name}}}
    found = render(changes, config_maps={name: ("x",)})
    assert added("mounts", found) == ["repo-config:/etc/apt/sources.list.d/x:ro (sub=x)"]
    assert added("volumes", found) == [f"repo-config={name} x->x"]


def test_every_volume_name_of_ours_is_reserved():
    from groundplane.operands import driver_config

    for file in ("26.3.3-default", "26.7.0-default"):
        names = {volume["name"] for volume in notation.pod(rendering.daemon_set(DRIVER, file))["volumes"]}
        assert names <= driver_config.TAKEN


def test_secret_environment():
    changes = {"driver": {"secretEnv": "env"}, "gds": {"enabled": True}, "gdrcopy": {"enabled": True}}
    found = render(changes, secrets={"env": ("TOKEN",)})
    for name in (CTR, "nvidia-fs-ctr", "nvidia-gdrcopy-ctr"):
        assert notation.container(found, name)["envFrom"] == [{"secretRef": {"name": "env"}}]
    assert "envFrom" not in notation.container(found, MANAGER)


RHEL_ROWS = [
    ("/run/secrets/etc-pki-entitlement", "/etc/pki/entitlement(D)"),
    ("/run/secrets/redhat.repo", "/etc/yum.repos.d/redhat.repo(F)"),
    ("/run/secrets/rhsm", "/etc/rhsm(D)"),
]
SUSE_ROWS = [
    ("/etc/SUSEConnect", "/etc/SUSEConnect(FC)"),
    ("/etc/zypp/credentials.d", "/etc/zypp/credentials.d(D)"),
]
WITH_REPO = {"driver": {"repoConfig": {"configMapName": "repos"}}}


@pytest.mark.parametrize(
    ("file", "os_id", "changes", "facts", "rows"),
    [
        ("26.7.0-default", "rhel", {}, {}, RHEL_ROWS),
        ("26.7.0-default", "rhel", {}, {"runtime": "docker"}, RHEL_ROWS),
        ("26.7.0-default", "rhel", {}, {"runtime": "crio"}, []),
        ("26.7.0-default", "rhel", WITH_REPO, {}, []),
        ("26.3.3-default", "rhel", WITH_REPO, {}, RHEL_ROWS),
        ("26.7.0-default", "rocky", {}, {}, []),
        ("26.7.0-default", "ubuntu", {}, {}, []),
        ("26.7.0-default", "sles", {}, {}, SUSE_ROWS),
        ("26.7.0-default", "sles", WITH_REPO, {}, SUSE_ROWS),
        ("26.3.3-default", "sl-micro", {}, {"runtime": "crio"}, SUSE_ROWS),
    ],
)
def test_subscriptions(file, os_id, changes, facts, rows):
    nodes = (rendering.node(os_id=os_id, os_version="9"),)
    found = render(changes, file, nodes=nodes, config_maps=FILES, **facts)
    mounts = [row for row in notation.mounts(notation.container(found, CTR)) if row.startswith("subscription")]
    volumes = [row for row in notation.volumes(notation.pod(found)) if row.startswith("subscription")]
    assert mounts == [f"subscription-config-{i}:{path}:ro" for i, (path, _) in enumerate(rows)]
    assert volumes == [f"subscription-config-{i}={host}" for i, (_, host) in enumerate(rows)]


# --- Missing objects --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("section", "field", "kind"),
    [
        ({"repoConfig": {"configMapName": "x"}}, "spec.driver.repoConfig.configMapName", "ConfigMap"),
        ({"certConfig": {"name": "x"}}, "spec.driver.certConfig.name", "ConfigMap"),
        ({"kernelModuleConfig": {"name": "x"}}, "spec.driver.kernelModuleConfig.name", "ConfigMap"),
        ({"virtualTopology": {"config": "x"}}, "spec.driver.virtualTopology.config", "ConfigMap"),
        ({"secretEnv": "x"}, "spec.driver.secretEnv", "Secret"),
        ({"licensingConfig": {"secretName": "x"}}, "spec.driver.licensingConfig.secretName", "Secret"),
        ({"licensingConfig": {"configMapName": "x"}}, "spec.driver.licensingConfig.configMapName", "ConfigMap"),
    ],
)
def test_missing_object(section, field, kind):
    error = rendering.error({"driver": section}, config_maps={"x": None}, secrets={"x": None})
    assert error.state == "state-driver"
    assert str(error).startswith(f"state-driver: {field}: {kind} 'x' does not exist in namespace 'gpu-operator'")


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"licensingConfig": {"secretName": "x", "nlsEnabled": True}}, "client_configuration_token.tok"),
        ({"virtualTopology": {"config": "x"}}, "nvidia-topologyd.conf"),
    ],
)
def test_missing_key(section, key):
    error = rendering.error({"driver": section}, config_maps={"x": ("gridd.conf",)}, secrets={"x": ("gridd.conf",)})
    assert f"'x' in namespace 'gpu-operator' has no key '{key}'" in error.message


def test_licence_with_all_its_keys():
    files = ("client_configuration_token.tok", "gridd.conf")
    changes = {"driver": {"licensingConfig": {"secretName": "s", "nlsEnabled": True}}}
    assert render(changes, secrets={"s": files}) == render(changes)


# --- Host root --------------------------------------------------------------------------------------------------------
def test_host_root():
    found = render({"hostPaths": {"rootFS": "/sysroot"}})
    assert added("volumes", found) == ["host-root=/sysroot(-)"]
    assert added("env", found) == added("env", found, MANAGER) == ["HOST_ROOT=/sysroot"]
