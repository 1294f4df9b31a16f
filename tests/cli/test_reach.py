"""What all the administrator's commands share: work that ends, and errors that become a sentence."""

import signal

import click
import pytest

from groundplane.cli import reach
from groundplane.cluster.errors import ConnectionLost, Unauthorized


class Large:
    """A result that is too large to be written down."""

    def __repr__(self) -> str:
        raise AssertionError("nobody may need the text of a whole survey")


def test_a_result_is_given_back_and_never_written_down() -> None:
    async def work() -> Large:
        return Large()

    before = signal.getsignal(signal.SIGINT)
    assert isinstance(reach.run(work()), Large)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Unauthorized(401, "Unauthorized", "no"), "may have expired"),
        (ConnectionLost("list nodes: no answer"), "kubectl cluster-info"),
        (OSError("disk full"), "disk full"),
    ],
)
def test_errors_are_one_sentence_with_a_next_step(error: Exception, words: str) -> None:
    async def work() -> None:
        raise error

    with pytest.raises(click.ClickException, match=words):
        reach.run(work())


def test_an_interrupted_command_says_so() -> None:
    async def work() -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(click.Abort):
        reach.run(work())
