"""The package repositories of the lab's world, as one node reaches them.

A file of the host, `/var/lib/groundplane/packages.yaml`, says which there are; without it the distribution's is
reachable and has everything. A container uses the distribution's own repository, or those that files in its package
manager's folders name (`repoConfig`). Source of what an installation asks for and of the texts:
contracts/driver-lifecycle.md 6.6 and 6.11.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec
import yaml

from ..host import HostError
from ..programs import ContainerContext

FILE: Final = "/var/lib/groundplane/packages.yaml"
DISTRIBUTION: Final = "distribution"
TOOLKIT: Final = "driver-toolkit"
"""Stands for what OpenShift's driver toolkit image brings: the headers of one RHCOS."""
ANY: Final = "*"
_SOURCES: Final = ("/etc/apt/sources.list.d", "/etc/yum.repos.d", "/etc/zypp/repos.d")
_PROXIES: Final = ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")
_ENTITLEMENTS: Final = ("/run/secrets/etc-pki-entitlement", "/etc/pki/entitlement")
_RHEL_RELEASE: Final = re.compile(r"\.el[0-9]+_[0-9]+")


class RefusedError(RuntimeError):
    """The packages cannot be had; the text is the log's."""


class Repository(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One repository: whether it answers (`proxied`: only through a proxy), and what it has.

    `kernels` are those whose headers and modules it has, "*" for every one. `unreadable_kernels` are those whose image
    no version can be read from. `metadata` says whether its index is right, `entitlement` whether it asks for Red
    Hat's.
    """

    reachable: bool = True
    proxied: bool = False
    metadata: bool = True
    entitlement: bool = False
    kernels: tuple[str, ...] = (ANY,)
    unreadable_kernels: tuple[str, ...] = ()
    seconds: float = 0.0

    def has(self, kernel: str) -> bool:
        """Whether it has a kernel's packages."""
        return ANY in self.kernels or kernel in self.kernels


class _World(msgspec.Struct, forbid_unknown_fields=True):
    repositories: dict[str, Repository] = {}


def repositories(ctx: ContainerContext) -> list[Repository]:
    """Those that a container is configured for. HostError, naming the file, if that is malformed."""
    known = _known(ctx)
    text = "\n".join(_configured(ctx))
    named = [found for name, found in known.items() if name not in (DISTRIBUTION, TOOLKIT) and name in text]
    return [*named, known.get(DISTRIBUTION, Repository())]


def toolkit(ctx: ContainerContext) -> Repository:
    """What the driver toolkit's image has. HostError if the file is malformed."""
    return _known(ctx).get(TOOLKIT, Repository())


def _known(ctx: ContainerContext) -> Mapping[str, Repository]:
    if not ctx.host.root.exists(FILE):
        return {}
    try:
        document = yaml.safe_load(ctx.host.root.read_text(FILE))
        return msgspec.convert(document or {}, _World).repositories
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise HostError(f"{FILE}: {error}; it says which package repositories the node reaches") from error


def _configured(ctx: ContainerContext) -> list[str]:
    found = []
    for folder in _SOURCES:
        if ctx.path(folder).is_dir():
            names = (f"{folder}/{name}" for name in ctx.container.names_in(folder))
            found += [ctx.path(name).read_text() for name in names if ctx.path(name).is_file()]
    return found


def reached(ctx: ContainerContext) -> list[Repository]:
    """The configured repositories that answer."""
    through = any(ctx.env.get(name) for name in _PROXIES)
    return [each for each in repositories(ctx) if each.reachable and (through or not each.proxied)]


def update(ctx: ContainerContext) -> list[Repository]:
    """Read the repositories' indexes; which answered. RefusedError."""
    ctx.log("Updating the package cache...")
    found = reached(ctx)
    red_hat = ctx.host.spec.os.id in ("rhel", "rhcos")
    if not found:
        advice = "Ensure that the cluster can access the proper networks."
        unreached = "FATAL: failed to reach RHEL package repositories" if red_hat else "Failed to update package cache"
        raise RefusedError(f"{unreached}. {advice}")
    if red_hat:
        _red_hat(ctx, found)
    return found


def _red_hat(ctx: ContainerContext, found: list[Repository]) -> None:
    kernel, os = ctx.host.kernel, ctx.host.spec.os
    if not _RHEL_RELEASE.search(kernel):
        ctx.error(f"Unable to resolve RHEL version from kernel version: {kernel}")  # the major version is used then
    if not any(each.metadata for each in found):
        major = os.version_id.partition(".")[0]
        tried = ", ".join(dict.fromkeys((os.version_id, major)))
        raise RefusedError(f"FATAL: failed to update the dnf metadata cache; tried the releases {tried}")
    if all(each.entitlement for each in found) and not _entitled(ctx):
        raise RefusedError(
            "FATAL: packages for the build cannot be installed. RHEL entitlement may be improperly deployed."
        )


def _entitled(ctx: ContainerContext) -> bool:
    folders = (ctx.path(folder) for folder in _ENTITLEMENTS)
    return any(entry.suffix == ".pem" for folder in folders if folder.is_dir() for entry in folder.iterdir())


async def headers(ctx: ContainerContext, kernel: str, found: list[Repository]) -> None:
    """Have what a build for a kernel needs. RefusedError."""
    ctx.log("Resolving Linux kernel version...")
    having = [each for each in found if each.has(kernel)]
    if not having:
        raise RefusedError(
            f"Could not resolve Linux kernel version: no repository has linux-headers-{kernel}"
            if ctx.host.spec.os.id not in ("rhel", "rhcos")
            else f"Could not resolve Linux kernel version: no repository has kernel-headers-{kernel}"
        )
    ctx.log(f"Proceeding with Linux kernel version {kernel}")
    ctx.log("Installing Linux kernel headers...")
    await ctx.clock.sleep(min(each.seconds for each in having))
    if all(kernel in each.unreadable_kernels for each in having):
        raise RefusedError("Could not locate Linux kernel version string")
