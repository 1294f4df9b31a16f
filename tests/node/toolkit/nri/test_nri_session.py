"""One connection under whatever a peer may send: it serves on, or ends with a reason that blames the peer."""

import asyncio
import datetime
import socket

from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.api.release import Release
from groundplane.node.process import Log
from groundplane.node.toolkit.nri import injection, mux, ttrpc
from groundplane.node.toolkit.nri.service import PLUGIN_SERVICE, PluginService
from groundplane.node.toolkit.nri.session import CLOSED, Session
from groundplane.node.toolkit.nri.stubs import nri_pb2 as nri
from groundplane.node.toolkit.nri.stubs import ttrpc_pb2 as wire

annotations = st.dictionaries(
    st.sampled_from(["nvidia.cdi.k8s.io", "nvidia.cdi.k8s.io/pod", "other"]),
    st.one_of(st.text(max_size=20), st.just("nvidia.com/gpu=0,,oops")),
)
creations = st.builds(
    lambda found, namespace: nri.CreateContainerRequest(
        pod=nri.PodSandbox(name="p", namespace=namespace, annotations=found), container=nri.Container(name="c")
    ).SerializeToString(),
    annotations,
    st.sampled_from(["gpu-operator", "default", ""]),
)
requests = st.builds(
    lambda service, method, payload: wire.Request(service=service, method=method, payload=payload).SerializeToString(),
    st.sampled_from([PLUGIN_SERVICE, "else"]),
    st.sampled_from(["CreateContainer", "Configure", "Synchronize", "StateChange", "Else", ""]),
    st.one_of(creations, st.binary(max_size=20)),
)
messages = st.builds(
    lambda stream, kind, data, flags: ttrpc.encode(ttrpc.Message(stream, kind, data, flags)),
    st.integers(0, 9),
    st.integers(0, 4),
    st.one_of(requests, st.binary(max_size=20)),
    st.integers(0, 7),
)
frames = st.builds(
    lambda channel, data: mux.HEADER.pack(channel, len(data)) + data,
    st.integers(0, 3),
    st.one_of(messages, st.binary(max_size=20)),
)
streams = st.lists(st.one_of(frames, frames, frames, st.binary(max_size=12)), max_size=8)


@settings(max_examples=300)
@given(streams)
def test_whatever_comes_is_served_or_is_the_peers_fault(sent: list[bytes]) -> None:
    logged: list[str] = []

    async def session() -> str:
        ours, theirs = socket.socketpair()
        rule = injection.Rule(release=Release.DEFAULT, namespace="gpu-operator")
        log = Log(logged.append, lambda: datetime.datetime.now(datetime.UTC))
        session = Session(*await asyncio.open_unix_connection(sock=ours), PluginService(rule, log))
        with theirs:
            theirs.sendall(b"".join(sent))
            theirs.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(20):
                reason = await session.lost()
        await session.close()
        return reason

    reason = asyncio.run(session())
    assert reason == CLOSED or reason.startswith("the connection is lost: ")
    for line in logged:
        assert not line.startswith("E") or "DecodeError" in line
