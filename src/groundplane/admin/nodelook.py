"""Looking at nodes themselves: in operand pods that are there, by pods of our own with consent, or on the node.

Operands of ours have ``groundplane-inspect``; in NVIDIA's plain commands are run that only read, and what they print is
parsed. Inspector pods are one a node, live for one look and are always deleted: those of a run that was killed too, by
the next one. What is found is evidence (``diagnose.evidence.NodeFacts``), judged by preflight_node.py and the doctor.
A node that could not be looked at is in :attr:`NodeLook.unread` with the reason.
"""

import asyncio
import contextlib
import datetime
import enum
import hashlib
import os
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ..api import names
from ..cluster.client import Client
from ..cluster.errors import AlreadyExists, ApiError, ClusterError, Forbidden, NotFound
from ..cluster.execute import NO_SUCH_COMMAND, NoSuchCommand, Ran, execute
from ..cluster.kinds import NAMESPACE, POD
from ..diagnose.evidence import Command, KernelLog, NodeFacts
from ..diagnose.redact import redacted
from ..node.inspect import commands, hardware, system
from ..node.inspect import main as inspect
from .snapshot import PSA_ENFORCE

PROGRAM: Final = inspect.NAME
IMAGE: Final = "groundplane"
"""Image of inspector pods, where nothing else is said: the release's own has to be given by its registry."""
TIMEOUT_S: Final = 60.0
PARALLEL: Final = 32
"""Nodes that are looked at at the same time."""
LABEL: Final = "groundplane.dev/inspector"
"""On inspector pods: the run that made them."""
NAME_LABEL: Final = "app.kubernetes.io/name"
_POLL_S: Final = 0.5
_SPARE_S: Final = 60
"""How much longer than its deadline a pod may be there before another run takes it for left behind."""

Tell = Callable[[str], None]


class Way(enum.StrEnum):
    """How nodes may be looked at."""

    EXEC = "exec"
    """Commands in operand pods that run."""
    PODS = "pods"
    """Inspector pods, which need a person's consent."""


class NodeLook(msgspec.Struct, frozen=True):
    """What was found on nodes, by name, and why others could not be looked at."""

    facts: Mapping[str, NodeFacts] = {}
    unread: Mapping[str, str] = {}

    @property
    def kernel(self) -> tuple[KernelLog, ...]:
        """The kernels' logs, of which the lines that matter were kept."""
        told = ((node, seen.commands.get("dmesg"), seen.when) for node, seen in self.facts.items())
        return tuple(KernelLog(said.out, node, when) for node, said, when in told if said is not None and said.out)

    def with_more(self, other: "NodeLook") -> "NodeLook":
        """Both; what the other found counts, and a node that one could read is not unread."""
        facts = {**self.facts, **other.facts}
        unread = {node: why for node, why in {**self.unread, **other.unread}.items() if node not in facts}
        return NodeLook(facts, unread)


def _silent(_text: str) -> None:
    pass


async def look(
    client: Client,
    nodes: Iterable[str],
    *,
    namespace: str,
    ways: Iterable[Way] = (Way.EXEC,),
    image: str = "",
    reach: Sequence[str] = (),
    pull: Sequence[str] = (),
    pull_secrets: Sequence[str] = (),
    timeout_s: float = TIMEOUT_S,
    parallel: int = PARALLEL,
    tell: Tell = _silent,
) -> NodeLook:
    """Look at nodes, each within ``timeout_s`` seconds; ``tell`` hears how far it is.

    Inspector pods (:attr:`Way.PODS`, with ``image``) look at all nodes, as they see more; operand pods only at those
    that no inspector could. ``reach`` and ``pull`` are addresses and images that inspectors try to reach. The client
    stays usable whatever happens; no permission, no answer and no pod end in :attr:`NodeLook.unread`.
    """
    wanted, found = list(dict.fromkeys(nodes)), NodeLook()
    allowed = frozenset(ways)
    refusal = await _refusal(client, namespace) if Way.PODS in allowed and wanted else ""
    if refusal:
        found = NodeLook(unread=dict.fromkeys(wanted, refusal))
    elif Way.PODS in allowed and wanted:
        inspectors = _Inspectors(
            client,
            namespace,
            image or IMAGE,
            timeout_s,
            (*_repeated("--reach", reach), *_repeated("--pull", pull)),
            pull_secrets,
            tell,
        )
        async with inspectors:
            found = await _each(wanted, inspectors.look, parallel, tell)
    left = [node for node in wanted if node not in found.facts]
    if Way.EXEC in allowed and left:
        found = found.with_more(await _by_exec(client, left, namespace, timeout_s, parallel, tell))
    elif left and not allowed:
        found = found.with_more(NodeLook(unread=dict.fromkeys(left, "no way of looking at nodes is allowed")))
    return found


