"""Runs shell scripts: walks the tree of `parser` inside a container's context.

External commands are the container's programs, found as the container runtime would find them, so that a script of an
operand (a wait loop, a probe, an entry point) runs as written. A stage of a pipeline ends before the next begins.
"""

import asyncio
import fnmatch
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from ..programs import CommandNotFoundError, ContainerContext, Output, Stdin
from . import parser

NOT_FOUND = 127
SYNTAX = 2


class _Break(Exception):  # noqa: N818
    def __init__(self, levels: int, *, again: bool) -> None:
        self.levels = levels
        self.again = again


class _Return(Exception):  # noqa: N818
    def __init__(self, code: int) -> None:
        self.code = code


class _Exit(Exception):  # noqa: N818
    def __init__(self, code: int) -> None:
        self.code = code


async def main(ctx: ContainerContext) -> int:
    """The program `sh`: `sh [-ceux] SCRIPT [ARGS]`, `sh -c TEXT [NAME ARGS]`, or a script run by its own name."""
    words = list(ctx.argv)
    if words[0].rsplit("/", 1)[-1] in ("sh", "bash", "ash", "dash"):
        words.pop(0)
    options = ""
    while words and words[0].startswith("-") and len(words[0]) > 1:
        option = words.pop(0)
        if option == "-o":
            words.pop(0)
        options += option[1:]
    if "c" in options:
        text, name, arguments = (words[0] if words else ""), (words[1] if len(words) > 1 else "sh"), words[2:]
    elif words:
        path = ctx.path(words[0])
        if not path.is_file():
            ctx.error(f"sh: 0: cannot open {words[0]}: No such file")
            return NOT_FOUND
        text, name, arguments = path.read_text(encoding="utf-8"), words[0], words[1:]
    else:
        text, name, arguments = (await ctx.stdin.rest()).decode(), "sh", []
    shell = Shell(ctx, name, arguments)
    shell.options.update(char for char in options if char in "eux")
    return await shell.run_text(text)


