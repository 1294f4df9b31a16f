"""`node-features` as a whole, against the lab's API server with access control (contracts/device-plugin-gfd.md 9)."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from node.fakeprocess import FakeProcess, until

from groundplane.api import names, node_features
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.lab import access, http, resources
from groundplane.lab.api import Api, Options
from groundplane.lab.faults import Faults, Rule
from groundplane.node.nodefeatures import main, record, worker

NODE, NAMESPACE = "n1", "gpu-operator"
PREFIX = names.NFD_PREFIX
GFD = f"nvidia-features-for-{NODE}"
RULES = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch", "patch"]},
    {
        "apiGroups": ["nfd.k8s-sigs.io"],
        "resources": ["nodefeatures"],
        "verbs": ["list", "watch", "create", "update", "delete"],
    },
]
NAMESPACED_RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
MACHINE_LABELS = {
    f"{PREFIX}pci-10de.present": "true",
    f"{PREFIX}kernel-version.full": "6.8.0-45-generic",
    f"{PREFIX}kernel-version.major": "6",
    f"{PREFIX}kernel-version.minor": "8",
    f"{PREFIX}kernel-version.revision": "0",
    f"{PREFIX}system-os_release.ID": "ubuntu",
    f"{PREFIX}system-os_release.VERSION_ID": "24.04",
    f"{PREFIX}system-os_release.VERSION_ID.major": "24",
    f"{PREFIX}system-os_release.VERSION_ID.minor": "04",
    f"{PREFIX}cpu-model.vendor_id": "AMD",
}
WRITES = ("create", "update", "patch", "delete")


class World:
    """A cluster with one node, and the program on it."""

    def __init__(self, folder: Path) -> None:
        self.api, self.faults = Api(seed=1, rbac=True), Faults()
        self.process = FakeProcess(folder, ["node-features"], self.environment)
        self.process.make_client = self.make_client
        self.url = ""
        self.running: asyncio.Task[int] | None = None
        self.api.create(resources.NODES, {"metadata": {"name": NODE, "labels": {"kubernetes.io/os": "linux"}}})
        for name in (NAMESPACE, "nfd"):
            self.api.create(resources.NAMESPACES, {"metadata": {"name": name}})
        self.grant(RULES, NAMESPACED_RULES)
        self.machine()

    environment = {"NODE_NAME": NODE, "NAMESPACE": NAMESPACE}

    def grant(self, rules: list[Any], namespaced: list[Any]) -> None:
        user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "worker"}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "name": "node-features"}
        role = {"metadata": {"name": "node-features"}}
        self.api.create(resources.CLUSTER_ROLES, {**role, "rules": rules})
        self.api.create(
            resources.CLUSTER_ROLE_BINDINGS,
            {**role, "roleRef": {**reference, "kind": "ClusterRole"}, "subjects": [user]},
        )
        self.api.create(resources.ROLES, {**role, "rules": namespaced}, NAMESPACE)
        self.api.create(
            resources.ROLE_BINDINGS, {**role, "roleRef": {**reference, "kind": "Role"}, "subjects": [user]}, NAMESPACE
        )

    def machine(self) -> None:
        self.process.write_kernel("/proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
        self.process.write_kernel("/proc/cpuinfo", "vendor_id : AuthenticAMD\n")
        self.process.write("/host-etc/os-release", 'ID=ubuntu\nVERSION_ID="24.04"\n')
        self.pci("0000:19:00.0", "0x030200", "0x10de")
        self.process.root.mkdir(names.FEATURES_DIR)

    def pci(self, address: str, cls: str, vendor: str) -> None:
        for name, value in (("class", cls), ("vendor", vendor), ("device", "0x2330")):
            self.process.write_kernel(f"/sys/bus/pci/devices/{address}/{name}", f"{value}\n")

    def define(self) -> None:
        """Make the API server know NodeFeature."""
        for definition in node_features.definitions():
            self.api.create(resources.CUSTOM_RESOURCE_DEFINITIONS, definition)

    @property
    def features(self) -> resources.Resource:
        return self.api.resource("nodefeatures")

    def make_client(self) -> Client:
        return Client(Config(server=self.url, token="worker"))

    def start(self) -> None:
        self.running = asyncio.create_task(main.run(self.process))

    async def stop(self) -> int:
        assert self.running is not None
        self.process.send(signal.SIGTERM)
        return await asyncio.wait_for(self.running, 20)

    @property
    def node(self) -> dict[str, Any]:
        return self.api.get(resources.NODES, NODE)["metadata"]

    @property
    def labels(self) -> dict[str, str]:
        """The node's labels, without the one that has been there from the start."""
        return {key: value for key, value in (self.node.get("labels") or {}).items() if key != "kubernetes.io/os"}

    def feature(self, name: str, namespace: str = NAMESPACE) -> dict[str, Any] | None:
        return self.api.find(self.features, name, namespace)

    def ask(self, name: str, namespace: str = NAMESPACE, *, manager: str = "gfd", **labels: str) -> None:
        """Create or replace a NodeFeature object of the node."""
        document = {
            "metadata": {"name": name, "namespace": namespace, "labels": {names.NFD_NODE_NAME: NODE}},
            "spec": {"labels": labels, "features": {}},
        }
        options = Options(manager=manager)
        if self.feature(name, namespace) is not None:
            self.api.delete(self.features, name, namespace)
        self.api.create(self.features, document, namespace, options=options)

    def change_node(self, *, manager: str = "kubectl", **meta: Any) -> None:
        body = {"metadata": meta}
        self.api.patch(resources.NODES, NODE, body, type="merge", manager=manager)

    async def labelled(self, expected: dict[str, str]) -> None:
        await until(lambda: self.labels == expected, f"the labels {expected}")
        recorded = record.read(self.node["annotations"][names.NFD_FEATURE_LABELS])
        assert recorded == set(expected)

    def writes(self) -> int:
        return sum(self.faults.count(verb, user_agent="groundplane") for verb in WRITES)

    async def quiet(self) -> None:
        """Nothing is written in a while in which several looks at the machine happen."""
        before = self.writes()
        looks = self.process.monotonic() + 5 * 60
        await until(lambda: self.process.monotonic() > looks, "five minutes of the program's")
        assert self.writes() == before

    def logged(self, text: str) -> int:
        return self.process.stderr.count(text)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    user = access.User("worker", ("system:authenticated",))
    server = await http.serve(made.api, faults=made.faults, tokens={"worker": user})
    made.url = server.url
    try:
        yield made
    finally:
        if made.running is not None and not made.running.done():
            made.running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await made.running
        await server.close()


