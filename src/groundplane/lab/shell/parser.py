"""Shell syntax: from script text to a tree of commands.

A recursive-descent parser over the text itself, since what a character means depends on where it stands. It covers
lists, pipelines, `if`, `while`, `until`, `for`, `case`, functions, groups, redirections, here-documents, quoting and
the usual expansions. Running the tree is `interpreter`'s work.
"""

import re
from dataclasses import dataclass, field


class ShellSyntaxError(ValueError):
    """The script is not valid, or uses what the lab's shell does not know; the message says which line."""


@dataclass(frozen=True, slots=True)
class Text:
    """Literal characters; `quoted` ones are neither split nor matched against file names."""

    value: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """`$name` or `${name<op>word}`; `op` is one of `:-`, `-`, `:=`, `=`, `:+`, `+`, `%`, `%%`, `#`, `##` or empty."""

    name: str
    op: str = ""
    word: "Word" = ()
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Substitution:
    """`$(script)` or the same in backquotes."""

    script: "Script"
    quoted: bool = False


Word = tuple[Text | Variable | Substitution, ...]


@dataclass(frozen=True, slots=True)
class Redirect:
    """`fd` goes to or comes from `target`; `op` is `>`, `>>`, `<`, `>&` or `<<` (here-document)."""

    fd: int
    op: str
    target: Word


@dataclass(slots=True)
class Command:
    """Any command: what it does and its redirections."""

    redirects: list[Redirect] = field(default_factory=list, kw_only=True)


@dataclass(slots=True)
class Simple(Command):
    """Assignments, then words: the command's name and arguments."""

    assigns: list[tuple[str, Word]]
    words: list[Word]


@dataclass(slots=True)
class If(Command):
    """Branches of condition and body; the last may have an empty condition (else)."""

    branches: list[tuple["Script | None", "Script"]]


@dataclass(slots=True)
class Loop(Command):
    """`while` or, with `until`, its opposite."""

    condition: "Script"
    body: "Script"
    until: bool


@dataclass(slots=True)
class For(Command):
    """`for name in words`; no words means the positional parameters."""

    name: str
    words: list[Word] | None
    body: "Script"


@dataclass(slots=True)
class Case(Command):
    """`case word in` patterns and bodies."""

    word: Word
    branches: list[tuple[list[Word], "Script"]]


@dataclass(slots=True)
class Function(Command):
    """A function's definition."""

    name: str
    body: "Command"


@dataclass(slots=True)
class Group(Command):
    """`{ }` or, with `subshell`, `( )`."""

    body: "Script"
    subshell: bool


@dataclass(slots=True)
class Pipeline:
    """Commands joined by `|`, negated with `!`."""

    commands: list[Command]
    negated: bool
    background: bool = False


@dataclass(slots=True)
class Script:
    """Pipelines in order, each with the operator that joins it to the one before: `;`, `&&` or `||`."""

    steps: list[tuple[str, Pipeline]]


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_FUNCTION = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)[ \t]*\([ \t]*\)")
_REDIRECT = re.compile(r"(\d?)(>>|>&|<<-|<<|&>|>|<)")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!]")
_PARAMETER_OP = re.compile(r":-|:=|:\+|%%|##|[-=+%#]")
_SPECIAL = frozenset(" \t\n;|&<>()")
_RESERVED = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}"))


