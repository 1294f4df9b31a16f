"""The memory limit of a program under test: a cgroup where one can be made, else the shell's."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.peer import limits

TAKE = "import sys; taken = b'x' * (int(sys.argv[1]) << 20); print(len(taken) >> 20)"


def run(mib: int, limit_mib: int) -> subprocess.CompletedProcess[str]:
    with limits.command([sys.executable, "-c", TAKE, str(mib)], limit_mib) as argv:
        done = subprocess.run(argv, capture_output=True, text=True)
    groups = [Path(word) for word in argv if "groundplane-bench-" in word]
    assert not any(group.exists() for group in groups)
    return done


@pytest.mark.parametrize("cgroups", [True, False], ids=["cgroup", "ulimit"])
def test_what_takes_more_than_its_limit_does_not_live(cgroups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not cgroups:
        monkeypatch.setattr(limits, "ROOTS", ())
    assert run(8, 128).stdout == "8\n"
    assert run(512, 128).returncode != 0
    assert run(512, 0).stdout == "512\n", "0 is no limit"