# --- labelling --------------------------------------------------------------------------------------------------------


async def test_section_9_a_node_is_labelled_with_its_machine_and_the_requests_for_it(world: World) -> None:
    world.define()
    world.ask(GFD, **{"nvidia.com/gpu.count": "8", "kubernetes.io/hostname": "evil", "nvidia.com/bad": "a b"})
    world.start()
    await world.labelled(MACHINE_LABELS | {"nvidia.com/gpu.count": "8"})
    await until(lambda: world.feature(NODE), "the worker's object")
    assert world.writes() == 2, "one patch of the node, one object"
    assert world.logged("label nvidia.com/bad=a b is left out") == 1
    assert world.logged("label kubernetes.io/hostname=evil is left out") == 1
    assert await world.stop() == 0
    assert world.labels == MACHINE_LABELS | {"nvidia.com/gpu.count": "8"}, "the labels outlive the program"


async def test_section_9_the_workers_object(world: World) -> None:
    world.define()
    world.process.write(f"{names.FEATURES_DIR}/site", "rack=7\n# +no-label\nhidden=1\n")
    world.start()
    found = await until(lambda: world.feature(NODE), "the worker's object")
    assert found["metadata"]["labels"] == {"nfd.node.kubernetes.io/node-name": NODE}
    assert found["metadata"]["annotations"]["nfd.node.kubernetes.io/worker.version"].startswith("groundplane-")
    assert found["spec"]["labels"] == MACHINE_LABELS | {f"{PREFIX}rack": "7"}
    attributes = found["spec"]["features"]["attributes"]
    assert attributes["kernel.version"]["elements"]["full"] == "6.8.0-45-generic"
    assert attributes["local.feature"]["elements"] == {"rack": "7", "hidden": "1"}
    devices = found["spec"]["features"]["instances"]["pci.device"]["elements"]
    assert devices == [{"attributes": {"class": "0302", "vendor": "10de", "device": "2330"}}]


