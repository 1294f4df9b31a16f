"""Writes the golden files anew: ``python tests/operands/regen_golden.py``. Read the difference before you commit it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from operands import golden, rendering

if __name__ == "__main__":
    golden.GOLDEN.mkdir(exist_ok=True)
    for stale in {each.stem for each in golden.GOLDEN.glob("*.yaml")} - set(rendering.FILES):
        golden.path(stale).unlink()
    for name in rendering.FILES:
        golden.write(name)
        print(golden.path(name))
