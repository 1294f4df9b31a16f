"""What of a look is told as Events: when two looks agree, once, and its end; also by an operator that starts anew."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.api import names
from groundplane.operator.diagnosis import news
from groundplane.operator.diagnosis.news import CLUSTER, NODE_EVENTS_MOST, Memory, Note, Step
from groundplane.operator.diagnosis.picture import Ill, Picture

PULL = Ill("L2", "S15", "critical", "the driver's image cannot be pulled", "correct the tag", "list tags")
LOST = Ill("L0", "S25", "fatal", "a GPU has fallen off; it is gone", "reboot")
FEATURES = Ill("L9", "S55", "critical", "no node features")
WAITS = Ill("L5", "waiting", "warning", "the plugin is not ready, and nothing is known to fail")
NODES = [f"n{number}" for number in range(4)]


def look(before: Memory, picture: Picture, now: float = 0.0, present: list[str] | None = None, **more: Any) -> Step:
    there = present if present is not None else [*NODES, *picture.nodes, *picture.waiting]
    return news.step(before, picture, now, present=there, unseen=more.get("unseen", ()))


def looks(*pictures: Picture, before: Memory | None = None) -> tuple[Memory, list[Note]]:
    """Some looks in succession; the last memory, and all that was told."""
    memory = before or Memory()
    told: list[Note] = []
    for number, picture in enumerate(pictures):
        step = look(memory, picture, 10.0 * number)
        memory = step.memory
        told += step.notes
    return memory, told


def ill(**nodes: Ill) -> Picture:
    return Picture(nodes=nodes)


def said(notes: list[Note]) -> list[tuple[str, str]]:
    return [(note.node, note.reason) for note in notes]


WELL = Picture()
FAILING, MANY, RECOVERED = names.GPU_STACK_FAILING, names.GPU_STACK_FAILING_NODES, names.GPU_STACK_RECOVERED


def test_the_text_names_layer_cause_fix_and_command() -> None:
    _, (note,) = looks(ill(n1=PULL), ill(n1=PULL))
    assert note == Note(
        "n1",
        "Warning",
        FAILING,
        "L2 S15: the driver's image cannot be pulled; fix: correct the tag; confirm: list tags",
    )


@pytest.mark.parametrize(
    ("pictures", "told"),
    [
        ([ill(n1=PULL)], []),
        ([ill(n1=PULL), WELL, ill(n1=PULL)], []),
        ([ill(n1=PULL), ill(n1=LOST), ill(n1=LOST)], [("n1", FAILING)]),
        ([ill(n1=PULL)] * 5, [("n1", FAILING)]),
        ([ill(n1=PULL)] * 2 + [ill(n1=LOST)] * 3, [("n1", FAILING)] * 2),
        ([ill(n1=PULL)] * 2 + [WELL], [("n1", FAILING)]),
        ([ill(n1=PULL)] * 2 + [WELL, ill(n1=PULL), WELL], [("n1", FAILING)]),
        ([ill(n1=PULL)] * 2 + [WELL] * 3, [("n1", FAILING), ("n1", RECOVERED)]),
        ([ill(n1=PULL, n2=LOST)] * 2, [("n1", FAILING), ("n2", FAILING)]),
        ([Picture(cluster=(FEATURES,))] * 3 + [WELL] * 2, [("", FAILING), ("", RECOVERED)]),
        ([WELL] * 3, []),
    ],
)
def test_a_cause_is_told_when_two_looks_agree_and_so_is_its_end(
    pictures: list[Picture], told: list[tuple[str, str]]
) -> None:
    assert said(looks(*pictures)[1]) == told


def test_a_step_is_unsure_until_the_second_look() -> None:
    first = look(Memory(), ill(n1=PULL))
    assert first.unsure and first.sick == {"n1": PULL}
    assert not look(first.memory, ill(n1=PULL)).unsure


def test_of_a_node_that_is_gone_nothing_is_said() -> None:
    memory, _ = looks(ill(n1=PULL), ill(n1=PULL))
    for _ in range(2):
        step = look(memory, WELL, present=["n2"])
        assert step.notes == () and not step.unsure
        memory = step.memory
    assert memory.told == {}


def test_of_a_node_that_was_not_looked_at_what_was_said_stays() -> None:
    memory, _ = looks(ill(n1=PULL), ill(n1=PULL))
    for _ in range(3):
        step = look(memory, WELL, unseen={"n1"})
        assert step.notes == () and step.memory.told == memory.told
        memory = step.memory


def test_of_many_nodes_some_have_events_of_their_own_and_the_policy_has_one_about_the_rest() -> None:
    fleet = {f"gpu-{number:03d}": PULL for number in range(100)}
    memory, told = looks(ill(**fleet), ill(**fleet), ill(**fleet))
    assert said(told) == [(node, FAILING) for node in list(fleet)[:NODE_EVENTS_MOST]] + [("", MANY)]
    assert told[-1].message == (
        "L2 S15: the driver's image cannot be pulled; on 80 more nodes (gpu-020, gpu-021, gpu-022, gpu-023, gpu-024 "
        "and 75 more); fix: correct the tag; confirm: list tags"
    )
    _, over = looks(WELL, WELL, WELL, before=news.step(memory, WELL, 0.0, present=fleet, unseen=()).memory)
    assert over == [], "nodes that are gone"
    step = news.step(memory, WELL, 0.0, present=fleet, unseen=())
    step = news.step(step.memory, WELL, 10.0, present=fleet, unseen=())
    assert said(list(step.notes)) == [(node, RECOVERED) for node in list(fleet)[:NODE_EVENTS_MOST]] + [("", RECOVERED)]


def test_what_waits_is_sick_after_half_an_hour() -> None:
    picture = Picture(waiting={"n1": WAITS})
    first = look(Memory(), picture, 0.0)
    assert first.sick == {} and not first.unsure
    later = look(first.memory, picture, news.WAITING_S - 1)
    assert later.sick == {}
    late = look(later.memory, picture, news.WAITING_S)
    assert late.sick == {"n1": WAITS} and late.unsure
    assert look(look(late.memory, WELL, 1.0).memory, picture, news.WAITING_S).sick == {}


def test_an_event_is_renewed_before_it_is_forgotten() -> None:
    memory, told = looks(ill(n1=PULL), ill(n1=PULL))
    assert look(memory, ill(n1=PULL), news.RENEW_S).notes == ()
    again = look(memory, ill(n1=PULL), news.RENEW_S + 10.0)
    assert list(again.notes) == told, "the same words count as a repetition"
    assert look(again.memory, ill(n1=PULL), news.RENEW_S + 20.0).notes == ()
    assert look(memory, ill(n1=LOST), news.RENEW_S + 10.0).notes == (), "what may be over is not said again"


# --- An operator that starts anew -------------------------------------------------------------------------------------


class Journal:
    """Events as the API server keeps them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def write(self, notes: Mapping[int, Note] | list[Note] | tuple[Note, ...], at: int) -> None:
        for note in notes:
            assert isinstance(note, Note)
            kind = "Node" if note.node else "ClusterPolicy"
            stamp = f"2026-01-01T{at // 3600:02d}:{at // 60 % 60:02d}:{at % 60:02d}Z"
            self.events.append(
                {
                    "metadata": {"name": f"e{len(self.events)}", "resourceVersion": str(1000 + len(self.events))},
                    "involvedObject": {"kind": kind, "name": note.node or "cluster-policy"},
                    "reason": note.reason,
                    "message": note.message,
                    "lastTimestamp": stamp,
                }
            )