async def test_labels_only_where_the_object_is_not_wanted(world: World) -> None:
    world.define()
    world.process.env = {**world.environment, "USE_NODE_FEATURE_API": "false"}
    world.start()
    await world.labelled(MACHINE_LABELS)
    assert (world.feature(NODE), world.writes()) == (None, 1)


async def test_labels_only_where_the_api_server_knows_no_such_objects(world: World) -> None:
    world.start()
    await world.labelled(MACHINE_LABELS)
    assert world.writes() == 1
    assert world.logged("knows no NodeFeature objects") == 1


async def test_section_9_requests_come_change_and_go(world: World) -> None:
    world.define()
    world.start()
    await world.labelled(MACHINE_LABELS)
    world.ask(GFD, **{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "H200", "custom": "@kernel.version.major"})
    more = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "H200", f"{PREFIX}custom": "6"}
    await world.labelled(MACHINE_LABELS | more)
    world.ask(GFD, **{"nvidia.com/gpu.count": "4"})
    await world.labelled(MACHINE_LABELS | {"nvidia.com/gpu.count": "4"})
    world.ask("zz", "nfd", **{"nvidia.com/gpu.count": "5", f"{PREFIX}kernel-version.full": "fake"})
    await world.labelled(MACHINE_LABELS | {"nvidia.com/gpu.count": "5", f"{PREFIX}kernel-version.full": "fake"})
    world.api.delete(world.features, "zz", "nfd")
    await world.labelled(MACHINE_LABELS | {"nvidia.com/gpu.count": "4"})
    world.api.delete(world.features, GFD, NAMESPACE)
    await world.labelled(MACHINE_LABELS)


async def test_section_9_a_change_in_features_d_is_seen_at_once_and_the_machines_at_the_interval(world: World) -> None:
    world.define()
    world.start()
    await world.labelled(MACHINE_LABELS)
    world.process.write(f"{names.FEATURES_DIR}/gfd", "nvidia.com/gpu.count=8\n")
    await world.labelled(MACHINE_LABELS | {"nvidia.com/gpu.count": "8"})
    assert world.process.monotonic() < asyncio.get_running_loop().time() + 60, "no interval has passed"
    (world.process.path(f"{names.FEATURES_DIR}/gfd")).unlink()
    await world.labelled(MACHINE_LABELS)
    world.pci("0000:03:00.0", "0x020700", "0x15b3")
    world.process.pace = 600.0
    world.process.send(signal.SIGHUP)
    await world.labelled(MACHINE_LABELS | {f"{PREFIX}pci-15b3.present": "true"})
    world.process.write_kernel("/proc/sys/kernel/osrelease", "6.8.0-46-generic\n")
    newer = {f"{PREFIX}pci-15b3.present": "true", f"{PREFIX}kernel-version.full": "6.8.0-46-generic"}
    await world.labelled(MACHINE_LABELS | newer)
    await until(lambda: world.feature(NODE)["spec"]["labels"] == MACHINE_LABELS | newer, "the object to follow")


