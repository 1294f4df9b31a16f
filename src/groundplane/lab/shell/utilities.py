"""The small commands of a base image, as far as operands and people at `kubectl exec` use them.

Each is a program like any other: it gets its context and returns an exit code. An option that a command does not know
is an error with exit code 2, never ignored.
"""

import asyncio
import math
import posixpath
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from ...node.devices import kernelmessages
from ..programs import ContainerContext, Program

MISUSE = 2


class _Options:
    """Splits a command line into known one-letter options and operands."""

    def __init__(self, ctx: ContainerContext, known: str) -> None:
        self.flags: set[str] = set()
        self.rest: list[str] = []
        self.unknown = ""
        arguments = list(ctx.argv[1:])
        while arguments:
            argument = arguments.pop(0)
            if argument == "--":
                self.rest.extend(arguments)
                break
            if not argument.startswith("-") or argument == "-":
                self.rest.append(argument)
                continue
            self.flags.update(argument[1:])
        unknown = sorted(self.flags - set(known))
        if unknown:
            self.unknown = f"{ctx.argv[0]}: unrecognized option: {unknown[0]}"


def command(known: str) -> Callable[[Callable[[ContainerContext, _Options], int]], Program]:
    """Make a program of a function of its options; unknown ones end it with exit code 2."""

    def wrap(function: Callable[[ContainerContext, _Options], int]) -> Program:
        async def program(ctx: ContainerContext) -> int:
            options = _Options(ctx, known)
            if options.unknown:
                ctx.error(options.unknown)
                return MISUSE
            try:
                return function(ctx, options)
            except OSError as error:
                ctx.error(f"{ctx.argv[0]}: {error.strerror or error}")
                return 1

        return program

    return wrap


def _at(ctx: ContainerContext, path: str) -> str:
    return posixpath.join(ctx.env.get("PWD", "/"), path)


def _real(ctx: ContainerContext, path: str) -> Path:
    return ctx.path(_at(ctx, path))


@command("1aAl")
def _ls(ctx: ContainerContext, options: _Options) -> int:
    code = 0
    for path in options.rest or ["."]:
        real = _real(ctx, path)
        if not real.exists():
            ctx.error(f"ls: {path}: No such file or directory")
            code = 1
        elif real.is_dir():
            for name in ctx.container.names_in(posixpath.normpath(_at(ctx, path))):
                if options.flags & {"a", "A"} or not name.startswith("."):
                    ctx.log(name)
        else:
            ctx.log(path)
    return code


@command("rf")
def _rm(ctx: ContainerContext, options: _Options) -> int:
    code = 0
    for path in options.rest:
        real = _real(ctx, path)
        if real.is_dir() and not real.is_symlink():
            if "r" not in options.flags:
                ctx.error(f"rm: {path}: is a directory")
                code = 1
            else:
                shutil.rmtree(real)
        elif real.exists() or real.is_symlink():
            real.unlink()
        elif "f" not in options.flags:
            ctx.error(f"rm: {path}: No such file or directory")
            code = 1
    return code


@command("p")
def _mkdir(ctx: ContainerContext, options: _Options) -> int:
    for path in options.rest:
        _real(ctx, path).mkdir(parents="p" in options.flags, exist_ok="p" in options.flags)
    return 0


@command("c")
def _touch(ctx: ContainerContext, options: _Options) -> int:
    for path in options.rest:
        _real(ctx, path).touch()
    return 0


def _into(ctx: ContainerContext, source: str, target: str) -> Path:
    real = _real(ctx, target)
    return real / posixpath.basename(source.rstrip("/")) if real.is_dir() else real


@command("fT")
def _mv(ctx: ContainerContext, options: _Options) -> int:
    *sources, target = options.rest
    for source in sources:
        _real(ctx, source).replace(_into(ctx, source, target))
    return 0


@command("afrp")
def _cp(ctx: ContainerContext, options: _Options) -> int:
    *sources, target = options.rest
    for source in sources:
        real = _real(ctx, source)
        if real.is_dir():
            shutil.copytree(real, _into(ctx, source, target), dirs_exist_ok=True)
        else:
            shutil.copyfile(real, _into(ctx, source, target))
    return 0


@command("sfn")
def _ln(ctx: ContainerContext, options: _Options) -> int:
    target, name = options.rest
    link = _real(ctx, posixpath.dirname(name) or ".") / posixpath.basename(name)
    if "f" in options.flags:
        link.unlink(missing_ok=True)
    link.symlink_to(target)
    return 0


