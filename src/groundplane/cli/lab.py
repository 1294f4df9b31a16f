"""``groundplane lab``: start, look at and stop the embedded cluster, and run the demo in it.

``lab up`` starts the lab as a process of its own and returns when the API answers; ``lab down`` ends it by its
process id. What is running is written in a state file, one a lab name, next to a lock that the lab's process holds as
long as it lives: a state file without its lock held is what a killed lab left behind, and its process id means nothing.
"""

import asyncio
import contextlib
import fcntl
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from . import documents, lab_fault, lab_scenario
from .render import load_policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..lab.demo import Outcome
    from ..lab.nodes import NodeSpec

EMBEDDED = "embedded"
ENGINES = (EMBEDDED, "kubernetes")


class Running(msgspec.Struct, frozen=True):
    """What ``lab up`` leaves behind for ``lab status`` and ``lab down``."""

    pid: int
    url: str
    kubeconfig: str
    nodes: int


def _home(name: str) -> Path:
    base = os.environ.get("GROUNDPLANE_HOME") or Path.home() / ".local" / "state" / "groundplane"
    return Path(base) / "lab" / name


@contextlib.contextmanager
def _locked(name: str) -> Iterator[bool]:
    """Try to take a lab's lock and hold it inside the block; False if a running lab of that name has it."""
    home = _home(name)
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _read(name: str) -> Running | None:
    """Return the running lab of that name, or None; one that is just starting or ending is not running."""
    path = _home(name) / "lab.json"
    if not path.exists():
        return None
    with _locked(name) as free:
        if free:
            path.unlink(missing_ok=True)
            return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Running)
    except FileNotFoundError:
        return None


def expect(name: str) -> Running:
    """The running lab of that name. ClickException if there is none."""
    running = _read(name)
    if running is None:
        raise click.ClickException(f"no lab named {name!r} is running; start one with `groundplane lab up`")
    return running


@click.group("lab")
def command() -> None:
    """Try everything in an embedded cluster: no GPU, no root, no network."""


