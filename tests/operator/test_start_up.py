"""What the operator's process needs before it can label nodes, and that nodes do not wait for the rest."""

import subprocess
import sys

LATER = ("lightkube", "httpx2", "prometheus_client", "aiohttp.web", "groundplane.operands.stack", "groundplane.lab")
"""Loaded when they are used: rendering by the first pass, the web server beside the first requests."""


def test_nothing_is_imported_that_labelling_does_not_need() -> None:
    code = "import sys, groundplane.operator.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert [name for name in LATER if name in loaded] == []
