"""The part of Kubernetes' JSONPath that printer columns use: fields, quoted keys, indexes, `[*]` and filters
`[?(@.a=="b")]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

Find = Callable[[Any], list[Any]]
Step = Callable[[Any], Iterable[Any]]
_STEP = re.compile(
    r"\.(?P<field>(?:[^.\[\\]|\\.)+)|\[\?\(@\.(?P<left>[\w.\-]+)\s*(?P<op>==|!=)\s*(?P<quote>[\"'])(?P<right>.*?)(?P=quote)\)\]"
    r"|\[(?P<q>[\"'])(?P<key>.*?)(?P=q)\]|\[(?P<index>-?\d+)\]|\[(?P<all>\*)\]"
)


def compile_path(text: str) -> Find:
    """Return the function that finds a path's values; ValueError for what is not understood."""
    text = text.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    text = text if text.startswith((".", "[")) else f".{text}"
    steps: list[Step] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise ValueError(f"JSONPath {text!r} is not understood from {text[position:]!r} on")
        steps.append(_step(match))
        position = match.end()

    def find(value: Any) -> list[Any]:
        found = [value]
        for step in steps:
            found = [item for held in found for item in step(held)]
        return [item for item in found if item is not None]

    return find


def _step(match: re.Match[str]) -> Step:
    if match["all"] or match["field"] == "*":
        return lambda value: value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    if match["index"]:
        return _index(int(match["index"]))
    if match["left"]:
        return _filter(match["left"].split("."), match["op"] == "==", match["right"])
    key = match["key"] if match["key"] is not None else re.sub(r"\\(.)", r"\1", match["field"])
    return lambda value: (value[key],) if isinstance(value, dict) and key in value else ()


def _index(index: int) -> Step:
    return lambda value: value[index : index + 1 or None] if isinstance(value, list) else ()


def _filter(keys: list[str], equal: bool, wanted: str) -> Step:
    def step(value: Any) -> Iterable[Any]:
        for item in value if isinstance(value, list) else ():
            held = item
            for key in keys:
                held = held.get(key) if isinstance(held, dict) else None
            if (str(held) == wanted) is equal:
                yield item

    return step
