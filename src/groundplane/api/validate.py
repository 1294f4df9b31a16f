"""What is wrong with a policy whose types are right: values that cannot be, and fields that contradict each other.

Only what the policy itself tells is checked here (contracts/control-plane.md 1.4 and 1.5, and what the API server
would refuse in the objects made from it). Whether a referenced ConfigMap or Secret exists is for who can look.
Checks run on every reconcile, as a policy can turn wrong at any edit.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from . import durations, schema
from .clusterpolicy import ClusterPolicySpec, Component, ServiceMonitor
from .release import Release


class Problem(msgspec.Struct, frozen=True):
    """One thing wrong with a policy.

    Attributes:
        fields: dotted paths of the fields concerned, such as ``spec.cdi.enabled``.
        message: names the fields, what is wrong and what to do.
        state: the operand state that cannot be rendered for it, such as ``state-driver``; None when the policy as a
            whole cannot be carried out.
    """

    fields: tuple[str, ...]
    message: str
    state: str | None = None


def problems(spec: ClusterPolicySpec, release: Release = Release.DEFAULT) -> list[Problem]:
    """Everything wrong with ``spec``, single values first; empty when it can be carried out."""
    document = msgspec.to_builtins(spec)
    return [
        *single_values(document, ClusterPolicySpec),
        *_contradictions(spec, release),
        *_scrape_times(spec),
        *_unavailable_limits(spec),
        *tolerations("spec.daemonsets.tolerations", spec.daemonsets.tolerations or ()),
        *_resources(document),
    ]


# --- Single values ----------------------------------------------------------------------------------------------------


def single_values(document: Mapping[str, Any], struct: type[msgspec.Struct]) -> Iterator[Problem]:
    """Values of a ``spec`` that its schema does not allow."""
    for mismatch in schema.mismatches(document, schema.of(struct), "spec"):
        yield Problem((mismatch.path,), f"{mismatch.path}: {mismatch.message}")


# --- Fields that contradict each other (contracts/control-plane.md 1.5) ----------------------------------------------


class _Rule(msgspec.Struct, frozen=True):
    fields: tuple[str, ...]
    broken: Callable[[ClusterPolicySpec], bool]
    message: str
    state: str | None = None
    releases: tuple[Release, ...] = tuple(Release)


def _precompiled_driver(spec: ClusterPolicySpec) -> bool:
    """Whether state-driver will render a driver with precompiled modules from this policy."""
    driver = spec.driver
    return driver.enabled is not False and not driver.useNvidiaDriverCRD and driver.usePrecompiled is True


def _beside_driver(section: str, name: str, read: Callable[[ClusterPolicySpec], Component]) -> _Rule:
    """The rule that a module built beside the driver needs a driver that is built on the node."""
    return _Rule(
        fields=(f"spec.{section}.enabled", "spec.driver.usePrecompiled"),
        broken=lambda spec: read(spec).enabled is True and _precompiled_driver(spec),
        message=f"{name} builds its module beside the driver and cannot do so with a precompiled one: set "
        f"spec.{section}.enabled or spec.driver.usePrecompiled to false",
        state="state-driver",
    )


_RULES: Final = (
    _Rule(
        fields=("spec.cdi.enabled", "spec.cdi.nriPluginEnabled"),
        broken=lambda spec: spec.cdi.nriPluginEnabled is True and spec.cdi.enabled is False,
        message="the NRI plugin injects GPUs through CDI: set spec.cdi.enabled to true "
        "or spec.cdi.nriPluginEnabled to false",
    ),
    _Rule(
        fields=("spec.cdi.nriPluginEnabled", "spec.toolkit.enabled"),
        broken=lambda spec: spec.cdi.nriPluginEnabled is True and spec.toolkit.enabled is False,
        message="the NRI plugin is part of the toolkit: set spec.toolkit.enabled to true "
        "or spec.cdi.nriPluginEnabled to false",
        releases=(Release.V26_7,),
    ),
    _beside_driver("gds", "GPUDirect Storage", lambda spec: spec.gds),
    _beside_driver("gdrcopy", "GDRCopy", lambda spec: spec.gdrcopy),
)


def _contradictions(spec: ClusterPolicySpec, release: Release) -> Iterator[Problem]:
    for rule in _RULES:
        if release in rule.releases and rule.broken(spec):
            yield Problem(rule.fields, f"{' and '.join(rule.fields)}: {rule.message}", rule.state)


# --- Scrape times -----------------------------------------------------------------------------------------------------


def _scrape_times(spec: ClusterPolicySpec) -> Iterator[Problem]:
    yield from _scrape_time("spec.operator.metrics.serviceMonitor", spec.operator.metrics.serviceMonitor)
    yield from _scrape_time("spec.dcgmExporter.serviceMonitor", spec.dcgmExporter.serviceMonitor)


def _scrape_time(path: str, monitor: ServiceMonitor) -> Iterator[Problem]:
    """A scrape must end before the next begins (1.4). Malformed durations are reported by their pattern."""
    if not monitor.interval or not monitor.scrapeTimeout:
        return
    try:
        interval, timeout = durations.parse(monitor.interval), durations.parse(monitor.scrapeTimeout)
    except ValueError:
        return
    if timeout > interval:
        fields = (f"{path}.scrapeTimeout", f"{path}.interval")
        yield Problem(
            fields,
            f"{' and '.join(fields)}: the timeout {monitor.scrapeTimeout} exceeds the interval {monitor.interval}; "
            "Prometheus refuses that: lower the timeout or raise the interval",
        )


# --- Numbers or percentages -------------------------------------------------------------------------------------------


def _unavailable_limits(spec: ClusterPolicySpec) -> Iterator[Problem]:
    """``maxUnavailable`` is a number or a percentage. A DaemonSet that is rolled must be allowed at least one."""
    rolled = spec.daemonsets.updateStrategy != "OnDelete"
    rolling = spec.daemonsets.rollingUpdate.maxUnavailable
    yield from unavailable_limit("spec.daemonsets.rollingUpdate.maxUnavailable", rolling, int(rolled), 100)
    yield from unavailable_limit(
        "spec.driver.upgradePolicy.maxUnavailable", spec.driver.upgradePolicy.maxUnavailable, 0, None
    )


def unavailable_limit(path: str, value: int | str | None, least: int, most: int | None) -> Iterator[Problem]:
    """What is wrong with one limit: no number or percentage, below ``least``, or more than ``most`` percent."""
    if value is None or value == "":
        return
    match = re.fullmatch(r"([0-9]+)(%?)", str(value), re.ASCII)
    too_much = match is not None and match[2] and most is not None and int(match[1]) > most
    if match is None or int(match[1]) < least or too_much:
        yield Problem(
            (path,),
            f"{path}: expected a whole number or a percentage such as 25%, at least {least}"
            f"{'' if most is None else f' and at most {most}%'}, found {schema.describe(value)}",
        )


# --- What is passed through to pods -----------------------------------------------------------------------------------

_OPERATORS: Final = ("", "Equal", "Exists", "Lt", "Gt")
_EFFECTS: Final = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")


def tolerations(where: str, given: Iterable[Mapping[str, Any]]) -> Iterator[Problem]:
    """Rules of the Kubernetes API for tolerations: with one broken it refuses every DaemonSet."""
    for index, toleration in enumerate(given):
        path = f"{where}[{index}]"
        for name, message in _toleration_faults(toleration):
            yield Problem((f"{path}.{name}",), f"{path}.{name}: {message}")


def _toleration_faults(toleration: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    operator = toleration.get("operator") or ""
    effect = toleration.get("effect") or ""
    for name, value, allowed in (("operator", operator, _OPERATORS), ("effect", effect, _EFFECTS)):
        if value not in allowed:
            yield name, f"expected one of {', '.join(filter(None, allowed))}, found {schema.describe(value)}"
    if operator == "Exists" and toleration.get("value"):
        yield "value", "operator Exists compares no value: remove the value or use operator Equal"
    if not toleration.get("key") and operator != "Exists":
        yield "key", "a toleration without a key needs operator Exists: name the key or set the operator"
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        yield "tolerationSeconds", "only effect NoExecute has a time: set that effect or remove tolerationSeconds"


_SUFFIXES: Final = {
    **{
        suffix: Decimal(1000) ** power
        for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}


def _quantity(value: object) -> Decimal | None:
    """A Kubernetes quantity as a number; None if it is none (its pattern has been reported then)."""
    match = re.fullmatch(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkMGTPE]?|[KMGTPE]i)", str(value), re.ASCII)
    if match is None:
        return None
    try:
        return Decimal(match[1]) * _SUFFIXES[match[2]]
    except InvalidOperation:
        return None


def _resources(document: Mapping[str, Any]) -> Iterator[Problem]:
    """Amounts of every section: none may be negative, and no request may exceed its limit."""
    for section, value in document.items():
        resources = value.get("resources")
        if isinstance(resources, Mapping):
            yield from amounts(f"spec.{section}.resources", resources)


def amounts(path: str, resources: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with the amounts of one ``resources``: negative ones, and requests beyond their limit."""
    found = {
        kind: {name: _quantity(value) for name, value in (resources.get(kind) or {}).items()}
        for kind in ("requests", "limits")
    }
    for kind, values in found.items():
        for name, amount in values.items():
            if amount is not None and amount < 0:
                field = f"{path}.{kind}.{name}"
                yield Problem((field,), f"{field}: an amount cannot be negative, found {resources[kind][name]}")
    for name, request in found["requests"].items():
        limit = found["limits"].get(name)
        if request is not None and limit is not None and request > limit:
            fields = (f"{path}.requests.{name}", f"{path}.limits.{name}")
            yield Problem(
                fields,
                f"{' and '.join(fields)}: the request {resources['requests'][name]} exceeds the limit "
                f"{resources['limits'][name]}: lower the request or raise the limit",
            )
