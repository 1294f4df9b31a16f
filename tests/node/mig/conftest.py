"""Simulated machines for tests of MIG."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from node.mig.migworld import Node


@pytest.fixture
def node(tmp_path: Path) -> Callable[..., Any]:
    """Makes a simulated machine."""

    def make(*gpus: Any, **more: Any) -> Node:
        return Node(tmp_path, gpus, **more)

    return make