async def test_section_9_the_machine_is_looked_at_once_a_second_at_most(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, pauses, looks = asyncio.Event(), list[float](), list[worker.Found]()

    async def sleep(seconds: float) -> None:
        if 0 < seconds <= 1:
            pauses.append(seconds)
            await second.wait()
        elif seconds:
            await asyncio.Event().wait()

    def look(*given: Any) -> worker.Found:
        looks.append(real(*given))
        return looks[-1]

    real = worker.look
    monkeypatch.setattr(worker, "look", look)
    monkeypatch.setattr(world.process, "sleep", sleep)
    world.start()
    await world.labelled(MACHINE_LABELS)
    world.process.write(f"{names.FEATURES_DIR}/0", "site.io/0=1")
    await until(lambda: pauses, "a pause")
    for number in range(1, 10):
        world.process.write(f"{names.FEATURES_DIR}/{number}", f"site.io/{number}=1")
        await asyncio.sleep(0.01)
    assert len(looks) == 1
    second.set()
    await world.labelled(MACHINE_LABELS | {f"site.io/{number}": "1" for number in range(10)})
    assert len(looks) == 2


async def test_an_object_of_a_former_installation_is_no_request(world: World) -> None:
    world.define()
    stale = worker.Found({f"{PREFIX}kernel-version.full": "old"}, {})
    world.api.create(world.features, worker.document(NODE, "nfd", stale, []), "nfd")
    world.start()
    await world.labelled(MACHINE_LABELS)


async def test_a_quiet_node_is_not_written_and_a_person_who_changes_labels_is_overruled(world: World) -> None:
    world.define()
    world.process.pace = 600.0
    world.ask(GFD, **{"nvidia.com/gpu.count": "8"})
    world.start()
    wanted = MACHINE_LABELS | {"nvidia.com/gpu.count": "8"}
    await world.labelled(wanted)
    await until(lambda: world.feature(NODE), "the worker's object")
    await world.quiet()
    world.change_node(labels={"nvidia.com/gpu.count": "99", "theirs": "1", f"{PREFIX}pci-10de.present": None})
    await until(
        lambda: world.labels == wanted | {"theirs": "1"}, "the labels to be put right, the person's own to stay"
    )
    world.api.delete(world.features, NODE, NAMESPACE)
    await until(lambda: world.feature(NODE), "the worker's object to come back")


async def test_a_node_that_is_replaced_is_labelled_anew(world: World) -> None:
    world.define()
    world.start()
    await world.labelled(MACHINE_LABELS)
    world.api.delete(resources.NODES, NODE)
    await until(lambda: world.logged(f"there is no node '{NODE}'"), "a word about it")
    world.api.create(resources.NODES, {"metadata": {"name": NODE, "labels": {}}})
    await world.labelled(MACHINE_LABELS)


# --- the object's owners ----------------------------------------------------------------------------------------------


def pod(**meta: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "worker-x", **meta},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }


@pytest.mark.parametrize("kind", ["DaemonSet", "ReplicaSet"])
async def test_the_object_belongs_to_the_daemon_set_and_the_pod(world: World, kind: str) -> None:
    world.define()
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "worker", "uid": "u-1", "controller": True}
    made = world.api.create(resources.PODS, pod(ownerReferences=[owner]), NAMESPACE)
    world.process.env = {**world.environment, "POD_NAME": "worker-x"}
    world.start()
    found = await until(lambda: world.feature(NODE), "the worker's object")
    pod_owner = {"apiVersion": "v1", "kind": "Pod", "name": "worker-x", "uid": made["metadata"]["uid"]}
    expected = [owner, pod_owner] if kind == "DaemonSet" else None
    assert found["metadata"].get("ownerReferences") == expected
    assert world.logged("gets no owner") == (kind != "DaemonSet")


async def test_a_pod_that_cannot_be_read_is_no_reason_to_stop(world: World) -> None:
    world.define()
    world.process.env = {**world.environment, "POD_NAME": "gone"}
    world.start()
    await until(lambda: world.feature(NODE), "the worker's object")
    assert world.logged("it gets no owner") == 1


# --- NFD itself -------------------------------------------------------------------------------------------------------


def nfd_worker(world: World, namespace: str = "nfd", **labels: str) -> None:
    document = {
        "metadata": {
            "name": NODE,
            "labels": {names.NFD_NODE_NAME: NODE},
            "annotations": {names.NFD_WORKER_VERSION: "v0.18.3"},
        },
        "spec": {"labels": labels, "features": {}},
    }
    world.api.create(world.features, document, namespace, options=Options(manager="nfd-worker"))


@pytest.mark.parametrize("namespace", ["nfd", NAMESPACE])
async def test_a_node_with_a_real_worker_is_never_written(world: World, namespace: str) -> None:
    world.define()
    nfd_worker(world, namespace)
    world.process.pace = 600.0
    world.start()
    await until(lambda: world.logged("node feature discovery labels this node, which is left to it"), "a word about it")
    await world.quiet()
    assert (world.labels, world.writes()) == ({}, 0)
    assert world.logged(f"NodeFeature {namespace}/{NODE} is kept by nfd-worker as worker v0.18.3") == 1


