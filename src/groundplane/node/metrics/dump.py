"""Files of what was sampled, for who looks for a mistake (contracts/mig-exporter-validator.md 4, ``--dump-...``)."""

import datetime
import gzip
import json
import time
from pathlib import Path
from typing import Final

from ..hostroot import write_atomic

PREFIX: Final = "metrics-"


def write(folder: Path, state: dict[str, object], now: datetime.datetime, *, compressed: bool) -> Path:
    """Write a file named after the moment. OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(state, indent=1).encode()
    file = folder / f"{PREFIX}{now:%Y%m%dT%H%M%S.%fZ}.json{'.gz' if compressed else ''}"
    write_atomic(file, gzip.compress(text) if compressed else text, durable=False)
    return file


def clean(folder: Path, keep_h: int) -> int:
    """Delete files that are older than so many hours; how many. 0 hours keeps all. OSError."""
    if not keep_h:
        return 0
    oldest = time.time() - keep_h * 3600
    old = [file for file in folder.glob(f"{PREFIX}*.json*") if file.stat().st_mtime < oldest]
    for file in old:
        file.unlink(missing_ok=True)
    return len(old)
