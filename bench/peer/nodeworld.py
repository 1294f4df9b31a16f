"""The world of a node program that is compared with NVIDIA's: a machine's GPUs and files, private to one process.

The program runs in a mount namespace of its own in which the folders that both programs know by fixed names (the
kubelet's sockets, ``/dev``, ``/run``, the PCI devices of ``/sys``) lead into a temporary folder. Its GPUs are those of
the mock library (testing/mocknvml). Needs root and Linux; nothing of the machine changes.
"""

import asyncio
import contextlib
import os
import shutil
import stat
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec

from groundplane.node.devices.simulated import Description, Machine
from testing import mocknvml

DRIVER_ROOT = "driver"
STOP_S = 10.0
_ENTER = """
mount --bind "$0/lib" /var/lib && mount --bind "$0/run" /run && mount --bind "$0/dev" /dev &&
mount --bind "$0/pci" /sys/bus/pci/devices && mount --bind "$0/proc" /proc/driver && exec "$@"
"""
_NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
DRIVER_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_MAJOR = 195


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A machine and how a program is started on it.

    ``config`` is the text of its configuration file, ``absent_nodes`` those of the driver's device nodes that are not
    there, ``imex`` the channels that are, ``files`` more files below the world's folder. ``@`` in values of ``env``,
    ``args`` and ``files`` is that folder. ``library`` is False on a machine without the driver's library;
    ``init`` is what it answers when it is initialised; ``lines`` are more lines of the mock's file.
    """

    name: str
    machine: Description
    config: str | None = None
    env: Mapping[str, str] = {}
    args: tuple[str, ...] = ()
    absent_nodes: tuple[str, ...] = ()
    imex: tuple[int, ...] = ()
    files: Mapping[str, str] = {}
    library: bool = True
    init: int = 0
    faults: Mapping[str, int] = {}
    lines: str = ""
    numa: bool = True


class Command(msgspec.Struct, frozen=True):
    """One of the two programs: whose it is, and how it is started."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = {}


class World:
    """The folder of one run. It is made anew, always at the same place, so that both programs print the same paths."""

    def __init__(self, folder: Path, library: Path, scenario: Scenario) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.folder = folder
        self.scenario = scenario
        self.plugins = folder / "lib/kubelet/device-plugins"
        for name in ("lib/kubelet/device-plugins", "run", "dev", "pci", "proc", f"{DRIVER_ROOT}/usr/lib64"):
            (folder / name).mkdir(parents=True)
        self.machine = Machine.create(folder / "devices.yaml", scenario.machine)
        self._make_nodes()
        self._make_files()
        if scenario.library:
            shutil.copy(library, folder / DRIVER_ROOT / "usr/lib64" / mocknvml.SONAME)
            version = self.machine.read().inventory.driver_version
            (folder / DRIVER_ROOT / "usr/lib64" / f"libcuda.so.{version}").write_bytes(b"")
        self.show()

    def show(self) -> None:
        """Let the library see the machine as it is now."""
        scenario, file = self.scenario, self.folder / "nvml.txt"
        mocknvml.write(file, self.machine.read(), init=scenario.init, faults=scenario.faults)
        with file.open("a") as more:
            more.write(scenario.lines)

    def _make_nodes(self) -> None:
        dev = self.folder / "dev"
        for name, (major, minor) in _NODES.items():
            os.mknod(dev / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        names = [name for name in DRIVER_NODES if name not in self.scenario.absent_nodes]
        names += [f"nvidia{gpu.minor}" for gpu in self.machine.read().inventory.gpus]
        for folder in ("nvidia-caps", "nvidia-caps-imex-channels"):
            (dev / folder).mkdir()
        names += [f"nvidia-caps-imex-channels/channel{number}" for number in self.scenario.imex]
        names += [f"nvidia-caps/nvidia-cap{number}" for number in range(1, 200)]
        for number, name in enumerate(names):
            os.mknod(dev / name, stat.S_IFCHR | 0o666, os.makedev(_MAJOR, number))

    def _make_files(self) -> None:
        minor, lines = 2, ["config 1\n", "monitor 2\n"]
        for card in self.machine.read().cards.values():
            gpu = card.gpu
            folder = self.folder / "pci" / Path(gpu.sysfs).name
            folder.mkdir()
            files = {"class": f"{card.model.pci_class}\n", "vendor": "0x10de\n", "device": "0x2330\n"}
            files |= {"resource": "0x0 0x0 0x0\n" * 13}
            files |= {"numa_node": f"{gpu.index % 2 if self.scenario.numa else -1}\n"}
            for name, text in files.items():
                (folder / name).write_text(text)
            (folder / "config").write_bytes(bytes(256))
            for device in gpu.mig_devices:
                for name in (f"gi{device.gi}/access", f"gi{device.gi}/ci{device.ci}/access"):
                    line = f"gpu{gpu.minor}/{name}"
                    if not any(there.startswith(f"{line} ") for there in lines):
                        minor += 1
                        lines.append(f"{line} {minor}\n")
        (self.folder / "proc/nvidia-caps").mkdir()
        (self.folder / "proc/nvidia-caps/mig-minors").write_text("".join(lines))
        (self.folder / "product_name").write_text("Standard PC (Q35 + ICH9, 2009)\n")
        if self.scenario.config is not None:
            (self.folder / "config.yaml").write_text(self._there(self.scenario.config))
        for name, text in self.scenario.files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._there(text))
            path.chmod(0o755)

    def _there(self, text: str) -> str:
        return text.replace("@", str(self.folder))

    def environment(self, command: Command) -> dict[str, str]:
        """What the program finds in its environment."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        kept |= {mocknvml.VARIABLE: str(self.folder / "nvml.txt")}
        kept |= {"LD_LIBRARY_PATH": str(self.folder / DRIVER_ROOT / "usr/lib64")}
        kept |= {"DRIVER_ROOT_CTR_PATH": str(self.folder / DRIVER_ROOT)}
        if self.scenario.config is not None:
            kept |= {"CONFIG_FILE": str(self.folder / "config.yaml")}
        kept |= {name: self._there(value) for name, value in self.scenario.env.items()}
        return {**kept, **command.env}

    @contextlib.asynccontextmanager
    async def running(self, command: Command) -> AsyncIterator["Running"]:
        """The program, started; it is ended with the context."""
        log = self.folder / "log"
        words = [*command.argv, *map(self._there, self.scenario.args)]
        began = time.perf_counter()
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *("unshare", "--mount", "sh", "-c", _ENTER, str(self.folder), *words),
                env=self.environment(command),
                stdout=file,
                stderr=asyncio.subprocess.STDOUT,
            )
        try:
            yield Running(process, log, began)
        finally:
            await _end(process)


class Running:
    """A program that was started."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, began: float) -> None:
        self.process = process
        self.began = began
        self._log = log

    @property
    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self.process.returncode

    async def end(self, within_s: float) -> int | None:
        """Wait for its end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), within_s)
        return self.code

    def memory_mib(self, field: str = "VmRSS") -> float:
        """Resident memory, ``VmRSS`` now or ``VmHWM`` at its most; 0 for a program that has ended."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith(f"{field}:"):
                    return int(line.split()[1]) / 1024
        return 0.0


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()
