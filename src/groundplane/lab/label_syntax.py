"""The text form of label selectors, read and refused as the API server does (`tier in (a,b),!x,y>3`).

A recursive descent over tokens; each complaint names the token that was found and those that were expected.
"""

from __future__ import annotations

import re

_SYMBOLS = {",": ",", "!": "!", "=": "=", "==": "==", "!=": "!=", ">": "gt", "<": "lt", "(": "(", ")": ")"}
_TOKEN = re.compile(r"\s*(==|!=|[,!=<>()]|[^\s,!=<>()]+)")
_OPERATORS = {"in": "In", "notin": "NotIn", "=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}
_EXPECTED = "in, notin, =, ==, !=, gt, lt"
Term = tuple[str, str, tuple[str, ...]]
"""A key, one of In, NotIn, Exists, DoesNotExist, Gt and Lt, and the values."""


class SelectorError(ValueError):
    """The text is no selector; the message is worded as the API server words it."""


def parse(text: str) -> list[Term]:
    """Return the terms of a selector."""
    return _Parser(text).terms()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._at = 0

    def _next(self) -> str:
        """The token to be read next; empty at the end."""
        return str(self._tokens[self._at]) if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._next()
        self._at += 1
        return token

    def terms(self) -> list[Term]:
        found: list[Term] = []
        while token := self._next():
            if token != "!" and not _is_name(token):
                raise SelectorError(f"found '{token}', expected: !, identifier, or 'end of string'")
            try:
                found.append(self._term())
            except SelectorError as error:
                raise SelectorError(f"unable to parse requirement: {error}") from error
            after = self._take()
            if not after:
                break
            if after != ",":
                raise SelectorError(f"found '{after}', expected: ',' or 'end of string'")
            token = self._next()
            if token != "!" and not _is_name(token):
                raise SelectorError(f"found '{token}', expected: identifier after ','")
        return found

    def _term(self) -> Term:
        token = self._take()
        absent = token == "!"
        key = self._take() if absent else token
        if not _is_name(key):
            raise SelectorError(f"found '{key}', expected: identifier")
        if absent:
            return key, "DoesNotExist", ()
        if self._next() in ("", ","):
            return key, "Exists", ()
        sign = self._take()
        if sign not in _OPERATORS:
            raise SelectorError(f"found '{sign}', expected: {_EXPECTED}")
        values = self._set() if sign in ("in", "notin") else (self._value(),)
        return key, _OPERATORS[sign], values

    def _value(self) -> str:
        if self._next() in ("", ","):
            return ""
        token = self._take()
        if not _is_name(token):
            raise SelectorError(f"found '{token}', expected: identifier")
        return token

    def _set(self) -> tuple[str, ...]:
        token = self._take()
        if token != "(":
            raise SelectorError(f"found '{token}' expected: '('")
        if self._next() == ")":
            self._take()
            return ("",)
        values: list[str] = []
        while True:
            values.append(self._take() if _is_name(self._next()) else "")
            token = self._take()
            if token == ")":
                return tuple(values)
            if token != ",":
                raise SelectorError(f"found '{token}', expected: ',' or ')'")


def _is_name(token: str) -> bool:
    return bool(token) and token not in _SYMBOLS
