"""The first process of a node: `python -m testing.realcluster.nodeinit CONFIG`, in fresh namespaces.

Makes the machine that containerd and the kubelet believe in: a root file system of its own (the machine's below, a
layer in memory above, so that whatever pods write to the host goes when the node goes), its own /dev, /run, network and
name. Then it is what systemd is on a server: it starts containerd and the kubelet, starts again what ends, and reaps.
When it ends the kernel ends everything in the node. CONFIG is a JSON file; `node.Node` writes it.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import cgroups

DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "kmsg": (1, 11)}
TERMINALS = {"tty": (5, 0), "console": (5, 1)}
LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
RESTART_S = 0.5
HOME = Path("/groundplane")
"""Where the node's work folder appears inside."""


def mount(kind: str, source: str, target: str | Path, options: str = "") -> None:
    """Mount; `kind` is a file system type, `bind` or `rbind`."""
    Path(target).mkdir(parents=True, exist_ok=True)
    how = [f"--{kind}"] if kind in ("bind", "rbind") else ["-t", kind]
    subprocess.run(["mount", *how, *(["-o", options] if options else []), source, str(target)], check=True)


def build_root(config: Mapping[str, Any]) -> None:
    """Put the node's own file system in place of the machine's."""
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    scratch = Path(config["work"], "scratch")
    mount("tmpfs", "node", scratch, "mode=755")
    for name in ("upper", "work", "root"):
        (scratch / name).mkdir()
    root = scratch / "root"
    mount("overlay", "node", root, f"lowerdir=/,upperdir={scratch}/upper,workdir={scratch}/work")
    mount("bind", config["work"], root / "groundplane")
    for index, folder in enumerate(config["path"]):
        mount("bind", folder, root / f"groundplane-bin/{index}")
    mount("proc", "proc", root / "proc")
    mount("rbind", "/sys", root / "sys")
    for folder in ("run", "tmp"):
        mount("tmpfs", folder, root / folder, "mode=1777" if folder == "tmp" else "mode=755")
    for folder in config["seen"]:
        mount("bind", folder, root / folder.lstrip("/"), "ro")
    mount("bind", f"{config['work']}/kubelet", root / "var/lib/kubelet")
    mount("tmpfs", "containerd", root / "var/lib/containerd", "mode=711")  # images, synced to disk blob by blob, else
    _devices(root / "dev")
    (root / ".old").mkdir()
    os.chdir(root)
    subprocess.run(["pivot_root", ".", ".old"], check=True)
    os.chdir("/")
    subprocess.run(["umount", "-l", "/.old"], check=True)
    subprocess.run(["mount", "--make-rshared", "/"], check=True)  # pods may ask for mounts that spread


def _devices(dev: Path) -> None:
    mount("tmpfs", "dev", dev, "mode=755")
    for name, (major, minor) in {**DEVICES, **TERMINALS}.items():
        os.mknod(dev / name, 0o666 | 0o020000, os.makedev(major, minor))
        (dev / name).chmod(0o666)
    for name, target in LINKS.items():
        (dev / name).symlink_to(target)
    mount("devpts", "devpts", dev / "pts", "newinstance,ptmxmode=0666,mode=620,gid=5")
    mount("tmpfs", "shm", dev / "shm", "mode=1777")
    mount("mqueue", "mqueue", dev / "mqueue")


def join_network(config: Mapping[str, Any]) -> None:
    """Wait for the cable to the control plane, and set addresses and routes."""
    deadline = time.monotonic() + 30
    while "eth0" not in (name for _, name in socket.if_nameindex()):
        if time.monotonic() > deadline:
            raise SystemExit("no network interface eth0 came within 30 s")
        time.sleep(0.02)
    for command in (
        "link set lo up",
        f"address add {config['address']}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {config['gateway']}",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def place_files(files: Mapping[str, str]) -> None:
    """Write the node's configuration files."""
    for path, text in files.items():
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_symlink():
            target.unlink()  # the machine's own, in the layer below
        target.write_text(text, errors="surrogateescape")  # bytes that are no text come as `onnode.host.BYTES` has them
        target.chmod(0o755 if target.parent.name == "bin" else 0o644)


def place_links(links: Mapping[str, str]) -> None:
    """Make symbolic links; what the machine has there is hidden."""
    for path, target in links.items():
        link = Path(path)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def place_programs(programs: Mapping[str, str]) -> None:
    """Put executables of the machine where the node shall have them."""
    for path, source in programs.items():
        Path(path).unlink(missing_ok=True)
        shutil.copyfile(source, path)
        Path(path).chmod(0o755)


def write_base_spec(config: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """The specification that containers start from: containerd's own, with the node's additions."""
    made = subprocess.run(["ctr", "oci", "spec"], env=environment, check=True, capture_output=True).stdout
    spec = json.loads(made)
    spec["process"].pop("rlimits", None)  # containerd's own for the kubelet has none; a user namespace may set none
    for path in config["container_mounts"]:
        Path(path).mkdir(parents=True, exist_ok=True)
        mounted = {"destination": path, "source": path, "type": "bind", "options": ["rbind", "rw"]}
        spec["mounts"].append(mounted)
    added = [f"{name}={value}" for name, value in config["container_environment"].items()]
    spec["process"]["env"] = [*spec["process"].get("env", ()), *added]
    Path("/etc/containerd/base-spec.json").write_text(json.dumps(spec))


class Services:
    """Programs that are started again whenever they end, as units with Restart=always."""

    def __init__(self, commands: Mapping[str, list[str]], environment: Mapping[str, str]) -> None:
        self._commands = commands
        self._environment = environment
        self._running: dict[int, str] = {}
        self._due: dict[str, float] = dict.fromkeys(commands, 0.0)

    def start_due(self) -> None:
        """Start what shall run now."""
        for name in [name for name, due in self._due.items() if due <= time.monotonic()]:
            del self._due[name]
            with (HOME / f"{name}.log").open("ab") as log:
                process = subprocess.Popen(
                    self._commands[name], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(self._environment)
                )
            self._running[process.pid] = name
            (HOME / f"{name}.pid").write_text(f"{process.pid}\n")

    def reap(self) -> None:
        """Collect every child that has ended, ours and those left behind by others."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if name := self._running.pop(pid, None):
                self._due[name] = time.monotonic() + RESTART_S

    def stop(self) -> None:
        """Ask all to end; what does not is killed with the namespace."""
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def main() -> None:
    """Set the node up and run it until SIGTERM."""
    config = json.loads(Path(sys.argv[1]).read_text())
    build_root(config)
    socket.sethostname(config["name"])
    join_network(config)
    place_files(config["files"])
    place_links(config["links"])
    place_programs(config["programs"])
    paths = [f"/groundplane-bin/{index}" for index in range(len(config["path"]))]
    environment = {"PATH": ":".join([*paths, "/usr/sbin", "/usr/bin", "/sbin", "/bin"]), "HOME": "/root"}
    os.environ["PATH"] = environment["PATH"]
    Path("/etc/containerd").mkdir(exist_ok=True)
    write_base_spec(config, environment)
    cgroups.create(config["cgroup"])
    services = Services(
        {name: [shutil.which(argv[0]) or argv[0], *argv[1:]] for name, argv in config["services"].items()}, environment
    )
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # services are told to restart by it; it is ignored below nohup
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ending.append(number))
    while not ending:
        services.start_due()
        services.reap()
        time.sleep(0.1)
    services.stop()


if __name__ == "__main__":
    main()
