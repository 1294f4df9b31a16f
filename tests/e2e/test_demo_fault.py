"""The demo's fault: the doctor has to name its cause and then to find nothing, or the demo does not end well."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from impatience import Impatient

from groundplane.cluster.client import Client
from groundplane.lab import demo, demo_fault
from groundplane.lab.cluster import Lab
from groundplane.lab.demo_fault import CHOICES, Chosen, FaultTurn, Turn
from groundplane.lab.demo_steps import StepError
from groundplane.lab.faultbook import FAULTS, trial
from groundplane.lab.faultbook.model import Where
from groundplane.lab.nodes import GpuSpec, NodeSpec, OsSpec

PATIENCE_S = 120.0
HEADERS, RED_HAT, IMAGE = CHOICES
UBUNTU = NodeSpec("ubuntu", (GpuSpec("T4"),))
RHEL = NodeSpec("rhel", (GpuSpec("T4"),), os=OsSpec("rhel", "9.6"), kernel="5.14.0-570.12.1.el9_6.x86_64")
OWN = NodeSpec("own", (GpuSpec("T4"),), host_driver="595.91.07")


def ignore(_snapshot: demo.Snapshot) -> None:
    """Draw nothing."""


async def nothing(_where: Where) -> None:
    """Change nothing."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[tuple[Lab, Client]]:
    async with trial.trial([UBUNTU, RHEL, OWN], speed=60.0) as tried:
        yield tried.lab, tried.client


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def turn(cluster: tuple[Lab, Client], chosen: Chosen, at: str = "", when: str = "") -> FaultTurn:
    """The step; given up at a step of its own once that is seen."""
    lab, client = cluster
    watcher = Impatient(lab, ignore, PATIENCE_S)
    watcher.at, watcher.when = at, when
    return await Turn(lab, client, watcher, chosen).run()


@pytest.mark.parametrize(
    ("nodes", "chosen"),
    [
        ([UBUNTU, RHEL, OWN], Chosen("ubuntu", HEADERS)),
        ([RHEL, OWN], Chosen("rhel", RED_HAT)),
        ([OWN], Chosen("own", IMAGE)),
        ([], None),
    ],
)
async def test_the_most_instructive_fault_that_can_be_there_is_chosen(
    cluster: tuple[Lab, Client], nodes: list[NodeSpec], chosen: Chosen | None
) -> None:
    lab, _ = cluster
    assert demo_fault.choose({spec.name: lab.host(spec.name) for spec in nodes}) == chosen


@pytest.mark.parametrize(
    ("chosen", "cause"),
    [(Chosen("ubuntu", HEADERS), "S10"), (Chosen("rhel", RED_HAT), "S11"), (Chosen("own", IMAGE), "P04")],
)
async def test_each_is_found_and_mended(cluster: tuple[Lab, Client], chosen: Chosen, cause: str) -> None:
    found = await turn(cluster, chosen)
    assert (found.node, found.fault, found.cause) == (chosen.node, chosen.choice.fault, cause)
    assert any(line.endswith(f"[{cause}]") for line in found.told)
    assert found.healed == "Nothing fails: 3 GPU nodes, 0 not well"


@pytest.mark.parametrize(
    ("changed", "at", "seen"),
    [
        ({"apply": nothing}, "own breaks", "groundplane doctor says: nothing fails"),
        ({"causes": ("S99",)}, "own breaks", "plugin's image cannot be pulled [P04] on own"),
        ({"clear": nothing}, "own is mended", "pods of a layer are not healthy yet"),
    ],
    ids=["never named", "named as another", "never mended"],
)
async def test_what_does_not_come_about_is_told(
    cluster: tuple[Lab, Client],
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, Any],
    at: str,
    seen: str,
) -> None:
    mend: Callable[[Where], Any] = FAULTS[IMAGE.fault].clear
    monkeypatch.setitem(FAULTS, IMAGE.fault, FAULTS[IMAGE.fault]._replace(**changed))  # type: ignore[arg-type]
    lab, client = cluster
    with pytest.raises(StepError) as raised:
        await turn(cluster, Chosen("own", IMAGE), at, seen)
    await mend(Where(client, "own", lab.host("own")))
    first, told, advice = str(raised.value).splitlines()
    assert first.startswith(f"gave up after 0 s: {at}: ")
    assert seen in told
    assert "groundplane lab fault apply plugin-image-gone" in advice


async def test_an_api_that_fails_is_told(cluster: tuple[Lab, Client], monkeypatch: pytest.MonkeyPatch) -> None:
    lab, _ = cluster
    async with lab.client() as gone:
        await gone.close()
        with pytest.raises(StepError, match=r"seen: the cluster could not be examined: "):
            await turn((lab, gone), Chosen("own", IMAGE), "finds nothing yet", "could not be examined")
