"""gpu-feature-discovery: label the node by its GPUs, again and again (contracts/device-plugin-gfd.md 1.6, 8.3).

A cycle is the time from one reading of the configuration to the next: it ends by SIGHUP, and by itself when the driver
that was missing is there. What labels are is left to ``labels``, where they go to ``output``.
"""

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator
from typing import Final

from ..config import GfdConfig, load_gfd
from ..devices.model import Inventory
from ..devices.source import DeviceError
from ..options import Duration, Leave
from ..process import HANGUP, Process, unless_signalled
from ..sharing import Resources
from . import machine, output, vgpu
from .discovery import InitError, discover
from .labels import UNKNOWN, Facts, LabelError, labels, remarks

_DONE, _FAILED = 0, 1
_SHORT_S: Final = 1.0
"""Sleep intervals below are worth a warning."""
_NO_GPUS: Final = Inventory("", 0)
_FEW: Final = 1
"""So many labels say nothing of a GPU: a person should know."""


class Ending(enum.Enum):
    """Why a cycle is over."""

    RELOAD = enum.auto()
    EXIT = enum.auto()


async def run(process: Process) -> int:
    """Run gpu-feature-discovery; its exit code."""
    left: output.File | None = None
    try:
        while True:
            config = load_gfd(process)
            _tell(process, config)
            file = _left_behind(process, config)
            if left is not None and left != file:
                left.remove()
            left = file
            async with _opened(process, config) as place:
                if await Cycle(process, config, place).run() is Ending.EXIT:
                    return _DONE
            process.log.info("Reloading the configuration")
    except Leave as leave:
        return leave.tell(process)
    except InitError as error:
        process.log.error(str(error))
        if error.hint:
            process.log.error(error.hint)
        return _FAILED
    except (DeviceError, LabelError, output.OutputError) as error:
        process.log.error(str(error))
        return _FAILED
    finally:
        if left is not None:
            _clean(process, left)


def _tell(process: Process, config: GfdConfig) -> None:
    """Log the configuration, and what of it is not honoured or likely not meant.

    Resources follow from the GPUs, which are not known yet.
    """
    for warning in config.warnings:
        process.log.warning(warning)
    interval = config.sleep_interval
    if interval.ns is not None and interval.seconds < _SHORT_S and not config.oneshot:
        process.log.warning(f"the sleep interval is {interval} (a number without a unit is nanoseconds)")
    process.log.info(f"Running with config:\n{config.effective(Resources())}")


def _seconds(interval: Duration) -> float | None:
    """How long to wait for a signal; None is for ever."""
    return None if interval.ns is None else max(interval.seconds, 0.0)


def _left_behind(process: Process, config: GfdConfig) -> output.File | None:
    """The file that must not outlive the program: nobody would keep its labels true any more."""
    if config.oneshot or config.sleep_interval.ns is None or config.use_node_feature_api or not config.output_file:
        return None
    return output.File(process.path(config.output_file), config.output_file)


def _clean(process: Process, file: output.File) -> None:
    try:
        file.remove()
    except output.OutputError as error:
        process.log.warning(str(error))


@contextlib.asynccontextmanager
async def _opened(process: Process, config: GfdConfig) -> AsyncIterator[output.Output]:
    """Where a cycle's labels go."""
    if config.use_node_feature_api:
        async with output.node_feature(process, config) as place:
            yield place
    elif config.output_file:
        yield output.File(process.path(config.output_file), config.output_file)
    else:
        yield output.StandardOutput(process)


class Cycle:
    """Labels by one configuration."""

    def __init__(self, process: Process, config: GfdConfig, place: output.Output) -> None:
        self._process = process
        self._config = config
        self._place = place
        self._timestamp = None if config.no_timestamp else int(process.now().timestamp())
        self._blind = False
        self._found_again = False
        self._said: set[str] = set()

    async def run(self) -> Ending:
        """Label until a signal ends it, or once if that is all that is asked."""
        while True:
            number = await unless_signalled(self._process, self._label())
            if number is None and self._found_again:
                return Ending.RELOAD
            if number is None and self._config.oneshot:
                return Ending.EXIT
            if number is None:
                number = await self._process.signal(_seconds(self._config.sleep_interval))
            if number is not None:
                self._process.log.info(f"Received signal {number.name}")
                return Ending.RELOAD if number == HANGUP else Ending.EXIT

    async def _label(self) -> None:
        """Find, compute, hand over. Raises what ends the program."""
        inventory = await self._discover()
        if self._found_again:
            return
        facts = self._facts(inventory)
        found = labels(inventory, facts)
        for remark in remarks(inventory, facts):
            self._warn(remark)
        if len(found) <= _FEW:
            self._warn("No GPU was found: there is nothing to label the node with")
        if await self._place.write(found):
            self._process.log.info(f"Wrote {len(found)} labels of {len(inventory.gpus)} GPUs")

    async def _discover(self) -> Inventory:
        """The GPUs; none for the whole cycle once asking failed, where that is no error.

        A cycle whose GPUs could not be asked about notes when they can be: its labels are to begin anew.
        """
        config = self._config
        try:
            found = await asyncio.to_thread(discover, self._process, config.discovery, config.container_driver_root)
        except InitError as error:
            if config.fail_on_init_error:
                raise
            self._warn(f"{error}; the node is labelled as one without GPUs (failOnInitError is false)")
            if error.hint:
                self._warn(error.hint)
            self._blind = True
            return _NO_GPUS
        self._found_again = self._blind
        return found

    def _facts(self, inventory: Inventory) -> Facts:
        process, config = self._process, self._config
        return Facts(
            release=process.release,
            timestamp=self._timestamp,
            machine=machine.machine_type(process, config.machine_type_file, self._warn) if inventory.gpus else UNKNOWN,
            pci_classes=machine.pci_classes(process, inventory),
            mig_strategy=config.mig_strategy,
            sharing=config.sharing,
            vgpu=vgpu.read(process.kernel),
        )

    def _warn(self, text: str) -> None:
        """Log a warning, once a cycle: the next pass will find the same."""
        if text not in self._said:
            self._said.add(text)
            self._process.log.warning(text)
