"""What the plugin answers a runtime: NRI's Plugin service, payload in, payload out (contracts/toolkit-cdi.md 7.1, 7.2).

A failing answer fails the container that is being made, and a late one all that wait behind it; so nothing here waits,
and whatever goes wrong becomes an answer that changes nothing, and a line in the log.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from google.protobuf.message import Message

from ...process import Log
from . import injection, ttrpc
from .stubs import nri_pb2 as wire

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"

EVENTS: Final = 1 << (wire.CREATE_CONTAINER - 1)
"""The events that the plugin subscribes to, as a mask."""

IGNORED: Final = (
    "Shutdown",
    "RunPodSandbox",
    "UpdatePodSandbox",
    "PostUpdatePodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "PostCreateContainer",
    "StartContainer",
    "PostStartContainer",
    "UpdateContainer",
    "PostUpdateContainer",
    "StopContainer",
    "RemoveContainer",
    "StateChange",
    "ValidateContainerAdjustment",
)
"""Methods whose empty answer means that the plugin has nothing to say."""

_NOTHING: Final = wire.Empty().SerializeToString()


class PluginService:
    """The Plugin service on one connection."""

    def __init__(self, rule: injection.Rule, log: Log) -> None:
        self._rule = rule
        self._log = log
        self.configured = asyncio.Event()
        """Set once the runtime has asked which events the plugin wants; from then on it is in force."""
        self.registration_timeout_s: float | None = None
        """How long the runtime waits for a plugin that registers, if it has said so."""

    def services(self) -> ttrpc.Services:
        """The methods, for a server."""
        subscription = wire.ConfigureResponse(events=EVENTS)
        methods = {
            "Configure": self._safe("Configure", self._configure, subscription),
            "Synchronize": self._safe("Synchronize", _synchronize, wire.SynchronizeResponse()),
            "CreateContainer": self._safe("CreateContainer", self._create_container, wire.CreateContainerResponse()),
        }
        return {PLUGIN_SERVICE: {**methods, **dict.fromkeys(IGNORED, lambda _payload: _NOTHING)}}

    def _safe(self, name: str, method: Callable[[bytes], Message], otherwise: Message) -> ttrpc.Method:
        """A method that answers `otherwise` where it fails."""

        def answer(payload: bytes) -> bytes:
            try:
                return method(payload).SerializeToString()
            except Exception as error:  # noqa: BLE001 - a container must start, whatever is wrong with this program
                self._log.error(f"NRI request {name} failed and is answered with no change: {_described(error)}")
                return otherwise.SerializeToString()

        return answer

    def _configure(self, payload: bytes) -> Message:
        self.configured.set()
        request = wire.ConfigureRequest.FromString(payload)
        if request.registration_timeout > 0:  # older runtimes say nothing
            self.registration_timeout_s = request.registration_timeout / 1000
        runtime = f"{request.runtime_name or 'a runtime'} {request.runtime_version}".strip()
        self._log.info(f"NRI plugin configured by {runtime}")
        return wire.ConfigureResponse(events=EVENTS)

    def _create_container(self, payload: bytes) -> Message:
        request = wire.CreateContainerRequest.FromString(payload)
        asked = injection.Asked(
            namespace=request.pod.namespace,
            pod=request.pod.name,
            container=request.container.name,
            annotations=request.pod.annotations,
        )
        decided = injection.decide(self._rule, asked)
        for warning in decided.warnings:
            self._log.warning(warning)
        if not decided.devices:
            return wire.CreateContainerResponse()
        self._log.info(f"{asked} gets CDI devices {injection.listed(decided.devices)}")
        devices = [wire.CDIDevice(name=name) for name in decided.devices]
        return wire.CreateContainerResponse(adjust=wire.ContainerAdjustment(CDI_devices=devices))


def _synchronize(payload: bytes) -> Message:
    """Containers that run are left alone. A runtime that splits its list wants `more` back, to go on."""
    return wire.SynchronizeResponse(more=wire.SynchronizeRequest.FromString(payload).more)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
