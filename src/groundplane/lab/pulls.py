"""What registries answer a node that pulls an image, where they do not simply give it.

A file of the host, `/var/lib/groundplane/pulls.yaml`, names images and answers; without it every registry gives what
the lab knows. An image that is named is not on the node's disk either: its copy was cleaned up.
"""

import fnmatch
from typing import Final

import msgspec
import yaml

from .host import HostError, SimulatedHost

FILE: Final = "/var/lib/groundplane/pulls.yaml"
GONE, REFUSED, UNREACHABLE, UNTRUSTED = "gone", "refused", "unreachable", "untrusted"
_SAYS: Final = {
    GONE: "failed to resolve reference {image}: {image}: not found",
    REFUSED: "failed to resolve reference {image}: pull access denied, repository does not exist or may require "
    "authorization: authorization failed: no basic auth credentials: 401 Unauthorized",
    UNREACHABLE: 'failed to resolve reference {image}: failed to do request: Head "https://{registry}/v2/": dial tcp: '
    "lookup {registry}: no such host",
    UNTRUSTED: 'failed to resolve reference {image}: failed to do request: Head "https://{registry}/v2/": tls: failed '
    "to verify certificate: x509: certificate signed by unknown authority",
}
"""What a container runtime says, by answer."""


class _World(msgspec.Struct, forbid_unknown_fields=True):
    pulls: dict[str, str] = {}


def refusal(host: SimulatedHost, reference: str) -> str:
    """Why the node cannot pull an image; empty where its registry gives it. HostError if the file is malformed."""
    for pattern, answer in _known(host).items():
        if fnmatch.fnmatchcase(reference, pattern):
            said = _SAYS[answer].format(image=f'"{reference}"', registry=reference.partition("/")[0])
            return f'failed to pull and unpack image "{reference}": {said}'
    return ""


def answer(host: SimulatedHost, pattern: str, how: str | None) -> None:
    """Have registries answer so for images (a pattern with `*`), or give them again."""
    known = {each: said for each, said in _known(host).items() if each != pattern}
    if how is not None:
        known[pattern] = how
    if known:
        host.root.write_atomic(FILE, yaml.safe_dump({"pulls": known}))
    else:
        host.root.remove(FILE)


def _known(host: SimulatedHost) -> dict[str, str]:
    if not host.root.exists(FILE):
        return {}
    try:
        known = msgspec.convert(yaml.safe_load(host.root.read_text(FILE)) or {}, _World).pulls
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise HostError(f"{FILE}: {error}; it says by image what registries answer") from error
    if unknown := sorted(set(known.values()) - set(_SAYS)):
        raise HostError(f"{FILE}: unknown answers {', '.join(unknown)}; there are {', '.join(_SAYS)}")
    return known