async def test_nfd_that_comes_gets_the_node_and_when_it_is_gone_we_come_back(world: World) -> None:
    world.define()
    world.process.pace = 600.0
    world.start()
    await world.labelled(MACHINE_LABELS)
    await until(lambda: world.feature(NODE), "our object")
    nfd_worker(world)
    await until(lambda: world.feature(NODE) is None, "our object to be withdrawn")
    theirs = {f"{PREFIX}kernel-version.full": "theirs", f"{PREFIX}usb-1.present": "true"}
    gone = dict.fromkeys(MACHINE_LABELS)
    note = {names.NFD_FEATURE_LABELS: record.written(theirs)}
    world.change_node(labels={**gone, **theirs}, annotations=note, manager="nfd-master")
    await world.quiet()
    assert world.labels == theirs
    world.api.delete(world.features, NODE, "nfd")
    await until(lambda: world.feature(NODE), "our object")
    await world.labelled(MACHINE_LABELS)
    assert world.logged("unless they come within 300 s, their writer is gone") == 1
    assert world.logged("the node's feature labels are kept by this program") >= 1


async def test_nfd_that_prunes_when_it_goes_hands_over_at_once(world: World) -> None:
    world.define()
    nfd_worker(world)
    world.change_node(labels={f"{PREFIX}usb": "1"}, annotations={names.NFD_FEATURE_LABELS: "usb"}, manager="nfd-master")
    world.start()
    await until(lambda: world.logged("is left to it"), "a word about it")
    world.change_node(labels={f"{PREFIX}usb": None}, annotations={names.NFD_FEATURE_LABELS: None})
    world.api.delete(world.features, NODE, "nfd")
    await world.labelled(MACHINE_LABELS)


async def test_a_master_that_answers_our_object_is_left_to_do_so(world: World) -> None:
    world.define()
    world.change_node(annotations={names.NFD_FEATURE_LABELS: "usb"}, manager="nfd-master")
    world.start()
    asked = (await until(lambda: world.feature(NODE), "our object"))["spec"]["labels"]
    world.change_node(labels=asked, annotations={names.NFD_FEATURE_LABELS: record.written(asked)}, manager="nfd-master")
    await until(lambda: world.logged("somebody else's"), "a word about it")
    world.process.pace = 100.0  # it waits 300 s for an answer: three seconds in which the change must have reached it
    await world.quiet()
    assert world.faults.count("patch", "nodes") == 0


async def test_a_master_that_writes_again_after_us_is_not_fought(world: World) -> None:
    world.define()
    world.process.pace = 600.0
    world.start()
    await world.labelled(MACHINE_LABELS)
    note = {names.NFD_FEATURE_LABELS: "usb"}
    world.change_node(labels=dict.fromkeys(MACHINE_LABELS), annotations=note, manager="nfd-master")
    await until(lambda: world.logged("somebody else writes the record"), "a word about it")
    await world.quiet()
    assert world.labels == {}
    world.change_node(annotations={names.NFD_FEATURE_LABELS: None})
    await world.labelled(MACHINE_LABELS)


async def test_the_label_of_another_instance_is_left_alone(world: World) -> None:
    other = {f"red.{names.NFD_FEATURE_LABELS}": "system-os_release.ID"}
    world.change_node(labels={f"{PREFIX}system-os_release.ID": "theirs"}, annotations=other)
    world.start()
    key = f"{PREFIX}system-os_release.ID"
    await until(lambda: world.labels == MACHINE_LABELS | {key: "theirs"}, "all other labels")
    assert world.logged(f"label {key} is left to another instance of NFD") == 1


# --- trouble ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [500, 409, "reset", "lost", 429])
async def test_a_patch_that_fails_is_tried_again(world: World, answer: int | str) -> None:
    world.define()
    world.process.pace = 600.0
    world.faults.add(Rule("patch", "nodes", times=2, answer=answer, retry_after=0 if answer == 429 else None))
    world.start()
    await world.labelled(MACHINE_LABELS)
    await until(lambda: world.feature(NODE), "our object")
    await world.quiet()