async def _refusal(client: Client, namespace: str) -> str:
    """Why a namespace takes no inspector pods, which are privileged; empty if it may."""
    try:
        found = await client.get(NAMESPACE, namespace)
    except NotFound:
        return f"namespace {namespace} does not exist: inspector pods need one that is there"
    except ClusterError:
        return ""  # the pods themselves will tell
    level = (found["metadata"].get("labels") or {}).get(PSA_ENFORCE, "privileged")
    return "" if level == "privileged" else f"namespace {namespace} enforces Pod Security level {level}; {PRIVILEGED}"


PRIVILEGED: Final = (
    "inspector pods are privileged: give a namespace that takes them, or label this one "
    f"{PSA_ENFORCE}=privileged for the look"
)


def _repeated(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


async def look_here(
    root: str = "/", *, name: str = "", reach: Sequence[str] = (), pull: Sequence[str] = ()
) -> NodeLook:
    """Look at the node that this runs on, whose root is at ``root``."""
    from ..node.ownprocess import OwnProcess

    process = OwnProcess((PROGRAM,), os.environ, signals=False)
    document = await inspect.look(process, root, name, reaching=list(reach), pulling=list(pull))
    seen = _facts(document)
    return NodeLook({seen.name: seen})


async def _each(
    nodes: Sequence[str], one: Callable[[str], Awaitable[NodeFacts]], parallel: int, tell: Tell
) -> NodeLook:
    """Look at each node, so many at the same time."""
    slots = asyncio.Semaphore(max(1, parallel))
    facts: dict[str, NodeFacts] = {}
    unread: dict[str, str] = {}

    async def visit(node: str) -> None:
        async with slots:
            try:
                facts[node] = await one(node)
            except Unread as error:
                unread[node] = str(error)
            except ClusterError as error:
                unread[node] = _reason(error)
        tell(f"looked at {len(facts) + len(unread)} of {len(nodes)} nodes")

    async with asyncio.TaskGroup() as group:
        for node in nodes:
            group.create_task(visit(node))
    in_order = [node for node in nodes if node in facts]
    return NodeLook({node: facts[node] for node in in_order}, {node: unread[node] for node in nodes if node in unread})


class Unread(Exception):  # noqa: N818  (no error of ours: a node that cannot be seen)
    """A node could not be looked at; the text says why."""


def _reason(error: ClusterError) -> str:
    if isinstance(error, Forbidden) and "violates PodSecurity" in str(error):
        return f"{error}; {PRIVILEGED}"
    if isinstance(error, Forbidden):
        return f"{error}; needed are get and create of pods/exec, and for inspector pods create and delete of pods"
    return str(error)


def _facts(document: inspect.Document, node: str = "") -> NodeFacts:
    return NodeFacts(
        name=node or document.name,
        facts=document.facts,
        commands=document.commands,
        when=document.when,
        missing=tuple(document.missing),
    )


def parsed(output: bytes | str, node: str) -> NodeFacts:
    """What ``groundplane-inspect`` printed, with lines of its log before or after. Raises :class:`Unread`."""
    text = output.decode("utf-8", "replace") if isinstance(output, bytes) else output
    line = next((line for line in text.splitlines() if line.startswith("{")), "")
    try:
        return _facts(msgspec.json.decode(line, type=inspect.Document), node)
    except msgspec.DecodeError as error:
        shown = redacted(" ".join(text.split())[:300]) or "nothing"
        raise Unread(f"{PROGRAM} did not print its document ({error}); it printed: {shown}") from None


# --- operand pods -----------------------------------------------------------------------------------------------------


class _Place(msgspec.Struct, frozen=True):
    """A running container of an operand."""

    pod: str
    container: str
    image: str


HOLDERS: Final = (
    "nvidia-container-toolkit-daemonset",
    "nvidia-operator-validator",
    "nvidia-mig-manager",
    "nvidia-device-plugin-daemonset",
    "gpu-feature-discovery",
    "nvidia-dcgm-exporter",
)
"""Apps of operands that may have the program, those that see most of the node first."""
DRIVER: Final = "nvidia-driver-ctr"
PLAIN: Final = (
    DRIVER,
    "nvidia-container-toolkit-ctr",
    "nvidia-operator-validator",
    "nvidia-device-plugin",
    "nvidia-dcgm-exporter",
)
"""Containers in which plain commands tell something, those that tell most first."""


async def _by_exec(
    client: Client, nodes: Sequence[str], namespace: str, timeout_s: float, parallel: int, tell: Tell
) -> NodeLook:
    try:
        pods = (await client.list(POD, namespace)).items
    except ClusterError as error:
        why = f"the pods of namespace {namespace} could not be listed: {error}"
        return NodeLook(unread=dict.fromkeys(nodes, why))
    places: dict[str, dict[str, list[_Place]]] = {}
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName", "")
        for app, place in _running(pod):
            places.setdefault(node, {}).setdefault(app, []).append(place)
    looker = _InOperands(client, namespace, places, timeout_s)
    return await _each(nodes, looker.look, parallel, tell)


def _running(pod: Mapping[str, Any]) -> Iterable[tuple[str, _Place]]:
    """The running containers of an operand's pod, by its app; a driver's whatever its app is."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    labels = metadata.get("labels") or {}
    app = labels.get("app", "")
    if labels.get(names.COMPONENT_LABEL) == names.DRIVER_COMPONENT or app == "nvidia-driver-daemonset":
        app = DRIVER
    up = {each["name"] for each in status.get("containerStatuses") or () if "running" in (each.get("state") or {})}
    if app and not metadata.get("deletionTimestamp"):
        for container in spec.get("containers") or ():
            if container["name"] in up:
                yield app, _Place(metadata["name"], container["name"], container.get("image", ""))


class _InOperands:
    """Looks at nodes by commands in operand pods; remembers which images have not got the program."""

    def __init__(
        self, client: Client, namespace: str, places: Mapping[str, Mapping[str, Sequence[_Place]]], timeout_s: float
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._places = places
        self._timeout_s = timeout_s
        self._without: set[str] = set()

    async def look(self, node: str) -> NodeFacts:
        """One node: by our own program, else by plain commands. Raises :class:`Unread` and ClusterError."""
        here = self._places.get(node, {})
        if not here:
            raise Unread(f"no operand pod runs there in namespace {self._namespace}; --node-pods looks without one")
        for place in (place for app in HOLDERS for place in here.get(app, ())):
            seen = await self._by_program(node, place)
            if seen is not None:
                return await self._with_driver(seen, here.get(DRIVER, ()))
        containers = [place for group in here.values() for place in group if place.container in PLAIN]
        for place in sorted(containers, key=lambda place: PLAIN.index(place.container)):
            seen = await self._by_plain_commands(node, place)
            if seen is not None:
                return seen
        raise Unread("no operand's container there has a program by which the node can be seen")

    async def _by_program(self, node: str, place: _Place) -> NodeFacts | None:
        if place.image in self._without:
            return None
        ran = await self._run(place, (PROGRAM, "--name", node))
        if ran is None or ran.rc in NO_SUCH_COMMAND:
            self._without.add(place.image)
            return None
        return parsed(ran.out, node)

    async def _with_driver(self, seen: NodeFacts, drivers: Sequence[_Place]) -> NodeFacts:
        """What only the driver's container can tell: nvidia-smi, where the program could not run it."""
        if not drivers or commands.SMI in seen.commands:
            return seen
        said, facts = dict(seen.commands), dict(seen.facts)
        for argv in ((commands.SMI,), (commands.SMI, "-q")):
            ran = await self._run(next(iter(drivers)), argv)
            if ran is None or ran.rc in NO_SUCH_COMMAND:
                break
            said[" ".join(argv)] = _command(ran)
        _tell_smi(facts, said)
        return msgspec.structs.replace(seen, commands=said, facts=facts)

    async def _by_plain_commands(self, node: str, place: _Place) -> NodeFacts | None:
        ran = await self._run(place, ("sh", "-c", SCRIPT))
        if ran is not None and ran.rc not in NO_SUCH_COMMAND:
            return of_script(ran.out.decode("utf-8", "replace"), node)
        ran = await self._run(place, (commands.SMI,))  # an image without a shell
        if ran is None or ran.rc in NO_SUCH_COMMAND:
            return None
        said, facts = {commands.SMI: _command(ran)}, dict[str, Any]()
        _tell_smi(facts, said)
        return NodeFacts(node, facts, said, _now(), ("all but nvidia-smi: the container has no shell",))

    async def _run(self, place: _Place, argv: Sequence[str]) -> Ran | None:
        try:
            return await execute(
                self._client,
                place.pod,
                self._namespace,
                argv,
                container=place.container,
                timeout_s=self._timeout_s,
                limit_bytes=2 * inspect.LIMIT,
            )
        except NoSuchCommand:
            return None


def _command(ran: Ran) -> Command:
    return Command(commands.bounded((ran.out + ran.err).decode("utf-8", "replace")), None if ran.cut else ran.rc)


def _tell_smi(facts: dict[str, Any], said: Mapping[str, Command]) -> None:
    """Facts of what nvidia-smi said."""
    if commands.SMI in said and said[commands.SMI].rc is not None:
        facts.setdefault("nvidia_smi_rc", said[commands.SMI].rc)
    queried = said.get(f"{commands.SMI} -q")
    if queried is not None and queried.rc == 0:
        commands.tell_query(facts, queried.out)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- plain commands ---------------------------------------------------------------------------------------------------

_MARK: Final = "@@groundplane"
_PCI: Final = (
    'for d in /sys/bus/pci/devices/*; do echo "$d" $(cat "$d/vendor") $(cat "$d/device") $(cat "$d/class"); done'
)
_READS: Final[Mapping[str, str]] = {
    "nvidia-smi": "nvidia-smi",
    "nvidia-smi -q": "nvidia-smi -q",
    "cat /proc/modules": "cat /proc/modules",
    "cat /proc/driver/nvidia/version": "cat /proc/driver/nvidia/version",
    "uname -r": "uname -r",
    "cat /etc/os-release": "cat /host-etc/os-release",
    "ls /run/nvidia/validations": "ls -a /run/nvidia/validations",
    "pci": _PCI,
    "dmesg": "dmesg",
}
"""Commands that change nothing, by the name under which they are kept."""
SCRIPT: Final = "\n".join(
    f'echo "{_MARK} {name}"; {command} 2>/dev/null; echo "{_MARK}-rc $?"' for name, command in _READS.items()
)


def of_script(output: str, node: str) -> NodeFacts:
    """The facts of what :data:`SCRIPT` printed; a command that failed tells nothing but that."""
    said = dict(_sections(output))
    facts: dict[str, Any] = {}
    missing = [f"{name}: exit code {command.rc}" for name, command in said.items() if command.rc]
    good = {name: command.out for name, command in said.items() if command.rc == 0}
    if "cat /proc/modules" in good:
        facts |= hardware.of_modules(good["cat /proc/modules"])
    facts |= hardware.of_driver(good.get("cat /proc/driver/nvidia/version", ""))
    if release := good.get("uname -r", "").strip():
        facts["kernel"] = release
    facts |= _os(good.get("cat /etc/os-release", ""))
    if "pci" in good:
        facts |= _pci(good["pci"])
    if "ls /run/nvidia/validations" in good:
        files = good["ls /run/nvidia/validations"].split()
        facts["validations"] = [name for name in files if not name.startswith(".")]
        facts["driver_container"] = ".driver-ctr-ready" in files
    _tell_smi(facts, said)
    kept = {name: command for name, command in said.items() if name.startswith(commands.SMI)}
    if "dmesg" in good:
        kept["dmesg"] = Command("\n".join(system.kept_lines(good["dmesg"])), 0)
    lacking = (*missing, "files of the node: NVIDIA's containers do not show them; --node-pods does")
    return NodeFacts(node, facts, kept, _now(), lacking)


def _sections(output: str) -> Iterable[tuple[str, Command]]:
    name, lines = "", list[str]()
    for line in output.splitlines():
        if line.startswith(f"{_MARK}-rc ") and name:
            code = line.rpartition(" ")[2]
            yield name, Command(commands.bounded("\n".join(lines)), int(code) if code.isdecimal() else None)
            name = ""
        elif line.startswith(f"{_MARK} "):
            name, lines = line.removeprefix(f"{_MARK} "), []
        else:
            lines.append(line)


def _os(text: str) -> dict[str, str]:
    pairs = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
    values = {"os": pairs.get("ID", ""), "os_version": pairs.get("VERSION_ID", "")}
    return {name: value.strip().strip("\"'") for name, value in values.items() if value}


def _pci(text: str) -> dict[str, Any]:
    rows = [words for line in text.splitlines() if len(words := line.split()) == 4]
    found: dict[str, Any] = {
        "pci": [f"{_plain(words[1])}:{_plain(words[2])}" for words in rows],
        "gpus": [],
        "nvswitches": [],
    }
    for path, vendor, device, kind in rows:
        fact = hardware.CLASSES.get(kind[:6].lower())
        if fact and _plain(vendor) == "10de":
            entry = {"address": path.rpartition("/")[2], "device": _plain(device), "class": _plain(kind)[:4]}
            found[fact].append(entry)
    return found


def _plain(number: str) -> str:
    return number.lower().removeprefix("0x")


# --- inspector pods ---------------------------------------------------------------------------------------------------

_HOPELESS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerConfigError",
        "CreateContainerError",
    }
)
"""Reasons for which a container waits that do not pass by themselves in the time of a look."""