class Shell:
    """A shell's state: variables, functions, parameters; and its streams, through the context it runs in."""

    def __init__(self, ctx: ContainerContext, name: str, arguments: Sequence[str]) -> None:
        self.ctx = ctx
        self.name = name
        self.arguments = list(arguments)
        self.variables = dict(ctx.env)
        self.exported = set(ctx.env)
        self.functions: dict[str, parser.Command] = {}
        self.options: set[str] = set()
        self.folder = self.variables.get("PWD", "/")
        self.traps: dict[str, str] = {}
        self.status = 0
        self.quiet = 0
        self.jobs: list[asyncio.Task[int]] = []

    async def run_text(self, text: str) -> int:
        """Run a whole script; the exit code."""
        try:
            script = parser.parse(text)
        except parser.ShellSyntaxError as error:
            self.ctx.error(f"{self.name}: {error}")
            return SYNTAX
        try:
            await self.script(script)
        except (_Exit, _Return) as end:
            self.status = end.code
        except _Break:
            self.status = 0
        finally:
            for job in self.jobs:
                job.cancel()
        if "EXIT" in self.traps:
            await self.run_trap("EXIT")
        return self.status

    # --- control flow -------------------------------------------------------------------------------------------------

    async def script(self, script: parser.Script) -> None:
        """Run pipelines in order, honouring `&&`, `||`, traps and `set -e`."""
        for index, (joint, pipeline) in enumerate(script.steps):
            if (joint == "&&" and self.status != 0) or (joint == "||" and self.status == 0):
                continue
            if pipeline.background:
                work = self.subshell(parser.Script([(";", parser.Pipeline(pipeline.commands, pipeline.negated))]))
                self.jobs.append(asyncio.create_task(work))
                self.status = 0
                continue
            following = script.steps[index + 1][0] if index + 1 < len(script.steps) else ";"
            tested = following != ";" or pipeline.negated
            self.quiet += tested
            try:
                await self.pipeline(pipeline)
            finally:
                self.quiet -= tested
            if self.ctx.stopping.is_set() and "TERM" in self.traps:
                await self.run_trap("TERM")
            if self.status and "e" in self.options and not (self.quiet or tested):
                raise _Exit(self.status)

    async def run_trap(self, signal: str) -> None:
        """Run a trap once."""
        text, before = self.traps.pop(signal), self.status
        await self.script(parser.parse(text))
        self.status = before

    async def pipeline(self, pipeline: parser.Pipeline) -> None:
        """Run the stages one after the other, each with the output of the one before as input."""
        data = b""
        for number, command in enumerate(pipeline.commands):
            last = number == len(pipeline.commands) - 1
            collected = bytearray()
            stdin = self.ctx.stdin if number == 0 else Stdin(data)
            out = self.ctx.out if last else collected.extend
            await self.with_streams(stdin, out, self.ctx.err, lambda command=command: self.command(command))  # type: ignore[misc]
            data = bytes(collected)
        if pipeline.negated:
            self.status = int(self.status == 0)

    async def with_streams(self, stdin: Stdin, out: Output, err: Output, work: Callable[[], Awaitable[None]]) -> None:
        """Run a part of the script with other streams."""
        before = self.ctx
        self.ctx = before.child(before.argv, stdin=stdin, out=out, err=err)
        try:
            await work()
        finally:
            self.ctx = before

    async def command(self, command: parser.Command) -> None:
        """Run one command with its redirections."""
        if not command.redirects:
            await _RUN[type(command)](self, command)
            return
        streams = await self.redirect(command.redirects)
        if streams is None:
            self.status = 1
            return
        stdin, out, err = streams
        await self.with_streams(stdin, out, err, lambda: _RUN[type(command)](self, command))

    async def redirect(self, redirects: Sequence[parser.Redirect]) -> tuple[Stdin, Output, Output] | None:
        """The streams after redirections, left to right; None, with a message, when a file cannot be opened."""
        stdin, outputs = self.ctx.stdin, {1: self.ctx.out, 2: self.ctx.err}
        for redirect in redirects:
            target = await self.text(redirect.target)
            if redirect.op == "<<":
                stdin = Stdin(target.encode())
            elif redirect.op == ">&":
                outputs[redirect.fd] = outputs.get(int(target) if target.isdecimal() else 1, self.ctx.out)
            else:
                path = self.ctx.path(self.absolute(target))
                try:
                    if redirect.op == "<":
                        stdin = Stdin(path.read_bytes())
                    else:
                        outputs[redirect.fd] = _writer(target, path, append=redirect.op == ">>")
                except OSError as error:
                    self.ctx.error(f"{self.name}: cannot open {target}: {error.strerror}")
                    return None
        return stdin, outputs[1], outputs[2]

    async def condition(self, script: parser.Script) -> bool:
        """Run a condition; `set -e` does not apply to it."""
        self.quiet += 1
        try:
            await self.script(script)
        finally:
            self.quiet -= 1
        return self.status == 0

    async def run_if(self, command: parser.If) -> None:
        """`if`."""
        for condition, body in command.branches:
            if condition is None or await self.condition(condition):
                self.status = 0
                await self.script(body)
                return
        self.status = 0

    async def run_loop(self, command: parser.Loop) -> None:
        """`while` and `until`; gives way to other tasks once a round."""
        while await self.condition(command.condition) != command.until:
            self.status = 0
            if await self.body(command.body):
                break
            await self.ctx.clock.sleep(0)
        else:
            self.status = 0

    async def run_for(self, command: parser.For) -> None:
        """`for`."""
        values = self.arguments if command.words is None else await self.fields(command.words)
        self.status = 0
        for value in values:
            self.variables[command.name] = value
            if await self.body(command.body):
                break

    async def body(self, script: parser.Script) -> bool:
        """One round of a loop; whether the loop ends."""
        try:
            await self.script(script)
        except _Break as signal:
            if signal.levels > 1:
                raise _Break(signal.levels - 1, again=signal.again) from signal
            return not signal.again
        return False

    async def run_case(self, command: parser.Case) -> None:
        """`case`."""
        word = await self.text(command.word)
        self.status = 0
        for patterns, body in command.branches:
            for pattern in patterns:
                if fnmatch.fnmatchcase(word, await self.text(pattern)):
                    await self.script(body)
                    return

    async def run_function(self, command: parser.Function) -> None:
        """A function's definition."""
        self.functions[command.name] = command.body
        self.status = 0

    async def run_group(self, command: parser.Group) -> None:
        """`{ }` and `( )`; a subshell's changes to variables and its exit stay inside."""
        if not command.subshell:
            await self.script(command.body)
            return
        self.status = await self.subshell(command.body)

    async def subshell(self, script: parser.Script) -> int:
        """Run a script in a copy of this shell."""
        inner = Shell(self.ctx, self.name, self.arguments)
        inner.variables, inner.exported = dict(self.variables), set(self.exported)
        inner.functions, inner.folder, inner.options = dict(self.functions), self.folder, set(self.options)
        inner.status, inner.quiet = self.status, self.quiet
        try:
            await inner.script(script)
        except (_Exit, _Return) as end:
            return end.code
        return inner.status

    # --- simple commands ----------------------------------------------------------------------------------------------

    async def run_simple(self, command: parser.Simple) -> None:
        """Assignments, a builtin, a function or a program."""
        assigned = {name: await self.text(word) for name, word in command.assigns}
        words = await self.fields(command.words)
        if not words:
            self.variables.update(assigned)
            if not any(isinstance(part, parser.Substitution) for _, word in command.assigns for part in word):
                self.status = 0
            return
        if "x" in self.options:
            self.ctx.error("+ " + " ".join(words))
        name = words[0]
        if name in self.functions:
            await self.call(name, words[1:])
        elif name in _BUILTINS:
            before = {key: self.variables.get(key) for key in assigned} if name in _REGULAR else {}
            self.variables.update(assigned)
            self.status = await _BUILTINS[name](self, words[1:])
            for key, value in before.items():
                if value is None:
                    self.variables.pop(key, None)
                else:
                    self.variables[key] = value
        else:
            self.status = await self.external(words, assigned)

    async def call(self, name: str, arguments: list[str]) -> None:
        """Call a function."""
        before, self.arguments = self.arguments, arguments
        try:
            await self.command(self.functions[name])
        except _Return as end:
            self.status = end.code
        finally:
            self.arguments = before

    async def external(self, words: list[str], assigned: dict[str, str]) -> int:
        """Run a program of the container; 127 with a message if there is none."""
        env = {name: self.variables[name] for name in self.exported if name in self.variables}
        env |= assigned | {"PWD": self.folder}
        process = self.ctx.child(words, env=env)
        process.interruptible = "TERM" in self.traps
        try:
            return await process.run()
        except CommandNotFoundError:
            self.ctx.error(f"{self.name}: {words[0]}: not found")
            return NOT_FOUND

    # --- expansion ----------------------------------------------------------------------------------------------------

    def absolute(self, path: str) -> str:
        """A path as seen from the present folder."""
        return posixpath.join(self.folder, path)

    async def fields(self, words: Sequence[parser.Word]) -> list[str]:
        """Expand words into fields: variables, splitting at blanks, file name patterns."""
        result: list[str] = []
        for word in words:
            if len(word) == 1 and isinstance(word[0], parser.Variable) and word[0].name == "@":
                result.extend(self.arguments)
                continue
            for text, pattern in await self.split(word):
                result.extend(self.glob(pattern) or [text] if pattern else [text])
        return result

    async def split(self, word: parser.Word) -> list[tuple[str, str]]:
        """The fields of one word, each with its file name pattern (empty if it has none)."""
        fields: list[tuple[str, str]] = []
        text, pattern, started = "", "", False
        for part in word:
            value = await self.value(part)
            if part.quoted or isinstance(part, parser.Text):
                text, started = text + value, True
                pattern += glob_quote(value) if part.quoted else value
                continue
            pieces = value.split()
            if value[:1].isspace() and started:
                fields.append((text, pattern))
                text, pattern, started = "", "", False
            for number, piece in enumerate(pieces):
                if number:
                    fields.append((text, pattern))
                    text, pattern = "", ""
                text, pattern, started = text + piece, pattern + piece, True
            if pieces and value[-1:].isspace():
                fields.append((text, pattern))
                text, pattern, started = "", "", False
        if started:
            fields.append((text, pattern))
        return [(text, pattern if any(c in _unescaped(pattern) for c in "*?[") else "") for text, pattern in fields]

    def glob(self, pattern: str) -> list[str]:
        """Names of the container's files that match a pattern, sorted; none if nothing matches."""
        absolute = self.absolute(pattern)
        found = [""]
        for part in absolute.split("/")[1:]:
            if not any(char in part for char in "*?["):
                found = [f"{base}/{part}" for base in found if self.ctx.exists(f"{base}/{part}")]
                continue
            found = [
                f"{base}/{name}"
                for base in found
                for name in self.ctx.container.names_in(base or "/")
                if fnmatch.fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
            ]
        return found

    async def text(self, word: parser.Word) -> str:
        """A word as one text: no splitting, no file names."""
        return "".join([await self.value(part) for part in word])

    async def value(self, part: parser.Text | parser.Variable | parser.Substitution) -> str:
        """The text of one part of a word."""
        if isinstance(part, parser.Text):
            return part.value
        if isinstance(part, parser.Substitution):
            collected = bytearray()
            inner = Shell(self.ctx.child(self.ctx.argv, out=collected.extend), self.name, self.arguments)
            inner.variables, inner.exported = dict(self.variables), set(self.exported)
            inner.functions, inner.folder = dict(self.functions), self.folder
            self.status = await inner.subshell(part.script)
            return collected.decode(errors="replace").rstrip("\n")
        return await self.variable(part)

    async def variable(self, part: parser.Variable) -> str:
        """A variable's value after its operator."""
        value = self.lookup(part.name)
        if not part.op:
            if value is None and "u" in self.options:
                self.ctx.error(f"{self.name}: {part.name}: parameter not set")
                raise _Exit(SYNTAX)
            return value or ""
        word = await self.text(part.word)
        empty = value is None or (part.op.startswith(":") and not value)
        kind = part.op.lstrip(":")
        if kind == "+":
            return "" if empty else word
        if kind in "-=":
            if empty and kind == "=":
                self.variables[part.name] = word
            return word if empty else value or ""
        return _trim(value or "", word, kind)

    def lookup(self, name: str) -> str | None:
        """A variable or parameter, or None if it is not set."""
        if name.isdecimal():
            index = int(name)
            return self.name if index == 0 else next(iter(self.arguments[index - 1 : index]), None)
        special = {"?": str(self.status), "#": str(len(self.arguments)), "$": "1", "!": str(len(self.jobs))}
        if name in ("@", "*"):
            return " ".join(self.arguments)
        return special.get(name, self.variables.get(name))


