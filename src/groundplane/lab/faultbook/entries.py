"""Faults of one kind in a line each: errors that a GPU reports, sick boards, what a driver's container meets on its
start, images that cannot be pulled, and settings that are wrong."""

from collections.abc import Mapping
from typing import Any

from ...diagnose.findings import Layer
from .. import driverfaults
from . import machine, objects
from .machine import at, image
from .model import Act, Fault, Kind
from .objects import DRIVER, PLUGIN, VALIDATOR, both, then
from .on import ANY


def xid(number: int, what: str, causes: tuple[str, ...], layer: Layer = Layer.HARDWARE) -> Fault:
    """An error of a GPU that the driver reports; it goes with the machine's reboot."""
    return Fault(
        layer,
        f"a GPU reports Xid {number}: {what}",
        causes,
        at(machine.xid(number)),
        then(machine.recovered, PLUGIN),
        ANY,
    )


def board(defect: str, what: str, cause: str) -> Fault:
    """A board that something is wrong with though it answers."""
    return Fault(
        Layer.HARDWARE,
        what,
        (cause,),
        then(machine.defect(defect), VALIDATOR),
        then(machine.defect("none"), VALIDATOR),
        ANY,
    )


def driver(name: str, layer: Layer, title: str, causes: tuple[str, ...], on: Kind, clear: Act | None = None) -> Fault:
    """What the driver's container meets on its start (``driverfaults``)."""
    fault = driverfaults.fault(name)
    return Fault(layer, title, causes, objects.driver_anew(fault.inject), clear or then(fault.cure, DRIVER), on)


def unpullable(
    layer: Layer, what: str, pattern: str, answer: str, causes: tuple[str, ...], app: str, on: Kind = ANY
) -> Fault:
    """An image that the node cannot pull."""
    return Fault(layer, what, causes, then(image(pattern, answer), app), then(image(pattern, None), app), on)


def settings(
    layer: Layer, title: str, causes: tuple[str, ...], changes: Mapping[objects.Path, Any], on: Kind, *apps: str
) -> Fault:
    """Wrong settings in the ClusterPolicy."""
    back = objects.policy_back(*changes)
    return Fault(
        layer,
        title,
        causes,
        both(objects.policy(changes), objects.anew(*apps)),
        both(back, objects.anew(*apps)),
        on,
        cluster=True,
    )
