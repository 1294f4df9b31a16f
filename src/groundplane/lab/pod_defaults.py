"""Defaults of pod specs, in pods and in the templates of workloads."""

from __future__ import annotations

from typing import Any

from .objects import Document

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")
_MODES = ("configMap", "secret", "downwardAPI", "projected")


def fill_spec(spec: Document, *, template: bool) -> None:
    """Fill in a pod spec. `template` leaves out what only pods themselves get."""
    _fill(
        spec, restartPolicy="Always", dnsPolicy="ClusterFirst", schedulerName="default-scheduler",
        terminationGracePeriodSeconds=30, securityContext={},
    )  # fmt: skip
    if not template:
        _fill(spec, enableServiceLinks=True)
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for name in _CONTAINER_LISTS:
        for container in spec.get(name) or []:
            _container(container, host_network=bool(spec.get("hostNetwork")) and not template)
            if not template:
                _requests(container)
    for volume in spec.get("volumes") or []:
        _volume(volume)


def _fill(target: Document, **values: Any) -> None:
    for key, value in values.items():
        if key not in target:
            target[key] = value


def _container(container: Document, *, host_network: bool) -> None:
    _fill(
        container, terminationMessagePath="/dev/termination-log", terminationMessagePolicy="File",
        imagePullPolicy=_pull_policy(container.get("image", "")), resources={},
    )  # fmt: skip
    for port in container.get("ports") or []:
        _fill(port, protocol="TCP")
        if host_network and port.get("containerPort"):
            _fill(port, hostPort=port["containerPort"])
    for entry in container.get("env") or []:
        reference = (entry.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            _fill(reference, apiVersion="v1")
    for name in _PROBES:
        if name in container:
            _fill(container[name], timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
            _handler(container[name])
    for handler in (container.get("lifecycle") or {}).values():
        if isinstance(handler, dict):
            _handler(handler)


def _handler(handler: Document) -> None:
    if isinstance(handler.get("httpGet"), dict):
        _fill(handler["httpGet"], path="/", scheme="HTTP")
    if isinstance(handler.get("grpc"), dict):
        _fill(handler["grpc"], service="")


def _pull_policy(image: str) -> str:
    """Always for `latest` or no tag, else IfNotPresent; a digest counts as a tag."""
    _, _, last = image.rpartition("/")
    if "@" in last:
        return "IfNotPresent"
    _, colon, tag = last.partition(":")
    return "IfNotPresent" if colon and tag != "latest" else "Always"


def _requests(container: Document) -> None:
    limits = container["resources"].get("limits")
    if limits:
        container["resources"]["requests"] = {**limits, **(container["resources"].get("requests") or {})}


def _volume(volume: Document) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}
    if isinstance(volume.get("hostPath"), dict):
        _fill(volume["hostPath"], type="")
    for name in _MODES:
        if isinstance(volume.get(name), dict):
            _fill(volume[name], defaultMode=420)
    for source in (volume.get("projected") or {}).get("sources") or []:
        if isinstance(source.get("serviceAccountToken"), dict):
            _fill(source["serviceAccountToken"], expirationSeconds=3600)
    for holder in (volume.get("downwardAPI") or {}, *((volume.get("projected") or {}).get("sources") or [])):
        for item in (holder.get("downwardAPI") or holder).get("items") or []:
            if isinstance(item.get("fieldRef"), dict):
                _fill(item["fieldRef"], apiVersion="v1")


def qos_class(spec: Document) -> str:
    """Return Guaranteed, Burstable or BestEffort, by the cpu and memory of all containers."""
    containers = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    kinds = ("cpu", "memory")
    asked = [
        ({k: v for k, v in (c["resources"].get("requests") or {}).items() if k in kinds},
         {k: v for k, v in (c["resources"].get("limits") or {}).items() if k in kinds})
        for c in containers
    ]  # fmt: skip
    if not any(requests or limits for requests, limits in asked):
        return "BestEffort"
    if all(len(limits) == len(kinds) and requests == limits for requests, limits in asked):
        return "Guaranteed"
    return "Burstable"
