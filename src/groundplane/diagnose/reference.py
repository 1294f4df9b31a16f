"""The page ``docs/how-to/troubleshoot.md``, made from the signatures: symptom, layer, cause, how to confirm, fix.

``python -m groundplane.diagnose.reference > docs/how-to/troubleshoot.md`` writes it; a test keeps it current.
"""

from collections.abc import Iterator

from . import layers, signatures
from .findings import Layer
from .signatures import Signature


def page() -> str:
    """The page as Markdown."""
    known = sorted(signatures.builtin(), key=lambda each: each.layer)
    lines = [
        "# Troubleshoot the GPU stack",
        "",
        "Made from the doctor's signatures by `python -m groundplane.diagnose.reference`; do not edit.",
        "",
        "Run `groundplane doctor`. It looks from the bottom up: the lowest layer that fails is the cause, the rest",
        "follows. `groundplane doctor --from FILE` reads text from a ticket, `--pod NAMESPACE/NAME` says why a pod has",
        "no GPU, `--watch` follows a cluster. A site's own signatures (`--signatures FILE`) have the form of",
        "`src/groundplane/diagnose/signatures.yaml`.",
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


if __name__ == "__main__":
    print(page(), end="")
