"""What is known of a node when the answer to our patch and the watch's news of it cross each other."""

from typing import Any, cast

from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.cluster.informer import Informer
from groundplane.cluster.kinds import NODE
from groundplane.cluster.views import NodeMeta, NodeView
from groundplane.operator.nodes import NodeStore


def node(version: int, uid: str = "u", **labels: str) -> NodeView:
    return NodeView(
        NodeMeta("a", uid, str(version), labels={f"nvidia.com/{key}": value for key, value in labels.items()})
    )


class Watch:
    """An informer whose news the test tells."""

    def __init__(self) -> None:
        self.informer = Informer(Client(Config(server="http://127.0.0.1:1")), NODE, NodeView)
        self.store = NodeStore(self.informer)
        self.heard: list[tuple[str, str]] = []
        self.store.on_change(lambda _name, old, new: self.heard.append((version(old), version(new))))
        self.store.start()

    def tell(self, new: NodeView) -> None:
        cast(Any, self.informer)._upsert("a", new)

    def gone(self) -> None:
        cast(Any, self.informer)._remove("a", self.informer.get("a"))


def version(view: NodeView | None) -> str:
    return view.metadata.resourceVersion if view else ""


def test_an_answer_is_known_before_its_echo_and_the_echo_is_no_news() -> None:
    watch = Watch()
    watch.tell(node(1))
    watch.store.answered(node(3, x="true"))
    assert version(watch.store.get("a")) == "3"
    watch.tell(node(2))
    assert version(watch.store.get("a")) == "3", "what was stored before our write is older than its answer"
    watch.tell(node(3, x="true"))
    assert watch.heard == [("", "1")]
    watch.tell(node(4))
    assert version(watch.store.get("a")) == "4" and watch.heard[-1] == ("3", "4")


def test_an_answer_that_the_watch_has_overtaken_hides_nothing() -> None:
    watch = Watch()
    watch.tell(node(1))
    watch.tell(node(3, x="true"))
    watch.tell(node(4, x="false"))
    watch.store.answered(node(3, x="true"))
    assert watch.store.get("a") == node(4, x="false")


def test_an_answer_about_a_node_that_is_gone_or_another_by_now_is_dropped() -> None:
    watch = Watch()
    watch.tell(node(1))
    watch.gone()
    watch.store.answered(node(2))
    assert watch.store.get("a") is None
    watch.tell(node(5, uid="new"))
    watch.store.answered(node(6))
    assert watch.store.get("a") == node(5, uid="new")