async def _cat(ctx: ContainerContext) -> int:
    code = 0
    for path in ctx.argv[1:] or ("-",):
        if path == "-":
            ctx.out(await ctx.stdin.rest())
            continue
        real = _real(ctx, path)
        if real.is_file():
            ctx.out(real.read_bytes())
        else:
            ctx.error(f"cat: {path}: {'Is a directory' if real.is_dir() else 'No such file or directory'}")
            code = 1
    return code


async def _echo(ctx: ContainerContext) -> int:
    words = list(ctx.argv[1:])
    end = "\n"
    while words and words[0] in ("-n", "-e", "-ne", "-en"):
        end = "" if "n" in words.pop(0) else end
    ctx.out((" ".join(words) + end).encode())
    return 0


async def _printf(ctx: ContainerContext) -> int:
    form, *values = ctx.argv[1:] or ("",)
    text = form.replace("\\n", "\n").replace("\\t", "\t").replace("%d", "%s").replace("%q", "%s")
    slots = text.count("%s")
    if not slots:
        ctx.out(text.replace("%%", "%").encode())
        return 0
    values += [""] * (-len(values) % slots) if values else [""] * slots
    for start in range(0, len(values), slots):
        ctx.out((text % tuple(values[start : start + slots])).encode())
    return 0


async def _env(ctx: ContainerContext) -> int:
    words = list(ctx.argv[1:])
    env = dict(ctx.env)
    while words and "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    if words:
        return await ctx.child(words, env=env).run()
    for name, value in env.items():
        ctx.log(f"{name}={value}")
    return 0


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


async def _sleep(ctx: ContainerContext) -> int:
    """Sleep in cluster time. As process 1 or its child it does not notice SIGTERM, except below a shell with a trap."""
    total = 0.0
    for word in ctx.argv[1:]:
        if word in ("infinity", "inf"):
            total = float("inf")
            continue
        try:
            total += float(word[:-1]) * _UNITS[word[-1]] if word[-1] in _UNITS else float(word)
        except ValueError:
            ctx.error(f"sleep: invalid time interval '{word}'")
            return 1
    if ctx.interruptible:
        return 143 if await ctx.stopped(None if math.isinf(total) else total) else 0
    if math.isinf(total):
        await asyncio.get_running_loop().create_future()
    await ctx.clock.sleep(total)
    return 0


async def _hostname(ctx: ContainerContext) -> int:
    ctx.log(ctx.pod["spec"].get("hostname") or ctx.pod["metadata"]["name"])
    return 0


async def _uname(ctx: ContainerContext) -> int:
    fields = {
        "s": "Linux",
        "n": str(ctx.pod["metadata"]["name"]),
        "r": ctx.host.kernel,
        "m": {"amd64": "x86_64", "arm64": "aarch64"}[ctx.host.spec.arch],
    }
    wanted = "".join(ctx.argv[1:]).replace("-", "") or "s"
    wanted = "snrm" if "a" in wanted else wanted
    ctx.log(" ".join(text for key, text in fields.items() if key in wanted))
    return 0


async def _lsmod(ctx: ContainerContext) -> int:
    ctx.log("Module                  Size  Used by")
    for line in ctx.host.root.read_text("/proc/modules").splitlines():
        name, size, count, users = line.split()[:4]
        ctx.log(f"{name:<23} {size}  {count} {users.strip(',-')}".rstrip())
    return 0


async def _dmesg(ctx: ContainerContext) -> int:
    """The kernel's log, for containers that see the machine's devices."""
    if not ctx.exists(kernelmessages.PATH):
        ctx.error("dmesg: read kernel buffer failed: Operation not permitted")
        return 1
    for line in kernelmessages.texts(ctx.path(kernelmessages.PATH)):
        ctx.log(line)
    return 0


async def _grep(ctx: ContainerContext) -> int:
    flags = {char for word in ctx.argv[1:] if word.startswith("-") for char in word[1:]}
    unknown = flags - set("qEivcsFw")
    if unknown:
        ctx.error(f"grep: unrecognized option: {sorted(unknown)[0]}")
        return MISUSE
    pattern, *paths = [word for word in ctx.argv[1:] if not word.startswith("-")]
    pattern = re.escape(pattern) if "F" in flags else pattern
    pattern = rf"\b(?:{pattern})\b" if "w" in flags else pattern
    compiled = re.compile(pattern, re.IGNORECASE if "i" in flags else 0)
    missing = [path for path in paths if not _real(ctx, path).is_file()]
    for path in missing:
        if "s" not in flags:
            ctx.error(f"grep: {path}: No such file or directory")
    texts = [_real(ctx, path).read_text() for path in paths if path not in missing]
    text = "".join(texts) if paths else (await ctx.stdin.rest()).decode()
    lines = [line for line in text.splitlines() if bool(compiled.search(line)) != ("v" in flags)]
    if "c" in flags:
        ctx.log(str(len(lines)))
    elif "q" not in flags:
        for line in lines:
            ctx.log(line)
    return MISUSE if missing else int(not lines)