def parse(text: str) -> Script:
    """Parse a script. ShellSyntaxError names the line."""
    parser = _Parser(text)
    script = parser.script(frozenset())
    parser.blanks(lines=True)
    if parser.at < len(text):
        raise parser.error(f"unexpected {text[parser.at]!r}")
    return script


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.documents: list[tuple[Redirect, str, bool, bool, list[Redirect]]] = []

    def error(self, what: str) -> ShellSyntaxError:
        line = self.text.count("\n", 0, self.at) + 1
        return ShellSyntaxError(
            f"line {line}: syntax error: {what} (the lab's shell knows the common part of POSIX sh)"
        )

    # --- characters ---------------------------------------------------------------------------------------------------

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def blanks(self, *, lines: bool = False) -> None:
        while self.at < len(self.text):
            char = self.peek()
            if self.peek(2) == "\\\n":
                self.at += 2
            elif char in " \t":
                self.at += 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char == "\n" and lines:
                self.newline()
            else:
                return

    def newline(self) -> None:
        self.at += 1
        for holder in self.documents:
            self.here_document(*holder)
        self.documents.clear()

    def word_ahead(self) -> str:
        """The plain word that comes next, without consuming it."""
        found = re.compile(r"[^\s;|&<>()\"'$`\\]+").match(self.text, self.at)
        return found[0] if found else ""

    def take(self, keyword: str) -> bool:
        self.blanks(lines=True)
        if self.word_ahead() != keyword:
            return False
        self.at += len(keyword)
        return True

    def expect(self, keyword: str) -> None:
        if not self.take(keyword):
            raise self.error(f"expected {keyword!r}")

    # --- lists --------------------------------------------------------------------------------------------------------

    def script(self, ends: frozenset[str]) -> Script:
        steps: list[tuple[str, Pipeline]] = []
        joint = ";"
        while True:
            self.blanks(lines=True)
            if self.at >= len(self.text) or self.word_ahead() in ends or self.peek() == ")" or self.peek(2) == ";;":
                break
            if self.word_ahead() in _RESERVED:
                raise self.error(f"unexpected {self.word_ahead()!r}")
            pipeline = self.pipeline()
            steps.append((joint, pipeline))
            joint = self.separator()
            if joint == "&":
                pipeline.background, joint = True, ";"
        if joint != ";":
            raise self.error(f"nothing follows {joint!r}")
        return Script(steps)

    def separator(self) -> str:
        self.blanks()
        if self.peek(2) in ("&&", "||"):
            self.at += 2
            return self.text[self.at - 2 : self.at]
        if self.peek() == "&":
            self.at += 1
            return "&"
        if self.peek() == ";" and self.peek(2) != ";;":
            self.at += 1
        elif self.peek() == "\n":
            self.newline()
        return ";"

    def pipeline(self) -> Pipeline:
        negated = False
        while self.word_ahead() == "!":
            self.at += 1
            self.blanks()
            negated = not negated
        commands = [self.command()]
        self.blanks()
        while self.peek() == "|" and self.peek(2) != "||":
            self.at += 1
            self.blanks(lines=True)
            commands.append(self.command())
            self.blanks()
        return Pipeline(commands, negated)

    # --- commands -----------------------------------------------------------------------------------------------------

    def command(self) -> Command:
        found = _FUNCTION.match(self.text, self.at)
        if found and found[1] not in _RESERVED:
            self.at = found.end()
            self.blanks(lines=True)
            return Function(found[1], self.command())
        if self.peek() == "(":
            self.at += 1
            body = self.script(frozenset())
            if self.peek() != ")":
                raise self.error("expected ')'")
            self.at += 1
            return self.redirected(Group(body, subshell=True))
        compound = {
            "if": self.if_command,
            "while": self.loop,
            "until": self.loop,
            "for": self.for_command,
            "case": self.case,
            "{": self.group,
        }.get(self.word_ahead())
        return self.redirected(compound()) if compound else self.simple()

    def redirected(self, command: Command) -> Command:
        self.blanks()
        while self.redirect(command.redirects):
            self.blanks()
        return command

    def group(self) -> Command:
        self.expect("{")
        body = self.script(frozenset(("}",)))
        self.expect("}")
        return Group(body, subshell=False)

    def if_command(self) -> Command:
        self.expect("if")
        branches: list[tuple[Script | None, Script]] = []
        while True:
            condition = self.script(frozenset(("then",)))
            self.expect("then")
            branches.append((condition, self.script(frozenset(("elif", "else", "fi")))))
            if not self.take("elif"):
                break
        if self.take("else"):
            branches.append((None, self.script(frozenset(("fi",)))))
        self.expect("fi")
        return If(branches)

    def loop(self) -> Command:
        until = self.take("until")
        if not until:
            self.expect("while")
        condition = self.script(frozenset(("do",)))
        return Loop(condition, self.do_group(), until)

    def do_group(self) -> Script:
        self.expect("do")
        body = self.script(frozenset(("done",)))
        self.expect("done")
        return body

    def for_command(self) -> Command:
        self.expect("for")
        self.blanks()
        found = _NAME.match(self.text, self.at)
        if not found:
            raise self.error("expected a name after 'for'")
        self.at = found.end()
        words: list[Word] | None = None
        if self.take("in"):
            words = []
            self.blanks()
            while self.peek() not in (";", "\n", ""):
                words.append(self.word())
                self.blanks()
        self.separator()
        return For(found[0], words, self.do_group())

    def case(self) -> Command:
        self.expect("case")
        self.blanks()
        word = self.word()
        self.expect("in")
        branches: list[tuple[list[Word], Script]] = []
        while not self.take("esac"):
            if self.peek() == "(":
                self.at += 1
            patterns = [self.word()]
            self.blanks()
            while self.peek() == "|":
                self.at += 1
                self.blanks()
                patterns.append(self.word())
                self.blanks()
            if self.peek() != ")":
                raise self.error("expected ')' after a pattern")
            self.at += 1
            branches.append((patterns, self.script(frozenset(("esac",)))))
            if self.peek(2) == ";;":
                self.at += 2
        return Case(word, branches)

    def simple(self) -> Command:
        command = Simple([], [])
        while True:
            self.blanks()
            if self.redirect(command.redirects):
                continue
            if self.at >= len(self.text) or self.peek() in _SPECIAL:
                break
            found = _ASSIGN.match(self.text, self.at) if not command.words else None
            if found:
                self.at = found.end()
                empty = self.at >= len(self.text) or self.peek() in _SPECIAL
                command.assigns.append((found[1], () if empty else self.word()))
            else:
                command.words.append(self.word())
        if not (command.words or command.assigns or command.redirects):
            raise self.error(f"unexpected {self.peek()!r}" if self.peek() else "unexpected end")
        return command

    def redirect(self, into: list[Redirect]) -> bool:
        found = _REDIRECT.match(self.text, self.at)
        if not found:
            return False
        self.at = found.end()
        op = found[2]
        self.blanks()
        default = 0 if op[0] == "<" else 1
        fd = int(found[1]) if found[1] else default
        if op.startswith("<<"):
            self.start_document(fd, op, into)
        elif op == "&>":
            into.extend((Redirect(1, ">", self.word()), Redirect(2, ">&", (Text("1"),))))
        else:
            into.append(Redirect(fd, op, self.word()))
        return True

    def start_document(self, fd: int, op: str, into: list[Redirect]) -> None:
        word = self.word()
        quoted = any(isinstance(part, Text) and part.quoted for part in word)
        end = "".join(part.value for part in word if isinstance(part, Text))
        holder = Redirect(fd, "<<", ())
        into.append(holder)
        self.documents.append((holder, end, quoted, op == "<<-", into))

    def here_document(self, holder: Redirect, end: str, quoted: bool, tabs: bool, into: list[Redirect]) -> None:
        lines: list[str] = []
        while self.at < len(self.text):
            stop = self.text.find("\n", self.at)
            stop = len(self.text) if stop < 0 else stop
            line = self.text[self.at : stop]
            self.at = min(stop + 1, len(self.text))
            line = line.lstrip("\t") if tabs else line
            if line == end:
                break
            lines.append(line + "\n")
        body = "".join(lines)
        word: Word = (Text(body, quoted=True),) if quoted else _Parser(body).quoted_parts("")
        into[into.index(holder)] = Redirect(holder.fd, "<<", word)

    # --- words --------------------------------------------------------------------------------------------------------

    def word(self, stop: str = "") -> Word:
        parts: list[Text | Variable | Substitution] = []
        start = self.at
        while self.at < len(self.text):
            char = self.peek()
            if (char in _SPECIAL and not stop) or (stop and char == stop):
                break
            if char == "'":
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    raise self.error("a single quote is not closed")
                parts.append(Text(self.text[self.at + 1 : end], quoted=True))
                self.at = end + 1
            elif char == '"':
                self.at += 1
                parts.append(Text("", quoted=True))
                parts.extend(self.quoted_parts('"'))
                self.at += 1
            elif char == "\\":
                parts.append(Text(self.text[self.at + 1 : self.at + 2], quoted=True))
                self.at += 2
            elif char in "$`":
                parts.append(self.expansion(quoted=False))
            else:
                parts.append(Text(char))
                self.at += 1
        if self.at == start and not stop:
            raise self.error(f"unexpected {self.peek()!r}" if self.peek() else "unexpected end")
        return _joined(parts)

    def quoted_parts(self, end: str) -> Word:
        parts: list[Text | Variable | Substitution] = []
        while self.peek() != end:
            char = self.peek()
            if not char:
                raise self.error("a double quote is not closed")
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in '$`"\\\n':
                follower = self.text[self.at + 1 : self.at + 2]
                parts.append(Text("" if follower == "\n" else follower, quoted=True))
                self.at += 2
            elif char in "$`":
                parts.append(self.expansion(quoted=True))
            else:
                parts.append(Text(char, quoted=True))
                self.at += 1
        return _joined(parts)

    def expansion(self, *, quoted: bool) -> Text | Variable | Substitution:
        if self.peek() == "`":
            end = self.text.find("`", self.at + 1)
            if end < 0:
                raise self.error("a backquote is not closed")
            inner = self.text[self.at + 1 : end].replace("\\`", "`")
            self.at = end + 1
            return Substitution(parse(inner), quoted)
        if self.peek(3) == "$((":
            raise self.error("arithmetic `$(( ))` is not supported")
        if self.peek(2) == "$(":
            self.at += 2
            script = self.script(frozenset())
            if self.peek() != ")":
                raise self.error("expected ')' at the end of `$(`")
            self.at += 1
            return Substitution(script, quoted)
        if self.peek(2) == "${":
            return self.braced(quoted=quoted)
        found = _PARAMETER.match(self.text, self.at + 1)
        if not found:
            self.at += 1
            return Text("$", quoted)
        name = found[0] if found[0][0] not in "0123456789" else found[0][0]
        self.at += 1 + len(name)
        return Variable(name, quoted=quoted)

    def braced(self, *, quoted: bool) -> Variable:
        self.at += 2
        if self.peek() == "#" and self.text[self.at + 1 : self.at + 2] != "}":
            raise self.error("`${#name}` is not supported")
        found = _PARAMETER.match(self.text, self.at)
        if not found:
            raise self.error("expected a name after `${`")
        self.at = found.end()
        op = _PARAMETER_OP.match(self.text, self.at)
        word: Word = ()
        if op:
            self.at = op.end()
            word = self.word(stop="}")
        if self.peek() != "}":
            raise self.error("expected '}'")
        self.at += 1
        return Variable(found[0], op[0] if op else "", word, quoted)


def _joined(parts: list[Text | Variable | Substitution]) -> Word:
    """Merge neighbouring literals of the same kind."""
    merged: list[Text | Variable | Substitution] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, Text) and isinstance(last, Text) and part.quoted == last.quoted:
            merged[-1] = Text(last.value + part.value, part.quoted)
        else:
            merged.append(part)
    return tuple(merged)
