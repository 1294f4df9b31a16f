"""The machine: which driver it has, taking that away, and what must be there before the next (5.3, 5.5, 5.6)."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from ...api import names
from .. import modules, mounts, vfio
from ..process import Completed, Process
from .errors import DriverError

HOST: Final = "/host"
"""Where the host's root is mounted."""
SMI: Final = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
SMI_LIMIT_S: Final = 120.0
"""How long the host's nvidia-smi may take; where a driver is broken, it may never end."""
UNLOAD: Final = ("nvidia_modeset", "nvidia_uvm", "nvidia_peermem", "nvidia_fs", "nvidia_vgpu_vfio", "gdrdrv", "nvidia")
"""In the order in which modules must go: what uses others, first."""
NOUVEAU: Final = "nouveau"
IN_USE: Final = "Could not unload NVIDIA driver kernel modules, driver is in use"
MELLANOX: Final = "0x15b3"
MOFED_MODULE: Final = "mlx5_core"
MOFED_READY: Final = "/run/mellanox/drivers/.driver-ready"
MOFED_POLL_S: Final = 5.0


def _of_driver(path: str) -> bool:
    return path.startswith("/dev/nvidia")


class Host:
    """The machine of a node."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._log = process.log

    # --- what there is ------------------------------------------------------------------------------------------------

    async def installed_driver(self) -> str:
        """Version of a driver that is installed on the host itself and works there; empty if there is none."""
        doing = asyncio.ensure_future(self._process.execute(("chroot", HOST, *SMI)))
        limit = asyncio.ensure_future(self._process.sleep(SMI_LIMIT_S))
        try:
            await asyncio.wait((doing, limit), return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                self._log.warning(
                    f"nvidia-smi of the host has not ended after {SMI_LIMIT_S:g} s and was ended; the host counts as "
                    "having no driver of its own. If one is installed there, it does not work: repair or remove it"
                )
                return ""
            done: Completed = doing.result()
        except OSError as error:
            self._log.info(f"nvidia-smi of the host cannot be run: {error}")
            return ""
        finally:
            for task in (doing, limit):
                task.cancel()
            await asyncio.gather(doing, limit, return_exceptions=True)
        return done.out.strip().partition("\n")[0] if done.code == 0 else ""

    def loaded(self) -> bool:
        """Whether the driver's kernel module is loaded."""
        return modules.loaded(self._process, "nvidia")

    def stored_digest(self) -> str:
        """Digest of the configuration with which the loaded driver was loaded; empty if nobody has written it."""
        file = self._process.path(names.DRIVER_STATE_FILE)
        try:
            return file.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            self._log.warning(f"{names.DRIVER_STATE_FILE} cannot be read, so the driver is loaded anew: {error}")
            return ""

    # --- taking the driver away ---------------------------------------------------------------------------------------

    async def remove_driver(self) -> None:
        """Unload the driver, and remove what its container has left. Raises DriverError, MountError, OSError."""
        await self._unload()
        await self.remove_leftovers()

    async def remove_leftovers(self) -> None:
        """Unmount the root of a driver's container, and remove the file of its process. Raises MountError, OSError."""
        if not self.loaded():
            self._forget()
        if gone := await mounts.unmount(self._process, names.DRIVER_ROOT):
            self._log.info(f"unmounted {names.DRIVER_ROOT} ({len(gone)} mounts)")
        try:
            self._process.path(names.DRIVER_PID_FILE).unlink(missing_ok=True)
        except OSError as error:
            self._log.warning(f"{names.DRIVER_PID_FILE} cannot be removed: {error}")

    async def _unload(self) -> None:
        """Unload the driver's modules, all that go. Raises DriverError.

        The record of the loaded driver goes first: a driver that has lost some of its modules must not count as the
        one that is recorded, even if this program is killed meanwhile. It comes back if all of them stay.
        """
        self._log.info("unloading the NVIDIA driver's kernel modules")
        digest = self.stored_digest()
        self._forget()
        wrong: list[str] = []
        unloaded = 0
        for module in UNLOAD:
            if not modules.loaded(self._process, module):
                continue
            try:
                await modules.unload(self._process, module)
                unloaded += 1
            except modules.ModuleError as error:
                self._log.warning(str(error))
                wrong.append(str(error))
        if not wrong:
            return
        if digest and not unloaded:
            self._process.path(names.DRIVER_STATE_FILE).write_text(f"{digest}\n", encoding="utf-8")
        self._log.error(IN_USE)
        self._list()
        raise DriverError(f"{IN_USE}: {'; '.join(wrong)}")

    def _forget(self) -> None:
        self._process.path(names.DRIVER_STATE_FILE).unlink(missing_ok=True)

    def _list(self) -> None:
        """Say which modules are loaded, and what uses them."""
        try:
            rows = [row for row in modules.rows(self._process) if any("nvidia" in column for column in row)]
        except OSError as error:
            self._log.warning(f"the kernel's modules cannot be listed: {error}")
            return
        for row in (modules.HEAD, *rows):
            self._log.info(str(row))

    def users(self) -> list[str]:
        """The processes that have devices of the driver open, each with its command line; the pod sees all of them."""
        return [
            f"{each.pid} ({' '.join(each.argv)})"
            for each in self._process.processes()
            if any(map(_of_driver, self._open_files(each.pid)))
        ]

    def _open_files(self, pid: int) -> Iterator[str]:
        with contextlib.suppress(OSError):  # the process is gone meanwhile
            for entry in self._process.path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):  # it has closed the file meanwhile
                    yield str(entry.readlink())

    async def unload_nouveau(self) -> None:
        """Unload the kernel's own driver, with which NVIDIA's cannot be loaded. Raises ModuleError."""
        if modules.loaded(self._process, NOUVEAU):
            await modules.unload(self._process, NOUVEAU)
            self._log.info("unloaded the nouveau driver")

    async def unbind_vfio(self) -> None:
        """Take GPUs back from virtual machines; it waits for those that still run. Raises VfioError."""
        for address in await asyncio.to_thread(vfio.unbind_all, self._process):
            self._log.info(f"took GPU {address} from the driver for virtual machines")

    # --- what must be there -------------------------------------------------------------------------------------------

    async def mofed_ready(self, *, on_host: bool) -> None:
        """Wait, for ever, for the drivers of the machine's Mellanox devices, if it has any."""
        if not self._mellanox():
            self._log.info("GPUDirectRDMA is enabled, but the machine has no Mellanox device: nothing to wait for")
            return
        self._log.info("GPUDirectRDMA is enabled, validating MOFED driver installation")
        what = f"module {MOFED_MODULE} on the host" if on_host else MOFED_READY
        while not (self._mofed_module() if on_host else self._process.path(MOFED_READY).exists()):
            self._log.info(f"waiting for MOFED to be installed: there is no {what} yet")
            await self._process.sleep(MOFED_POLL_S)

    def _mellanox(self) -> bool:
        kernel = self._process.kernel
        for file in kernel.glob(f"{vfio.DEVICES}/*/vendor"):
            try:
                if kernel.read_text(file).strip() == MELLANOX:
                    return True
            except OSError as error:
                self._log.warning(f"{file} cannot be read: {error}")
        return False

    def _mofed_module(self) -> bool:
        return any(row.name == MOFED_MODULE for row in modules.rows(self._process))