def inspector(
    node: str,
    *,
    image: str,
    run: str,
    namespace: str,
    deadline_s: int,
    arguments: Sequence[str] = (),
    pull_secrets: Sequence[str] = (),
) -> dict[str, Any]:
    """The pod that looks at one node: pinned to it, tolerating all, the node's root read-only."""
    container = {
        "name": "inspect",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": [PROGRAM, "--root", inspect.HOST, "--name", node, *arguments],
        "securityContext": {"privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "volumeMounts": [
            {"name": "host", "mountPath": inspect.HOST, "readOnly": True, "mountPropagation": "HostToContainer"}
        ],
    }
    pinned = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{PROGRAM}-{hashlib.sha256(f'{run}/{node}'.encode()).hexdigest()[:12]}",
            "namespace": namespace,
            "labels": {NAME_LABEL: PROGRAM, LABEL: run},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": deadline_s,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostPID": True,
            "hostNetwork": True,
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [pinned]}}
            },
            "tolerations": [{"operator": "Exists"}],
            **({"imagePullSecrets": [{"name": name} for name in pull_secrets]} if pull_secrets else {}),
            "containers": [container],
            "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        },
    }


class _Inspectors:
    """The inspector pods of one run: made when asked, watched by one listing for all, deleted at the end."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        image: str,
        timeout_s: float,
        arguments: Sequence[str],
        pull_secrets: Sequence[str],
        tell: Tell,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._image = image
        self._timeout_s = timeout_s
        self._arguments = tuple(arguments)
        self._pull_secrets = tuple(pull_secrets)
        self._run = uuid.uuid4().hex[:12]
        self._made: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._last: dict[str, Mapping[str, Any]] = {}
        self._stays: dict[str, str] = {}
        self._tell = tell
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "_Inspectors":
        await self._clear_leftovers()
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._made:
            await asyncio.shield(self._remove(list(self._made)))
        for name, why in self._stays.items():
            remedy = f"kubectl delete pod -n {self._namespace} {name}"
            self._tell(f"pod {name} could not be deleted ({why}); do it yourself: {remedy}")

    async def look(self, node: str) -> NodeFacts:
        """One node. Raises :class:`Unread` and ClusterError."""
        pod = inspector(
            node,
            image=self._image,
            run=self._run,
            namespace=self._namespace,
            deadline_s=max(1, round(self._timeout_s)),
            arguments=self._arguments,
            pull_secrets=self._pull_secrets,
        )
        name = pod["metadata"]["name"]
        self._made[name] = asyncio.get_running_loop().create_future()
        try:
            try:
                await self._client.create(POD, pod)
            except AlreadyExists:  # a lost answer, and the request again
                pass
            except ApiError:
                self._made.pop(name, None)  # refused: there is none to delete
                raise
            ended = await asyncio.wait_for(asyncio.shield(self._made[name]), self._timeout_s)
            return await self._read(name, node, ended)
        except TimeoutError:
            why = _waits_for(self._last.get(name, {}))
            raise Unread(
                f"the inspector pod {self._namespace}/{name} did not end in {self._timeout_s:g} s: {why}"
            ) from None
        finally:
            await asyncio.shield(self._remove([name]))

    async def _read(self, name: str, node: str, ended: Mapping[str, Any]) -> NodeFacts:
        if why := _hopeless(ended):
            raise Unread(f"the inspector pod cannot run: {why}")
        lines = [line async for line in self._client.logs(name, self._namespace)]
        if ended["status"].get("phase") != "Succeeded":
            shown = redacted(" ".join(" ".join(lines[-3:]).split())[:300])
            raise Unread(f"the inspector pod failed: {_waits_for(ended)}; it printed: {shown or 'nothing'}")
        return parsed("\n".join(lines), node)

    async def _watch(self) -> None:
        """One listing for all pods of the run, as long as some are awaited."""
        while True:
            waiting = {name: future for name, future in self._made.items() if not future.done()}
            if waiting:
                try:
                    listed = (await self._client.list(POD, self._namespace, labels=f"{LABEL}={self._run}")).items
                except ClusterError as error:
                    for future in waiting.values():
                        future.set_exception(error)
                        future.exception()  # one that nobody awaits any more is no mistake
                    listed = []
                for pod in listed:
                    self._seen(pod)
            await asyncio.sleep(_POLL_S)

    def _seen(self, pod: Mapping[str, Any]) -> None:
        name = pod["metadata"]["name"]
        self._last[name] = pod
        future = self._made.get(name)
        over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed") or _hopeless(pod)
        if over and future is not None and not future.done():
            future.set_result(pod)

    async def _remove(self, pods: Iterable[str]) -> None:
        """Delete pods; one that cannot be deleted stays on the list, and is told at the end."""
        for name in pods:
            if name not in self._made:
                continue
            try:
                await self._client.delete(POD, name, self._namespace, grace_period_s=0)
            except NotFound:
                pass
            except ClusterError as error:
                self._stays[name] = str(error)
                continue
            self._made.pop(name, None)
            self._stays.pop(name, None)

    async def _clear_leftovers(self) -> None:
        """Delete inspectors of runs that were killed: past their deadline, when no other run waits for them."""
        try:
            listed = (await self._client.list(POD, self._namespace, labels=LABEL)).items
        except ClusterError:
            return  # whoever may not list cannot look either; that is told for each node
        now = datetime.datetime.now(datetime.UTC)
        for pod in listed:
            made = datetime.datetime.fromisoformat(pod["metadata"]["creationTimestamp"].replace("Z", "+00:00"))
            deadline = pod.get("spec", {}).get("activeDeadlineSeconds") or 0
            if (now - made).total_seconds() > deadline + _SPARE_S:
                with contextlib.suppress(NotFound):
                    await self._client.delete(POD, pod["metadata"]["name"], self._namespace, grace_period_s=0)


def _states(pod: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return [each.get("state") or {} for each in pod.get("status", {}).get("containerStatuses") or ()]


def _hopeless(pod: Mapping[str, Any]) -> str:
    """Why a pod will not run in the time of a look; empty if it may."""
    for state in _states(pod):
        waiting = state.get("waiting") or {}
        if waiting.get("reason") in _HOPELESS:
            return ": ".join(filter(None, (waiting["reason"], waiting.get("message", ""))))
    return ""


def _waits_for(pod: Mapping[str, Any]) -> str:
    """What a pod's status says of what it waits for, or ended with."""
    status = pod.get("status", {})
    for state in _states(pod):
        for kind in ("terminated", "waiting"):
            if told := state.get(kind):
                code = f"exit code {told['exitCode']}" if "exitCode" in told else ""
                return ", ".join(filter(None, (told.get("reason", ""), code, told.get("message", ""))))
    for condition in status.get("conditions") or ():
        if condition.get("status") == "False" and condition.get("message"):
            return str(condition["message"])
    return str(status.get("message") or status.get("reason") or status.get("phase") or "the pod was never seen")
