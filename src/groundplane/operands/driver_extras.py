"""Kernel modules beside the GPU driver: GPUDirect RDMA, GPUDirect Storage and GDRCopy, a container each.

Source: contracts/driver-lifecycle.md 6.9, contracts/control-plane.md 4.3 and 4.6. The driver container and the
driver manager learn of them by environment variables, which are made here too.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from lightkube.models.core_v1 import Container, ExecAction, Probe

from ..api import clusterpolicy as cp
from . import build, driver_config, driver_toolkit, images, scripts
from .driver_config import Attachment
from .driver_frame import Frame
from .driver_pools import Pool
from .errors import problem
from .facts import ClusterFacts

PEERMEM: Final = "nvidia-peermem-ctr"
VOID: Final = "NVIDIA_VISIBLE_DEVICES=void"
"""No runtime may put GPUs into a container that installs their driver."""

_PEERMEM_MOUNTS: Final = (
    "run-nvidia:/run/nvidia:B",
    "var-log:/var/log",
    "dev-log:/dev/log:ro",
    "run-mellanox-drivers:/run/mellanox/drivers:H",
)
_MOUNTS: Final = ("run-nvidia:/run/nvidia:H", "var-log:/var/log", "dev-log:/dev/log:ro")


class Extra(msgspec.Struct, frozen=True):
    """A module that is built on the node by a container of its own.

    ``field`` is its section of the policy, ``variable`` the operator's environment variable for its
    image, ``installer`` the program in that image, ``module`` what lsmod shows afterwards.
    """

    field: str
    title: str
    container: str
    variable: str
    installer: str
    module: str

    def section(self, spec: cp.ClusterPolicySpec) -> cp.Component:
        """Its settings."""
        return spec.gds if self.field == "gds" else spec.gdrcopy

    @property
    def flag(self) -> str:
        """The environment row by which the other containers know that it is on."""
        return f"{self.field.upper()}_ENABLED=true"


GDS: Final = Extra("gds", "GPUDirect Storage", "nvidia-fs-ctr", "GDS_IMAGE", "nvidia-gds-driver", "nvidia_fs")
GDRCOPY: Final = Extra("gdrcopy", "GDRCopy", "nvidia-gdrcopy-ctr", "GDRCOPY_IMAGE", "nvidia-gdrcopy-driver", "gdrdrv")


def chosen(spec: cp.ClusterPolicySpec) -> list[Extra]:
    """The extras that are on, in order of their containers."""
    return [extra for extra in (GDS, GDRCOPY) if build.on(extra.section(spec).enabled)]


def refuse_precompiled(spec: cp.ClusterPolicySpec) -> None:
    """RenderError for an extra together with a precompiled driver (contract 1.5)."""
    if not build.on(spec.driver.usePrecompiled):
        return
    for extra in chosen(spec):
        raise problem(
            f"spec.{extra.field}.enabled and spec.driver.usePrecompiled are both true, but {extra.title} must be built "
            "on the node and precompiled drivers build nothing there: set one of them to false"
        )


def rdma(driver: cp.DriverSpec) -> bool:
    """GPUDirect RDMA is on."""
    return build.on(driver.rdma.enabled)


def host_mofed(driver: cp.DriverSpec) -> bool:
    """The network driver is the host's own; it only counts with RDMA (contract 1.3)."""
    return rdma(driver) and build.on(driver.rdma.useHostMofed)


def rdma_flags(driver: cp.DriverSpec) -> list[str]:
    """Environment rows about RDMA for driver and driver manager."""
    rows = (("GPU_DIRECT_RDMA_ENABLED=true", rdma(driver)), ("USE_HOST_MOFED=true", host_mofed(driver)))
    return [row for row, wanted in rows if wanted]


def built_image(section: cp.ImageSpec, where: str, variable: str, facts: ClusterFacts, pool: Pool) -> str:
    """An image with the pool's operating system suffix; without it while there is no GPU node."""
    reference = images.resolve(section, where, variable, facts.default_images)
    return images.with_os(reference, pool.os_tag) if pool.os_tag else reference


def peermem(driver: cp.DriverSpec, image: str, parameters: Attachment, *, void: bool = False) -> list[Container]:
    """Keeps ``nvidia_peermem`` loaded while the network driver comes and goes; none without RDMA.

    It is a part of the driver image ``image`` and gets the module ``parameters`` too; ``void`` as in a frame.
    """
    if not rdma(driver):
        return []
    check = ("sh", "-c", "nvidia-driver probe_nvidia_peermem")
    made = build.container(
        PEERMEM,
        image,
        pull=driver.imagePullPolicy,
        command=("nvidia-driver",),
        args=("reload_nvidia_peermem",),
        env=build.env(*((VOID,) if void else ()), *(("USE_HOST_MOFED=true",) if host_mofed(driver) else ())),
        mounts=(*build.mounts(*_PEERMEM_MOUNTS), *parameters.mounts),
        security="S0",
        startup=_startup(check),
        liveness=Probe(
            exec=ExecAction(command=list(check)),
            initialDelaySeconds=30,
            periodSeconds=30,
            timeoutSeconds=10,
            successThreshold=1,
            failureThreshold=1,
        ),
    )
    return [made]


def _startup(check: Sequence[str]) -> Probe:
    """Up to twenty minutes: the module is built after the driver."""
    return Probe(
        exec=ExecAction(command=list(check)),
        initialDelaySeconds=10,
        periodSeconds=10,
        timeoutSeconds=10,
        successThreshold=1,
        failureThreshold=120,
    )


def containers(
    spec: cp.ClusterPolicySpec, facts: ClusterFacts, pool: Pool, packages: Attachment, frame: Frame
) -> list[Container]:
    """The containers of the extras that are on; ``packages`` are the repositories and certificates they build with."""
    return [_container(extra, spec, facts, pool, packages, frame) for extra in chosen(spec)]


def _container(
    extra: Extra, spec: cp.ClusterPolicySpec, facts: ClusterFacts, pool: Pool, packages: Attachment, frame: Frame
) -> Container:
    section = extra.section(spec)
    variables = build.env(*driver_toolkit.missing_image_env(pool))
    build.user_env(variables, section.env)
    made = build.container(
        extra.container,
        frame.images[extra.field],
        pull=section.imagePullPolicy,
        command=("bash", "-xc"),
        args=section.args or (_install(extra),),
        env=variables,
        mounts=(*build.mounts(*_MOUNTS), *packages.mounts),
        security="S0",
        startup=_startup(("sh", "-c", f"lsmod | grep {extra.module}")),
    )
    made.envFrom = driver_config.secret_env(spec.driver, pool, facts, frame.fields)
    return driver_toolkit.hand_over(made, pool)


def _install(extra: Extra) -> str:
    """Wait for the driver's sources and its module, then build."""
    return (
        f"{scripts.STOP_WHEN_ASKED}; until [ -d /run/nvidia/driver/usr/src ] && lsmod | grep nvidia; do "
        "echo 'waiting for the NVIDIA driver to be installed'; sleep 10; done; "
        f"exec {extra.installer} install"
    )
