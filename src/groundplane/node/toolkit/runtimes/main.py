"""Configures the node's container runtime and takes that back; the same way for each runtime.

The files' originals are found first (what is ours taken away), then what they are to say is planned from those, so that
configuring twice is the same as once. What is remembered is written before the files, the files are written in an order
in which the runtime can start at every moment, and what the runtime refuses is put back.
"""

from collections.abc import Mapping
from typing import Final

from ...process import Process
from ..settings import RuntimeConfigError, RuntimeSettings
from . import files
from .containerd import Containerd, socket_of
from .crio import Crio
from .docker import Docker
from .engine import Engine, Given, Plan, Taken, Texts
from .files import Found
from .memory import Kept, Memory, State

ENGINES: Final[Mapping[str, Engine]] = {"containerd": Containerd(), "crio": Crio(), "docker": Docker()}
LOW_LEVEL: Final = ("runc", "crun")


async def configure(process: Process, settings: RuntimeSettings) -> bool:
    """Add the handlers to the runtime's configuration; whether it must be restarted to behave as configured.

    Raises RuntimeConfigError; the files are as they were then.
    """
    engine = _engine(settings)
    memory = Memory(process, settings.state)
    found = _found(process, engine, settings)
    given, plan = await _planned(process, engine, settings, memory, found)
    for warning in plan.warnings:
        process.log.warning(warning)
    engine.remark(process, given)
    now = given.now
    changed = [path for path in plan.files if plan.files[path] != now[path]]
    remembered = memory.state
    memory.save(_remembering(settings, memory, given, plan, found))
    done: list[str] = []
    try:
        for path in changed:
            files.write(process, found[path], plan.files[path])
            done.append(path)
            process.log.info(f"wrote {path}" if plan.files[path] is not None else f"removed {path}")
        if changed:
            await engine.check(process, given)
    except RuntimeConfigError:
        _put_back(process, [found[path] for path in reversed(done)], memory, remembered)
        raise
    final = memory.state
    if final is not None:
        memory.save(_settled(final, plan))
    return engine.effective(settings, {path: now[path] for path in plan.files}, plan.files)


async def revert(process: Process, settings: RuntimeSettings) -> bool:
    """Take the runtime's configuration back; whether it must be restarted to behave so. Raises RuntimeConfigError."""
    engine = _engine(settings)
    memory = Memory(process, settings.state)
    found = _found(process, engine, settings)
    now = {path: each.text for path, each in found.items()}
    kept = memory.state.files if memory.state is not None else None
    wanted = engine.reverted(Taken(settings, now, _originals(engine, settings, memory, found), kept))
    for path, text in wanted.items():
        if text != now[path]:
            files.write(process, found[path], text)
            process.log.info(f"took back what was added to {path}" if text is not None else f"removed {path}")
    _remove_folders(process, memory.state)
    memory.forget()
    return engine.effective(settings, {path: now[path] for path in wanted}, wanted)


async def low_level(process: Process, settings: RuntimeSettings) -> tuple[str, ...]:
    """The low-level runtimes (contracts/toolkit-cdi.md 4.4, step 3), paths of the host first, then ``runc``, ``crun``.

    Paths are those of the default handler, unless it is one of NVIDIA's, of runc and of crun in the runtime's
    configuration. Raises RuntimeConfigError.
    """
    engine = _engine(settings)
    loaded = await engine.load(process, settings)
    default = engine.default(loaded.plain)
    if default.startswith("nvidia"):
        default = ""
    paths = [path for name in (default, *LOW_LEVEL) if name for path in engine.binaries(loaded.plain, name)]
    ours = {each.path for each in settings.handlers}
    return tuple(dict.fromkeys([*(path for path in paths if path not in ours), *LOW_LEVEL]))