@pytest.mark.parametrize("verb", ["create", "update"])
async def test_an_object_that_is_written_by_somebody_else_meanwhile_is_tried_again(world: World, verb: str) -> None:
    world.define()
    world.process.pace = 600.0
    if verb == "update":
        world.start()
        await until(lambda: world.feature(NODE), "our object")
    rule = world.faults.add(Rule(verb, "nodefeatures", times=1, answer=409))
    world.process.write(f"{names.FEATURES_DIR}/site", "rack=7")
    if verb == "create":
        world.start()
    await until(lambda: (world.feature(NODE) or {"spec": {"labels": {}}})["spec"]["labels"].get(f"{PREFIX}rack"), "it")
    assert rule.times == 0
    await world.quiet()


async def test_a_node_that_changes_in_between_is_not_overwritten(world: World) -> None:
    world.define()
    world.process.pace = 60.0
    blind = world.faults.add(Rule("watch", "nodes", times=None, answer="hang"))
    waiting = world.faults.add(Rule("list", "nodefeatures", times=None, answer=503))
    world.start()
    await until(lambda: world.faults.count("watch", "nodes"), "the node to be read")
    world.change_node(annotations={names.NFD_FEATURE_LABELS: "usb"}, manager="nfd-master")
    world.faults.remove(waiting)
    await until(lambda: world.faults.count("patch", "nodes") > 1, "patches of what is known of the node")
    assert {each.code for each in world.faults.requests if each.verb == "patch" and each.code} == {409}
    assert (world.labels, world.node["annotations"]) == ({}, {names.NFD_FEATURE_LABELS: "usb"})
    world.faults.remove(blind)


async def test_without_the_right_to_see_nodefeatures_nothing_is_written(world: World) -> None:
    world.define()
    world.api.patch(resources.CLUSTER_ROLES, "node-features", {"rules": RULES[:1]}, type="merge", manager="kubectl")
    world.start()
    said = 'nodefeatures.nfd.k8s-sigs.io is forbidden: User "worker" cannot list resource "nodefeatures"'
    await until(lambda: world.logged(said), "a word about it")
    assert world.writes() == 0
    world.api.patch(resources.CLUSTER_ROLES, "node-features", {"rules": RULES}, type="merge", manager="kubectl")
    await world.labelled(MACHINE_LABELS)


@pytest.mark.parametrize(
    ("argv", "env", "said"),
    [
        ([], {"NAMESPACE": "x"}, "the node's name of this node must be given (--node-name, from its default)"),
        ([], {"NODE_NAME": "x"}, "(--namespace, from its default)"),
        (["--sleep-interval=0s"], {}, "shorter than 1s (--sleep-interval, from the command line"),
        ([], {"SLEEP_INTERVAL": "60"}, "a number needs its unit"),
        (["--pci-label-fields=vendor,serial"], {}, "['serial']; there are class, vendor, device"),
        ([], {"PCI_LABEL_FIELDS": ""}, "no such fields"),
        (["--frobnicate"], {}, "flag provided but not defined: --frobnicate"),
    ],
)
async def test_options_that_are_wrong_end_the_program(
    tmp_path: Path, argv: list[str], env: dict[str, str], said: str
) -> None:
    base = {} if set(env) & {"NAMESPACE", "NODE_NAME"} else dict(World.environment)
    process = FakeProcess(tmp_path, ["node-features", *argv], base | env)
    assert await main.run(process) == 1
    assert said in process.stderr


async def test_options_reach_the_labels(world: World) -> None:
    world.process.argv = ["node-features", "--pci-class-whitelist=03,0B40", "--pci-label-fields", "vendor,class"]
    world.process.env = {**world.environment, "EXTRA_LABEL_NS": "site.kubernetes.io", "SLEEP_INTERVAL": "infinite"}
    world.process.write(f"{names.FEATURES_DIR}/site", "site.kubernetes.io/rack=7\n")
    world.start()
    expected = {key: value for key, value in MACHINE_LABELS.items() if "pci" not in key}
    await world.labelled(expected | {f"{PREFIX}pci-0302_10de.present": "true", "site.kubernetes.io/rack": "7"})