def glob_quote(text: str) -> str:
    """Make pattern characters literal."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)


def _unescaped(pattern: str) -> str:
    return pattern.replace("[*]", "").replace("[?]", "").replace("[[]", "")


def _trim(value: str, pattern: str, op: str) -> str:
    """`${v%p}` and its kin: remove the shortest or longest matching end or start."""
    cuts = range(len(value) + 1)
    if op[0] == "%":
        order = reversed(cuts) if len(op) == 1 else cuts
        return next((value[:cut] for cut in order if fnmatch.fnmatchcase(value[cut:], pattern)), value)
    order = cuts if len(op) == 1 else reversed(cuts)
    return next((value[cut:] for cut in order if fnmatch.fnmatchcase(value[:cut], pattern)), value)


def _writer(name: str, path: Path, *, append: bool) -> Output:
    if name == "/dev/null":
        return lambda _data: None
    if not append:
        path.write_bytes(b"")

    def write(data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)

    return write


_RUN: dict[type[parser.Command], Callable[..., Awaitable[None]]] = {
    parser.Simple: Shell.run_simple,
    parser.If: Shell.run_if,
    parser.Loop: Shell.run_loop,
    parser.For: Shell.run_for,
    parser.Case: Shell.run_case,
    parser.Function: Shell.run_function,
    parser.Group: Shell.run_group,
}

Builtin = Callable[[Shell, list[str]], Awaitable[int]]


async def _exit(shell: Shell, arguments: list[str]) -> int:
    raise _Exit(int(arguments[0]) if arguments else shell.status)


async def _return(shell: Shell, arguments: list[str]) -> int:
    raise _Return(int(arguments[0]) if arguments else shell.status)


async def _break(_shell: Shell, arguments: list[str]) -> int:
    raise _Break(int(arguments[0]) if arguments else 1, again=False)


async def _continue(_shell: Shell, arguments: list[str]) -> int:
    raise _Break(int(arguments[0]) if arguments else 1, again=True)


async def _export(shell: Shell, arguments: list[str]) -> int:
    for argument in arguments:
        name, equals, value = argument.partition("=")
        shell.exported.add(name)
        if equals:
            shell.variables[name] = value
    return 0


async def _local(shell: Shell, arguments: list[str]) -> int:
    for argument in arguments:
        name, _, value = argument.partition("=")
        shell.variables[name] = value
    return 0


async def _unset(shell: Shell, arguments: list[str]) -> int:
    for name in arguments:
        shell.variables.pop(name, None)
        shell.exported.discard(name)
    return 0


async def _set(shell: Shell, arguments: list[str]) -> int:
    while arguments and arguments[0][:1] in ("-", "+") and arguments[0] != "--":
        option = arguments.pop(0)
        if option[1:] == "o" and arguments:
            name = arguments.pop(0)
            option = option[0] + {"errexit": "e", "nounset": "u", "xtrace": "x"}.get(name, "")
        change = shell.options.update if option[0] == "-" else shell.options.difference_update
        change(set(option[1:]))
        if "a" in shell.options:
            shell.exported.update(shell.variables)
    if arguments:
        shell.arguments = arguments[1:] if arguments[0] == "--" else arguments
    return 0


async def _source(shell: Shell, arguments: list[str]) -> int:
    path = shell.ctx.path(shell.absolute(arguments[0]))
    if not path.is_file():
        shell.ctx.error(f"{shell.name}: .: {arguments[0]}: not found")
        raise _Exit(SYNTAX)
    before = dict(shell.variables)
    try:
        await shell.script(parser.parse(path.read_text(encoding="utf-8")))
    except _Return as end:
        return end.code
    if "a" in shell.options:
        shell.exported.update(name for name in shell.variables if name not in before)
    return shell.status


async def _exec(shell: Shell, arguments: list[str]) -> int:
    raise _Exit(await shell.external(arguments, {})) if arguments else _Return(0)


async def _eval(shell: Shell, arguments: list[str]) -> int:
    await shell.script(parser.parse(" ".join(arguments)))
    return shell.status


async def _trap(shell: Shell, arguments: list[str]) -> int:
    text = arguments[0] if arguments else ""
    for signal in (name.removeprefix("SIG") for name in arguments[1:]):
        signal = {"15": "TERM", "2": "INT", "0": "EXIT"}.get(signal, signal)
        if text == "-":
            shell.traps.pop(signal, None)
        else:
            shell.traps[signal] = text
    return 0


async def _shift(shell: Shell, arguments: list[str]) -> int:
    del shell.arguments[: int(arguments[0]) if arguments else 1]
    return 0


async def _cd(shell: Shell, arguments: list[str]) -> int:
    folder = posixpath.normpath(shell.absolute(arguments[0] if arguments else shell.variables.get("HOME", "/")))
    if not shell.ctx.path(folder).is_dir():
        shell.ctx.error(f"{shell.name}: cd: can't cd to {folder}")
        return 2
    shell.folder = folder
    return 0


async def _pwd(shell: Shell, _arguments: list[str]) -> int:
    shell.ctx.log(shell.folder)
    return 0


async def _read(shell: Shell, arguments: list[str]) -> int:
    names = [name for name in arguments if not name.startswith("-")]
    line = await shell.ctx.stdin.line()
    text = line.decode().rstrip("\n")
    separators = shell.variables.get("IFS")
    values = [text] if separators == "" else [value.strip() for value in text.split(separators, max(0, len(names) - 1))]
    for number, name in enumerate(names):
        shell.variables[name] = values[number] if number < len(values) else ""
    return 0 if line else 1


async def _command(shell: Shell, arguments: list[str]) -> int:
    if arguments[:1] != ["-v"]:
        return await shell.external(arguments, {})
    name = arguments[1]
    if name in _BUILTINS or name in shell.functions:
        shell.ctx.log(name)
        return 0
    try:
        shell.ctx.container.registry.find(shell.ctx.container, (name,))
    except CommandNotFoundError:
        return 1
    shell.ctx.log(f"/usr/bin/{name}")
    return 0


async def _wait(shell: Shell, arguments: list[str]) -> int:
    """Wait for background jobs, all or those named; ends early when a signal comes that has a trap."""
    numbers = [int(word) for word in arguments if word.isdecimal()]
    jobs = [shell.jobs[number - 1] for number in numbers if number <= len(shell.jobs)] if arguments else shell.jobs
    waits: set[asyncio.Future[Any]] = set(jobs)
    signal = asyncio.ensure_future(shell.ctx.stopping.wait())
    try:
        if "TERM" in shell.traps:
            while any(not job.done() for job in jobs) and not signal.done():
                await asyncio.wait(waits | {signal}, return_when=asyncio.FIRST_COMPLETED)
            if signal.done():
                return 143
        elif waits:
            await asyncio.wait(waits)
    finally:
        signal.cancel()
    return jobs[-1].result() if jobs and numbers else 0


async def _nothing(_shell: Shell, _arguments: list[str]) -> int:
    return 0


_REGULAR = ("cd", "command", "pwd", "read", "wait")
"""Builtins for which an assignment in front lasts only for the command."""

_BUILTINS: dict[str, Builtin] = {
    ":": _nothing,
    ".": _source,
    "source": _source,
    "break": _break,
    "continue": _continue,
    "cd": _cd,
    "command": _command,
    "eval": _eval,
    "exec": _exec,
    "exit": _exit,
    "export": _export,
    "local": _local,
    "pwd": _pwd,
    "read": _read,
    "return": _return,
    "set": _set,
    "shift": _shift,
    "trap": _trap,
    "umask": _nothing,
    "unset": _unset,
    "wait": _wait,
}