async def socket(process: Process, settings: RuntimeSettings) -> str:
    """The socket, a path of the host, that containerd's configuration names; empty for other runtimes, which do not.

    For a restart: the socket that the toolkit was told of may not be the one. Raises RuntimeConfigError.
    """
    engine = _engine(settings)
    if not isinstance(engine, Containerd):
        return ""
    return socket_of((await engine.load(process, settings)).plain)


async def preview(process: Process, settings: RuntimeSettings) -> dict[str, str]:
    """What the files would say, by path, the drop-in first; nothing is written. Raises RuntimeConfigError."""
    engine = _engine(settings)
    memory = Memory(process, settings.state)
    _, plan = await _planned(process, engine, settings, memory, _found(process, engine, settings))
    for warning in plan.warnings:
        process.log.warning(warning)
    return {path: text for path, text in plan.files.items() if text is not None}


def _engine(settings: RuntimeSettings) -> Engine:
    if settings.runtime not in ENGINES:
        raise RuntimeConfigError(f'invalid runtime "{settings.runtime}": expected one of {", ".join(ENGINES)}')
    return ENGINES[settings.runtime]


def _found(process: Process, engine: Engine, settings: RuntimeSettings) -> dict[str, Found]:
    return {path: files.read(process, path) for path in engine.paths(settings)}


def _originals(engine: Engine, settings: RuntimeSettings, memory: Memory, found: Mapping[str, Found]) -> Texts:
    return {
        path: None if each.text is None else engine.original(settings, path, each.text, memory.kept(path))
        for path, each in found.items()
    }


async def _planned(
    process: Process, engine: Engine, settings: RuntimeSettings, memory: Memory, found: Mapping[str, Found]
) -> tuple[Given, Plan]:
    originals = _originals(engine, settings, memory, found)
    source = await engine.load(process, settings)
    default = memory.state.default if memory.state else ""
    given = Given(settings, originals, {path: each.text for path, each in found.items()}, source, default)
    return given, engine.plan(process, given)


def _remembering(
    settings: RuntimeSettings, memory: Memory, given: Given, plan: Plan, found: Mapping[str, Found]
) -> State:
    """What is remembered while the files are written: all that may be found there if that is cut short."""
    old = memory.state or State()
    kept = dict(old.files)
    for path, text in plan.files.items():
        earlier = old.files[path].written if path in old.files else ()
        newest = () if text is None else (text,)
        kept[path] = Kept(given.originals[path], tuple(dict.fromkeys((*(e for e in earlier if e != text), *newest))))
    made = tuple(dict.fromkeys((*old.folders, *(folder for each in found.values() for folder in _missing(each)))))
    return State(runtime=settings.runtime, default=plan.default, files=kept, folders=made)


def _settled(state: State, plan: Plan) -> State:
    """What is remembered once the files are written."""
    kept = {
        path: Kept(each.before, each.written[-1:] if path in plan.files else each.written)
        for path, each in state.files.items()
    }
    return State(runtime=state.runtime, default=state.default, files=kept, folders=state.folders)


def _missing(found: Found) -> list[str]:
    """Folders that will be made for a file, the innermost first; the parent's parents are known by their real path."""
    missing = []
    folder = found.real.parent
    while not folder.exists():
        missing.append(str(folder))
        folder = folder.parent
    return missing


def _put_back(process: Process, changed: list[Found], memory: Memory, remembered: State | None) -> None:
    """Let files and memory be as they were. Where that fails too, what is remembered lets the next start do it."""
    try:
        for each in changed:
            files.write(process, each, each.text)
        if remembered is not None:
            memory.save(remembered)
        else:
            _remove_folders(process, memory.state)
            memory.forget()
    except RuntimeConfigError as error:
        process.log.error(f"nor could all be put back as it was: {error}")


def _remove_folders(process: Process, state: State | None) -> None:
    """Remove the folders that were made, if nobody has put anything into them; one that stays harms nobody."""
    for folder in state.folders if state is not None else ():
        files.remove_empty(folder)
