"""Pages that are made from what the doctor knows: how to troubleshoot, from the signatures, and its document's fields.

``python -m groundplane.diagnose.reference FOLDER`` writes them below a checkout's ``docs``; a test keeps them current.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from . import evidence, layers, signatures
from .findings import Layer
from .signatures import Signature


def page() -> str:
    """The page as Markdown."""
    known = sorted(signatures.builtin(), key=lambda each: each.layer)
    lines = [
        "# Troubleshoot the GPU stack",
        "",
        "Made from the doctor's signatures by `python -m groundplane.diagnose.reference docs`; do not edit.",
        "",
        "Run `groundplane doctor`. It looks from the bottom up: the lowest layer that fails is the cause, the rest",
        "follows. `groundplane doctor --from FILE` reads text from a ticket, `--pod NAMESPACE/NAME` says why a pod has",
        "no GPU, `--watch` follows a cluster. A site adds its own (`--signatures FILE`): see",
        "[Signatures of a site](../reference/signatures.md).",
    ]
    for layer in Layer:
        lines += ["", f"## {layer}: {layer.words}", "", f"Healthy means: {layers.CRITERIA[layer]}."]
        for each in known:
            if each.layer is layer:
                lines += ["", *_entry(each)]
    return "\n".join(lines) + "\n"


def _entry(signature: Signature) -> Iterator[str]:
    what = "symptom" if signature.symptom else signature.severity.value
    yield f"### {signature.id}: {signature.title}"
    yield ""
    yield f"- {what}; cause: {signature.cause}"
    yield f"- confirm: `` {signature.confirm} ``"
    yield "- fix: " + "; then ".join(signature.fix)


def document() -> str:
    """The page of the document that ``--evidence`` reads, as Markdown."""
    lines = [
        "# The doctor's evidence as a document",
        "",
        "Made by `python -m groundplane.diagnose.reference docs`; do not edit.",
        "",
        "`groundplane doctor --evidence FILE` (`-` for standard input) judges one YAML or JSON document, for tests and",
        "for tools that gather in their own way. All fields may be left out; what was not looked at is unknown, never",
        "taken for healthy. The verdict is the same as that of a cluster that shows the same.",
        "",
        "```yaml",
        _EXAMPLE.strip("\n"),
        "```",
    ]
    tables = (
        ("Fields", "field", evidence.FIELDS),
        ("Facts of `ctx` that are asked for", "fact", evidence.CONTEXT_FACTS),
        ("Facts of `node` that are asked for", "fact", evidence.NODE_FACTS),
    )
    for title, column, table in tables:
        lines += ["", f"## {title}", "", f"| {column} | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {_cell(meaning)} |" for name, meaning in table.items()]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_EXAMPLE: Final = """
pods:
  - {name: nvidia-driver-daemonset-x1, node: gpu-1, app: nvidia-driver-daemonset, status: CrashLoopBackOff, restarts: 7}
logs:
  nvidia-driver-daemonset-x1/nvidia-driver-ctr: |
    Could not resolve Linux kernel version
node: {name: gpu-1, nouveau: false, pci: ['10de:2330']}
labels: {gpu-1: {nvidia.com/gpu.present: 'true'}}
"""

PAGES: Final[Mapping[str, Callable[[], str]]] = {"how-to/troubleshoot.md": page, "reference/evidence.md": document}
"""The pages by their path below ``docs``."""


def write(docs: Path) -> None:
    """Write all pages below a folder. Raises OSError."""
    for name, made in PAGES.items():
        (docs / name).write_text(made(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
