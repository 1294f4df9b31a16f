"""`groundplane lab fault list`, `apply` and `clear`: on a lab that runs as a process of its own."""

import re
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from groundplane.cli import lab
from groundplane.lab.faultbook import FAULTS


def run(*argv: str) -> tuple[int, str]:
    result = CliRunner().invoke(lab.command, argv)
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a lab with one node."""
    patch = pytest.MonkeyPatch()
    patch.setenv("GROUNDPLANE_HOME", str(tmp_path_factory.mktemp("home")))
    code, text = run("up", "--name", "book", "--nodes", "1", "--no-operator")
    assert code == 0, text
    yield "book"
    assert run("down", "--name", "book")[0] == 0
    patch.undo()


def test_every_fault_is_listed_in_its_layer() -> None:
    code, text = run("fault", "list")
    assert code == 0
    assert re.findall(r"^L\d", text, re.MULTILINE) == [f"L{number}" for number in range(10)]
    for name, fault in FAULTS.items():
        assert re.search(rf"^  {name} +{re.escape(fault.title)} ", text, re.MULTILINE)


def test_a_node_is_broken_from_another_process_and_repaired(running: str) -> None:
    folder = lab.machines(running) / "gpu-1"
    before = (folder / "dev/kmsg").read_text()
    code, text = run("fault", "apply", "double-bit-error", "--node", "gpu-1", "--name", running)
    assert code == 0, text
    assert "gpu-1: a GPU reports Xid 48" in text and "groundplane doctor --kubeconfig" in text
    assert "Xid" in (folder / "dev/kmsg").read_text().removeprefix(before)
    assert run("fault", "clear", "double-bit-error", "--name", running) == (0, "gpu-1: double-bit-error is cleared\n")
    assert "Xid" not in (folder / "dev/kmsg").read_text()


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("apply", "secure-boot", "--node", "gpu-2"), "there is no node 'gpu-2'; there are gpu-1"),
        (("apply", "fire"), "there is no fault 'fire'; there are "),
        (("apply", "rhel-metadata"), "rhel-metadata can be on GPU nodes of Red Hat's"),
        (("clear", "driver-module-gone", "--node", "gpu-1"), "can be on GPU nodes with a driver of their own only"),
    ],
)
def test_what_is_not_there_is_named(running: str, argv: tuple[str, ...], told: str) -> None:
    code, text = run("fault", *argv, "--name", running)
    assert code == 1 and told in text


def test_a_lab_that_does_not_run_is_named(running: str) -> None:
    code, text = run("fault", "apply", "secure-boot", "--name", "other")
    assert code == 1 and "no lab named 'other' is running" in text
