"""Rules for pods and pod templates: names, containers, volumes and mounts, enums, and what an update may change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import amounts, names_rules
from .objects import Document, copy, duplicate, invalid, not_supported, refused, required
from .status import Cause

_POLICIES = ("Always", "OnFailure", "Never")
_ENUMS: dict[str, tuple[str, ...]] = {
    "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    "preemptionPolicy": ("Never", "PreemptLowerPriority"),
}
_CONTAINER_ENUMS: dict[str, tuple[str, ...]] = {
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "terminationMessagePolicy": ("FallbackToLogsOnError", "File"),
}
_EFFECTS = ("NoExecute", "NoSchedule", "PreferNoSchedule")
_LISTS = ("initContainers", "containers")


def pod(document: Document, before: Document | None) -> Iterator[Cause]:
    """Yield what is wrong with a pod, or with its update."""
    if before is not None and before.get("spec") is not document.get("spec"):
        yield from _update(document["spec"], before["spec"])
    yield from spec_problems(document["spec"], "spec", _POLICIES)


def template(value: Document, path: str, restart: tuple[str, ...]) -> Iterator[Cause]:
    """Yield what is wrong with a pod template; `restart` are the restart policies the workload allows."""
    meta = value.get("metadata") or {}
    for key, item in (meta.get("labels") or {}).items():
        if problem := names_rules.label_key_problem(key):
            yield invalid(f"{path}.metadata.labels", key, problem)
        if problem := names_rules.label_value_problem(item):
            yield invalid(f"{path}.metadata.labels", item, problem)
    if "spec" not in value:
        yield required(f"{path}.spec.containers")
        return
    yield from spec_problems(value["spec"], f"{path}.spec", restart)


def spec_problems(spec: Document, path: str, restart: tuple[str, ...]) -> Iterator[Cause]:
    """Yield what is wrong with a pod spec."""
    if not spec.get("containers"):
        yield required(f"{path}.containers")
    if spec.get("restartPolicy") not in restart:
        yield not_supported(f"{path}.restartPolicy", spec.get("restartPolicy"), restart)
    for key, choices in _ENUMS.items():
        if key in spec and spec[key] not in choices:
            yield not_supported(f"{path}.{key}", spec[key], choices)
    for key in ("terminationGracePeriodSeconds",):
        if spec.get(key, 0) < 0:
            yield invalid(f"{path}.{key}", spec[key], "must be greater than or equal to 0")
    volumes: set[str] = set()
    yield from _volumes(spec.get("volumes") or [], f"{path}.volumes", volumes)
    seen: set[str] = set()
    for kind in _LISTS:
        for index, container in enumerate(spec.get(kind) or []):
            yield from _container(container, f"{path}.{kind}[{index}]", volumes, seen)
    for index, toleration in enumerate(spec.get("tolerations") or []):
        yield from _toleration(toleration, f"{path}.tolerations[{index}]")
    for key, item in (spec.get("nodeSelector") or {}).items():
        if problem := names_rules.label_key_problem(key) or names_rules.label_value_problem(item):
            yield invalid(f"{path}.nodeSelector", key, problem)


def _volumes(volumes: list[Document], path: str, names: set[str]) -> Iterator[Cause]:
    for index, volume in enumerate(volumes):
        here, name = f"{path}[{index}]", volume.get("name", "")
        if not name:
            yield required(f"{here}.name")
        elif problem := names_rules.label_name_problem(name):
            yield invalid(f"{here}.name", name, problem)
        elif name in names:
            yield duplicate(f"{here}.name", name)
        names.add(name)
        sources = [key for key in volume if key != "name"]
        if len(sources) > 1:
            yield refused(f"{here}.{sources[1]}", "may not specify more than 1 volume type")
        host = volume.get("hostPath")
        if host is not None and ".." in host.get("path", "").split("/"):
            yield invalid(f"{here}.hostPath.path", host["path"], "must not contain '..'")


def _container(container: Document, path: str, volumes: set[str], seen: set[str]) -> Iterator[Cause]:
    name = container.get("name", "")
    if not name:
        yield required(f"{path}.name")
    elif problem := names_rules.label_name_problem(name):
        yield invalid(f"{path}.name", name, problem)
    elif name in seen:
        yield duplicate(f"{path}.name", name)
    seen.add(name)
    if not container.get("image"):
        yield required(f"{path}.image")
    for key, choices in _CONTAINER_ENUMS.items():
        if container.get(key) not in choices:
            yield not_supported(f"{path}.{key}", container.get(key), choices)
    yield from _mounts(container, path, volumes)
    for index, port in enumerate(container.get("ports") or []):
        here, number = f"{path}.ports[{index}].containerPort", port.get("containerPort", 0)
        if not number:
            yield required(here)
        elif not 1 <= number <= 65535:
            yield invalid(here, number, "must be between 1 and 65535, inclusive")
    for index, entry in enumerate(container.get("env") or []):
        if not entry.get("name"):
            yield required(f"{path}.env[{index}].name")
        elif problem := names_rules.env_name_problem(entry["name"]):
            yield invalid(f"{path}.env[{index}].name", entry["name"], problem)
        if "value" in entry and "valueFrom" in entry:
            text = "may not be specified when `value` is not empty"
            yield invalid(f"{path}.env[{index}].valueFrom", "", text)
    yield from _resources(container.get("resources") or {}, f"{path}.resources")


def _mounts(container: Document, path: str, volumes: set[str]) -> Iterator[Cause]:
    places: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or []):
        here = f"{path}.volumeMounts[{index}]"
        name, place = mount.get("name", ""), mount.get("mountPath", "")
        if not name:
            yield required(f"{here}.name")
        elif name not in volumes:
            yield Cause("FieldValueNotFound", f'Not found: "{name}"', f"{here}.name")
        if place in places:
            yield invalid(f"{here}.mountPath", place, "must be unique")
        places.add(place)
        mode = mount.get("mountPropagation")
        privileged = (container.get("securityContext") or {}).get("privileged")
        if mode not in (None, "None", "HostToContainer", "Bidirectional"):
            choices = ("Bidirectional", "HostToContainer", "None")
            yield not_supported(f"{here}.mountPropagation", mode, choices)
        elif mode == "Bidirectional" and not privileged:
            text = "Bidirectional mount propagation is available only to privileged containers"
            yield refused(f"{here}.mountPropagation", text)


_STANDARD = ("cpu", "memory", "ephemeral-storage")


def _resources(value: Document, path: str) -> Iterator[Cause]:
    """Requests are not above limits; extended resources are whole, and their request equals their limit."""
    limits, requests = value.get("limits") or {}, value.get("requests") or {}
    for kind, held in (("limits", limits), ("requests", requests)):
        for name, amount in held.items():
            if amounts.exact(amount) < 0:
                yield invalid(f"{path}.{kind}[{name}]", amount, "must be greater than or equal to 0")
            if "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
                yield invalid(f"{path}.{kind}[{name}]", name, "must be a standard resource type or fully qualified")
    for name, amount in limits.items():
        if "/" not in name:
            if name in requests and amounts.exact(requests[name]) > amounts.exact(amount):
                text = f"must be less than or equal to {name} limit of {amount}"
                yield invalid(f"{path}.requests", requests[name], text)
            continue
        if not str(amount).isdigit():
            yield invalid(f"{path}.limits[{name}]", amount, "must be an integer")
        if name in requests and requests[name] != amount:
            text = f"must be equal to {name} limit of {amount}"
            yield invalid(f"{path}.requests", requests[name], text)
    for name in requests:
        if "/" in name and name not in limits:
            yield required(f"{path}.limits", "Limit must be set for non overcommitable resources")


def _toleration(toleration: Document, path: str) -> Iterator[Cause]:
    operator, effect = toleration.get("operator", ""), toleration.get("effect", "")
    if operator not in ("", "Equal", "Exists", "Lt", "Gt"):
        yield not_supported(f"{path}.operator", operator, ("Equal", "Exists"))
    if effect and effect not in _EFFECTS:
        yield not_supported(f"{path}.effect", effect, _EFFECTS)
    if not toleration.get("key") and operator != "Exists":
        text = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield invalid(f"{path}.operator", operator, text)
    if operator == "Exists" and toleration.get("value"):
        yield invalid(f"{path}.value", toleration["value"], "value must be empty when `operator` is 'Exists'")
    if "tolerationSeconds" in toleration and effect != "NoExecute":
        yield invalid(f"{path}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")


_CHANGEABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def _update(new: Document, old: Document) -> Iterator[Cause]:
    """A pod's spec is fixed but for images, a shorter deadline, and further tolerations."""
    if _fixed(new) != _fixed(old):
        yield refused("spec", _CHANGEABLE)
    before = old.get("tolerations") or []
    if any(item not in (new.get("tolerations") or []) for item in before):
        yield refused("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")
    was, now = old.get("activeDeadlineSeconds"), new.get("activeDeadlineSeconds")
    if was is not None and (now is None or now > was):
        text = f"must be less than or equal to previous value {was}"
        yield invalid("spec.activeDeadlineSeconds", now, text)


def _fixed(spec: Document) -> Any:
    result = copy(
        {k: v for k, v in spec.items() if k not in ("activeDeadlineSeconds", "tolerations", "schedulingGates")}
    )
    for kind in _LISTS:
        for container in result.get(kind) or []:
            container.pop("image", None)
    return result
