"""The node's GPUs: whether they are as a layout wants them, and making them so.

What mig-parted does, in this very process. The driver's library is given back after each question, since nobody may
hold it while GPUs are reset. A GPU that no entry of a layout matches is told and left alone, so that layouts for one
kind of GPU, such as those made for this very node, can be had beside GPUs of another kind; mig-parted's ``assert`` asks
for all (contracts/mig-exporter-validator.md 1.11, 2).
"""

import contextlib
from collections.abc import Iterator

from ...hostroot import HostPathError
from ...process import Process
from .. import change, compare, layout, state
from ..change import LayoutChange, World
from ..errors import MigError
from ..hooks import Hooks
from ..layout import Layout
from ..parted import module_loaded, nvidia_smi


class Gpus:
    """The GPUs of a node, and the file of its layouts. Methods raise MigError and DeviceError."""

    def __init__(self, process: Process, driver_root: str, file: str) -> None:
        self._process = process
        self._driver_root = driver_root
        self._file = file
        self._told: set[str] = set()

    def layout(self, name: str) -> Layout:
        """A layout of the file."""
        try:
            text = self._process.path(self._file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError, HostPathError) as error:
            raise MigError(f"config file {self._file} cannot be read: {error}") from error
        return layout.select(layout.parse(text, self._file), name)

    def check(self, wanted: Layout) -> None:
        """Whether the GPUs can ever be so, and the layout is about any of them. Touches nothing."""
        self._told.clear()
        with self._world() as world:
            states = state.read(world.control)
            for text in layout.warnings(wanted, [found.gpu for found in states]):
                world.warn(text)
            LayoutChange(world, wanted).check(mode_only=False)

    def require(self, wanted: Layout, *, mode_only: bool = False) -> None:
        """Raise :class:`~..errors.NotApplied` if the GPUs are not so."""
        with self._world() as world:
            states = state.read(world.control)
            differences = compare.mode(wanted, states)
            compare.require(differences if mode_only else differences or compare.concerned(wanted, states))

    async def apply(self, wanted: Layout, *, mode_only: bool = False) -> None:
        """Make the GPUs so."""
        with self._world() as world:
            hooks = Hooks(self._process, {}, {})
            await change.run(LayoutChange(world, wanted), hooks, mode_only=mode_only)

    @contextlib.contextmanager
    def _world(self) -> Iterator[World]:
        process, root = self._process, self._driver_root
        if not module_loaded(process):
            raise MigError("the NVIDIA driver is not loaded (/proc/modules has no module nvidia); load it first")
        with process.devices(root) as source:
            yield World(source.mig(), nvidia_smi(process, root), process.log.info, self._warn)

    def _warn(self, text: str) -> None:
        """Tell something once a run, though it is found at each of its steps."""
        if text not in self._told:
            self._told.add(text)
            self._process.log.warning(text)