async def _head(ctx: ContainerContext) -> int:
    words = list(ctx.argv[1:])
    count = 10
    while words and words[0].startswith("-"):
        option = words.pop(0)
        count = int(words.pop(0)) if option == "-n" else int(option.lstrip("-n"))
    text = _real(ctx, words[0]).read_text() if words else (await ctx.stdin.rest()).decode()
    lines = text.splitlines(keepends=True)
    ctx.out("".join(lines[:count] if ctx.argv[0].endswith("head") else lines[-count:]).encode())
    return 0


async def _date(ctx: ContainerContext) -> int:
    ctx.log(ctx.clock.now().strftime("%a %b %e %H:%M:%S UTC %Y"))
    return 0


async def _exit_0(_ctx: ContainerContext) -> int:
    return 0


async def _exit_1(_ctx: ContainerContext) -> int:
    return 1


# --- test ---------------------------------------------------------------------------------------------------------

_FILE_TESTS: dict[str, Callable[[Path], bool]] = {
    "-e": Path.exists,
    "-f": Path.is_file,
    "-d": Path.is_dir,
    "-L": Path.is_symlink,
    "-h": Path.is_symlink,
    "-S": Path.exists,
    "-c": Path.exists,
    "-r": Path.exists,
    "-w": Path.exists,
    "-x": lambda path: path.exists() and bool(path.stat().st_mode & 0o111),
    "-s": lambda path: path.exists() and path.stat().st_size > 0,
}
_NUMBER_TESTS: dict[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__,
    "-ne": int.__ne__,
    "-lt": int.__lt__,
    "-le": int.__le__,
    "-gt": int.__gt__,
    "-ge": int.__ge__,
}


async def _test(ctx: ContainerContext) -> int:
    words = list(ctx.argv[1:])
    if ctx.argv[0] in ("[", "[[") and (not words or words.pop() not in ("]", "]]")):
        ctx.error(f"{ctx.argv[0]}: missing ]")
        return MISUSE
    try:
        return int(not _either(ctx, words))
    except ValueError as error:
        ctx.error(f"{ctx.argv[0]}: {error}")
        return MISUSE


def _either(ctx: ContainerContext, words: list[str]) -> bool:
    for joint, rule in (("-o", any), ("||", any), ("-a", all), ("&&", all)):
        if joint in words:
            return rule(_either(ctx, part) for part in _split(words, joint))
    return _one(ctx, words)


def _split(words: list[str], joint: str) -> Iterator[list[str]]:
    part: list[str] = []
    for word in words:
        if word == joint:
            yield part
            part = []
        else:
            part.append(word)
    yield part


def _one(ctx: ContainerContext, words: list[str]) -> bool:
    match words:
        case []:
            return False
        case ["!", *rest]:
            return not _one(ctx, rest)
        case [text]:
            return bool(text)
        case ["-n", text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case [op, path] if op in _FILE_TESTS:
            return _FILE_TESTS[op](_real(ctx, path))
        case [left, "=" | "==", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case [left, op, right] if op in _NUMBER_TESTS:
            return _NUMBER_TESTS[op](int(left), int(right))
    raise ValueError(f"condition not understood: {' '.join(words)}")


async def _mount(ctx: ContainerContext) -> int:
    """A mount is its folder: the lab's files have no file systems of their own."""
    ctx.path(ctx.argv[-1]).mkdir(parents=True, exist_ok=True)
    return 0


PROGRAMS: dict[str, Program] = {
    "[": _test,
    "[[": _test,
    "cat": _cat,
    "cp": _cp,
    "date": _date,
    "dmesg": _dmesg,
    "echo": _echo,
    "env": _env,
    "false": _exit_1,
    "grep": _grep,
    "head": _head,
    "hostname": _hostname,
    "ln": _ln,
    "ls": _ls,
    "lsmod": _lsmod,
    "mkdir": _mkdir,
    "mount": _mount,
    "mv": _mv,
    "printenv": _env,
    "printf": _printf,
    "rm": _rm,
    "sleep": _sleep,
    "tail": _head,
    "test": _test,
    "touch": _touch,
    "true": _exit_0,
    "umount": _exit_0,
    "uname": _uname,
}
"""The commands every image of the lab has."""