ILLS = st.sampled_from([PULL, LOST, None])
PICTURES = st.builds(
    lambda nodes, cluster: Picture(
        nodes={node: each for node, each in zip(NODES, nodes, strict=True) if each is not None},
        cluster=(FEATURES,) if cluster else (),
    ),
    st.tuples(*[ILLS] * len(NODES)),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(history=st.lists(PICTURES, min_size=1, max_size=8), rest=st.lists(PICTURES, max_size=6))
def test_an_operator_that_starts_anew_knows_what_was_said(history: list[Picture], rest: list[Picture]) -> None:
    """What a fresh process reads from the Events is what the old one knew; it tells what that would have told."""
    journal, memory = Journal(), Memory()
    for number, picture in enumerate(history):
        step = look(memory, picture, float(number))
        memory = step.memory
        journal.write(step.notes, number // 2)
    fresh = news.restored(reversed(journal.events))
    assert {subject: each.what for subject, each in fresh.told.items()} == {
        subject: each.what for subject, each in memory.told.items()
    }
    steady = [history[-1], *(picture for picture in rest for _ in range(2))]
    old, new = looks(history[-1], *steady, before=memory)[1], looks(history[-1], *steady, before=fresh)[1]
    assert sorted(map(repr, new)) == sorted(map(repr, old))


@settings(max_examples=60, deadline=None)
@given(history=st.lists(PICTURES, max_size=10))
def test_events_of_a_subject_alternate_and_end_as_the_cluster_is(history: list[Picture]) -> None:
    memory, told = looks(*history, *[history[-1]] * 2) if history else looks(WELL, WELL)
    last: dict[str, str] = {}
    for note in told:
        subject = note.node or CLUSTER
        if note.reason == RECOVERED:
            assert subject in last, "what was never told does not end"
            del last[subject]
        else:
            assert last.get(subject) != note.message, "nothing is told twice"
            last[subject] = note.message
    sick = history[-1].nodes if history else {}
    assert {node for node in last if node != CLUSTER} == set(sick)
    assert {subject: each.what for subject, each in memory.told.items() if subject in NODES} == {
        node: each.what for node, each in sick.items()
    }


def test_an_event_about_many_counts_for_the_others_at_the_first_look_only() -> None:
    fleet = {f"gpu-{number:03d}": PULL for number in range(50)}
    journal, memory = Journal(), Memory()
    for number in range(2):
        step = look(memory, ill(**fleet), float(number))
        memory = step.memory
        journal.write(step.notes, number)
    fresh = news.restored(journal.events)
    first = look(fresh, ill(**fleet), 10.0)
    assert first.notes == () and not first.unsure
    fleet["gpu-new"] = PULL
    second = look(first.memory, ill(**fleet), 20.0)
    third = look(second.memory, ill(**fleet), 30.0)
    assert said(list(third.notes)) == [("gpu-new", FAILING)]


@pytest.mark.parametrize(
    "event",
    [
        {"metadata": {}},
        {"metadata": {"name": "x"}, "involvedObject": None, "reason": FAILING, "message": ""},
        {"metadata": {"name": "x"}, "involvedObject": {"kind": "Node"}, "reason": RECOVERED, "message": None},
    ],
)
def test_events_of_others_do_no_harm(event: dict[str, Any]) -> None:
    memory = news.restored([event])
    assert look(memory, WELL).notes == ()