def _plain_name(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """Refuse a lab name that is no plain folder name: it would reach outside the folder of the labs."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", value):
        raise click.BadParameter(f"{value!r}: use up to 63 letters, digits, `.`, `_` and `-`, a letter or digit first")
    return value


_name = click.option(
    "--name", default="default", show_default=True, callback=_plain_name, help="Which lab, when several run."
)


@command.command("up")
@_name
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default=EMBEDDED,
    show_default=True,
    help="embedded: all in one process. kubernetes: real control plane, kubelets and containerd (root; a checkout).",
)
@click.option("--nodes", default="3", show_default=True, metavar="N|FILE", help="How many GPU nodes, or a node file.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="TCP port on 127.0.0.1; 0 takes a free one.",
)
@click.option("--speed", default=60.0, show_default=True, help="Cluster seconds in one real second.")
@click.option("--policy", type=click.Path(exists=True, dir_okay=False), help="Apply this ClusterPolicy at the start.")
@click.option(
    "--kubernetes",
    metavar="VERSION",
    default="",
    help="What the API server says it is, such as v1.35.2; embedded only. It answers as v1.37 in any case.",
)
@click.option("--no-operator", is_flag=True, help="Start the cluster only; run an operator against it yourself.")
@click.option("--foreground", is_flag=True, help="Stay in this terminal until Ctrl-C.")
@click.option("--timeout", type=float, help="Seconds to wait for the API to answer: 30, with real Kubernetes 600.")
def up(
    name: str,
    engine: str,
    nodes: str,
    port: int,
    speed: float,
    policy: str | None,
    kubernetes: str,
    no_operator: bool,
    foreground: bool,
    timeout: float | None,
) -> None:
    """Start a lab and print how to reach it."""
    if (running := _read(name)) is not None:
        raise click.ClickException(f"lab {name!r} already runs (pid {running.pid}); end it with `groundplane lab down`")
    if speed <= 0:
        raise click.ClickException(f"--speed must be above 0, not {speed:g}")
    specs = _specs(nodes)
    if policy:
        load_policy(policy)
    real = engine != EMBEDDED
    if kubernetes:
        _check_version(kubernetes, real)
    if real:
        from . import lab_kubernetes

        lab_kubernetes.prepare()
    if foreground:
        embedded = functools.partial(_run_embedded, kubernetes)
        run = functools.partial(_run_kubernetes if real else embedded, name, specs, port, speed, policy)
        _run(name, run, not no_operator, policy)
        return
    argv = [sys.executable, "-m", "groundplane", "lab", "up", "--foreground", "--name", name, "--nodes", nodes]
    argv += ["--engine", engine, "--port", str(port), "--speed", str(speed)]
    argv += ["--policy", policy] if policy else []
    argv += ["--kubernetes", kubernetes] if kubernetes else []
    argv += ["--no-operator"] if no_operator else []
    _print_running(_spawn(name, argv, timeout or (600.0 if real else 30.0)))


def _check_version(kubernetes: str, real: bool) -> None:
    from ..lab import discovery

    if real:
        raise click.ClickException("--kubernetes is the embedded lab's: real Kubernetes is the version that was built")
    try:
        discovery.version(kubernetes)
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def _specs(nodes: str) -> "list[NodeSpec]":
    from ..lab import nodes as lab_nodes

    try:
        return lab_nodes.generate(int(nodes)) if nodes.isdecimal() else lab_nodes.load(Path(nodes))
    except (lab_nodes.NodeFileError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _spawn(name: str, argv: list[str], timeout: float) -> Running:
    home = _home(name)
    home.mkdir(parents=True, exist_ok=True)
    log = home / "lab.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True)
    deadline = time.monotonic() + timeout
    while (running := _read(name)) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            process.terminate()
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise click.ClickException(f"the lab did not come up; the end of {log}:\n{tail}")
        time.sleep(0.05)
    return running


def _print_running(running: Running) -> None:
    click.echo(f"lab is up: {running.nodes} nodes at {running.url} (pid {running.pid})")
    click.echo(f"\n    export KUBECONFIG={running.kubeconfig}\n    kubectl get nodes\n")


def _run(name: str, run: "Callable[[bool], None]", operator: bool, policy: str | None) -> None:
    from ..cluster import errors
    from ..lab.cluster import LabError

    with _locked(name) as free:
        if not free:
            raise click.ClickException(
                f"lab {name!r} is just starting or ending; look again with `groundplane lab status`"
            )
        try:
            run(operator)
        except LabError as error:
            raise click.ClickException(str(error)) from error
        except errors.ApiError as error:
            raise click.ClickException(f"the lab's API refused {policy}: {error}") from error
        except OSError as error:
            raise click.ClickException(f"the lab cannot run: {error}") from error


def _run_embedded(
    kubernetes: str, name: str, specs: "list[NodeSpec]", port: int, speed: float, policy: str | None, operator: bool
) -> None:
    asyncio.run(_serve(kubernetes, name, specs, port, speed, policy, operator))


def _run_kubernetes(
    name: str, specs: "list[NodeSpec]", port: int, speed: float, policy: str | None, operator: bool
) -> None:
    from . import lab_kubernetes

    home = _home(name)
    given = documents.unpacked(documents.read(policy), "ClusterPolicy") if policy else []
    with lab_kubernetes.running(specs, port=port, speed=speed, policies=given, operator=operator) as cluster:
        kubeconfig = home / "kubeconfig"
        _write(kubeconfig, cluster.kubeconfig.read_bytes())
        running = Running(os.getpid(), cluster.cluster.control_plane.url, str(kubeconfig), len(specs))
        state = home / "lab.json"
        _write(state, msgspec.json.encode(running))
        _print_running(running)
        try:
            lab_kubernetes.wait_for_end(cluster)
        finally:
            state.unlink(missing_ok=True)


async def _serve(
    kubernetes: str, name: str, specs: "list[NodeSpec]", port: int, speed: float, policy: str | None, operator: bool
) -> None:
    from ..lab import cluster

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    home = _home(name)
    state = home / "lab.json"
    try:
        workdir = _fresh_workdir(home)
        async with cluster.Lab(
            specs, speed=speed, port=port, operator=operator, workdir=workdir, kubernetes=kubernetes
        ) as lab:
            kubeconfig = lab.kubeconfig(home / "kubeconfig")
            if policy:
                await lab.apply(documents.unpacked(documents.read(policy), "ClusterPolicy"))
            running = Running(os.getpid(), lab.url, str(kubeconfig), len(specs))
            _write(state, msgspec.json.encode(running))
            _print_running(running)
            while not stop.is_set():
                lab.check()
                await _wait(stop, 1.0)
    finally:
        state.unlink(missing_ok=True)
        _remove_workdir(home)


def _fresh_workdir(home: Path) -> Path:
    """Make the folder of the simulated hosts, and remove what a lab that was killed left there.

    It cannot be inside ``home``: the kubelets' sockets need a short path.
    """
    _remove_workdir(home)
    workdir = Path(tempfile.mkdtemp(prefix="gp-"))
    _write(home / "workdir", str(workdir).encode())
    return workdir


def _remove_workdir(home: Path) -> None:
    """Remove the folder that the last lab of this name made, if it is there. The lab's lock must be held."""
    note = home / "workdir"
    if not note.exists():
        return
    workdir = Path(note.read_text(encoding="utf-8"))
    if workdir.name.startswith("gp-") and workdir.is_dir() and not workdir.is_symlink():
        shutil.rmtree(workdir)
    note.unlink()


def _write(path: Path, content: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    beside.replace(path)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


@command.command("down")
@_name
@click.option("--timeout", default=20.0, show_default=True, help="Seconds to wait before it is killed.")
def down(name: str, timeout: float) -> None:
    """End a lab."""
    running = expect(name)
    os.kill(running.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while _holds_lock(name):
        if time.monotonic() > deadline:
            os.kill(running.pid, signal.SIGKILL)
            raise click.ClickException(
                f"the lab did not stop in {timeout:g} s and was killed (pid {running.pid}); what it last said is in "
                f"{_home(name) / 'lab.log'}"
            )
        time.sleep(0.02)
    click.echo(f"lab {name!r} is down")


def _holds_lock(name: str) -> bool:
    with _locked(name) as free:
        return not free


@command.command("status")
@_name
def status(name: str) -> None:
    """Show a running lab's nodes and how far the stack has come up on each."""
    running = expect(name)
    _print_running(running)
    asyncio.run(_print_status(running))


async def _print_status(running: Running) -> None:
    from ..cluster import client, config, errors, kinds
    from ..lab import layers
    from . import lab_view

    async with client.Client(config.Config.from_kubeconfig(running.kubeconfig)) as api:
        nodes = (await api.list(kinds.NODE)).items
        pods = (await api.list(kinds.POD)).items
        try:
            policies = (await api.list(kinds.CLUSTER_POLICY)).items
        except errors.NotFound:
            raise click.ClickException(
                "the cluster has no ClusterPolicy definition any more; put it back with "
                "`groundplane crds | kubectl apply --server-side -f -`"
            ) from None
    console = lab_view.console()
    console.print(lab_view.table(layers.judge(nodes, pods, policies), console.width))
    click.echo()
    for policy in policies:
        state = policy.get("status", {}).get("state", "no status yet")
        click.echo(f"ClusterPolicy {policy['metadata']['name']}: {state}")
    if not policies:
        click.echo("no ClusterPolicy: apply one, and the operator brings the stack up")


@command.command("kubeconfig")
@_name
def kubeconfig(name: str) -> None:
    """Print the path of a running lab's kubeconfig: export KUBECONFIG="$(groundplane lab kubeconfig)"."""
    running = expect(name)
    click.echo(running.kubeconfig)


@command.command("demo")
@click.option("--nodes", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="Another node file.")
@click.option("--speed", default=60.0, show_default=True, help="Cluster seconds in one real second.")
@click.option("--plain", is_flag=True, help="Lines instead of a live table.")
def demo(nodes: str | None, speed: float, plain: bool) -> None:
    """Bring the GPU stack up on three GPU nodes, run the CUDA check, read the GPUs' figures, turn a GPU into MIG
    slices and back, and break a node: the doctor names the cause, and finds nothing any more when it is mended."""
    from ..lab.cluster import LabError

    try:
        outcome = asyncio.run(_demo(nodes, speed, plain))
    except LabError as error:
        raise click.ClickException(str(error)) from error
    if not outcome.passed:
        why = outcome.problem.partition("\n")[0] or "see the tables and the CUDA check above"
        raise click.ClickException(f"the demo did not end well: {why}")


async def _demo(nodes: str | None, speed: float, plain: bool) -> "Outcome":
    click.echo("A cluster starts in this process; its GPU nodes are simulated.")
    from ..lab import cluster
    from ..lab import demo as story
    from ..lab import nodes as lab_nodes
    from . import lab_view

    specs = _specs(nodes) if nodes else lab_nodes.parse(story.data("demo-nodes.yaml"), "demo-nodes.yaml")
    console = lab_view.console()
    view = lab_view.Live(console) if console.is_terminal and not plain else lab_view.Lines(console)
    async with cluster.Lab(specs, speed=speed) as lab:
        with view:
            outcome = await story.run(lab, view.show)
    lab_view.conclude(console, outcome, speed)
    return outcome


command.add_command(lab_scenario.command)


command.add_command(lab_fault.command)


def machines(name: str) -> Path:
    """The folder of a running lab's simulated machines, one by node. ClickException where there is none."""
    expect(name)
    note = _home(name) / "workdir"
    if not note.exists():
        raise click.ClickException(f"lab {name!r} runs on real Kubernetes; its nodes are broken by hand, not from here")
    return Path(note.read_text(encoding="utf-8"))
