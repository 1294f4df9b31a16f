"""Version strings as clusters print them: vendors' suffixes off, numbers as numbers, operating systems as matrix keys.

Everything here reads text and decides nothing; what is supported is the support matrix's (matrix.py). Rules are
contracts/admin-workflow.md 4.
"""

import re
from collections.abc import Mapping
from typing import Final, Self

import msgspec

from ..api import names

Minor = tuple[int, int]
"""Major and minor number, such as those of Kubernetes."""


def numbers(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with: ``v580.126.20-x`` is (580, 126, 20); empty when it begins with none."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", text.strip())
    return tuple(map(int, match[1].split("."))) if match else ()


def minor(text: str) -> Minor | None:
    """Major and minor of a version with any vendor's suffix (``v1.32.6+rke2r1``), or None when it has none."""
    found = numbers(text)
    return (found[0], found[1]) if len(found) >= 2 else None


def minor_text(version: Minor) -> str:
    """``1.33``."""
    return f"{version[0]}.{version[1]}"


class Minors:
    """An inclusive range of minor versions. A plain class, as msgspec would read a Struct from an object only."""

    __slots__ = ("high", "low")

    def __init__(self, low: Minor, high: Minor) -> None:
        self.low: Final = low
        self.high: Final = high

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``1.32-1.36`` or ``1.26``.

        Raises:
            ValueError: anything else, or a range that ends before it begins.
        """
        match = re.fullmatch(r"(\d+)\.(\d+)(?:-(\d+)\.(\d+))?", text)
        if match is None:
            raise ValueError(f"{text!r} is no range of minor versions such as 1.32-1.36")
        low = (int(match[1]), int(match[2]))
        high = (int(match[3]), int(match[4])) if match[3] else low
        if high < low:
            raise ValueError(f"{text!r} ends before it begins")
        return cls(low, high)

    def __contains__(self, version: Minor) -> bool:
        return self.low <= version <= self.high

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Minors) and (self.low, self.high) == (other.low, other.high)

    def __hash__(self) -> int:
        return hash((self.low, self.high))

    def __str__(self) -> str:
        low, high = minor_text(self.low), minor_text(self.high)
        return low if low == high else f"{low}-{high}"


class Patterns:
    """Versions listed as ``2.1.*`` or ``>=1.7.30,<1.8``."""

    __slots__ = ("below", "low", "text")

    def __init__(self, text: str, low: tuple[int, ...], below: tuple[int, ...]) -> None:
        self.text: Final = text
        self.low: Final = low
        self.below: Final = below

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one pattern.

        Raises:
            ValueError: neither of the two forms.
        """
        if match := re.fullmatch(r"(\d+)\.(\d+)\.\*", text):
            major, minor_number = int(match[1]), int(match[2])
            return cls(text, (major, minor_number), (major, minor_number + 1))
        if match := re.fullmatch(r">=([\d.]+),<([\d.]+)", text):
            return cls(text, numbers(match[1]), numbers(match[2]))
        raise ValueError(f"{text!r} is no pattern of versions such as 2.1.* or >=1.7.30,<1.8")

    def __contains__(self, version: tuple[int, ...]) -> bool:
        return self.low <= version < self.below

    def __str__(self) -> str:
        return self.text


# --- Container runtimes ----------------------------------------------------------------------------------------------


class Runtime(msgspec.Struct, frozen=True):
    """A node's ``containerRuntimeVersion``, taken apart."""

    kind: str
    """``containerd``, ``cri-o``, ``docker`` or whatever else stands before ``://``."""
    version: tuple[int, ...]
    """Empty when there is none to read."""
    text: str

    @property
    def words(self) -> str:
        """``containerd 1.7.28``, without a distribution's suffix."""
        return f"{self.kind} {'.'.join(map(str, self.version))}".strip()


def runtime(text: str) -> Runtime | None:
    """Take ``containerd://1.7.28-k3s1`` apart; suffixes (``~ds1``, ``-0ubuntu1``) go. None when it has no scheme."""
    kind, separator, version = text.strip().partition("://")
    return Runtime(kind.lower(), numbers(version), text.strip()) if separator and kind else None


# --- Operating systems and distributions -----------------------------------------------------------------------------

RHCOS: Final = "rhcos"
_OS_IMAGES: Final = (
    (r"Red Hat Enterprise Linux CoreOS\b.*|.*\bCoreOS\b.*Red Hat.*", RHCOS, False),
    (r"Ubuntu (\d+\.\d+).*", "ubuntu", True),
    (r"Red Hat Enterprise Linux\D*(\d+\.\d+).*", "rhel", True),
    (r"Rocky Linux (\d+\.\d+).*", "rocky", True),
    (r"AlmaLinux (\d+\.\d+).*", "almalinux", True),
    (r"Oracle Linux\D*(\d+\.\d+).*", "ol", True),
    (r"CentOS\D*(\d+).*", "centos", True),
    (r"SUSE Linux Enterprise\D*(\d+).*", "sles", True),
    (r"Debian GNU/Linux (\d+).*", "debian", True),
    (r"Amazon Linux (\d+).*", "amzn", True),
    (r"Container-Optimized OS.*", "cos", False),
)
"""Forms of ``status.nodeInfo.osImage``, the ID they mean, and whether a version follows."""


def os_key(labels: Mapping[str, str], os_image: str, *, openshift: bool = False) -> str:
    """The matrix's key of a node's operating system, such as ``rhel9.6``; empty when nothing tells it.

    Labels of node feature discovery come first, then ``osImage``. Red Hat CoreOS (ID ``rhcos`` or ``rhel``) is
    ``rhcos`` on OpenShift, where its version says the same as OpenShift's.
    """
    os_id = labels.get(names.OS_RELEASE_ID, "").lower()
    version = labels.get(names.OS_RELEASE_VERSION_ID, "")
    key = f"{os_id}{version}" if os_id and version else _from_image(os_image)
    if os_id == RHCOS or (openshift and re.fullmatch(r"rhel.*|rhcos.*", key)):
        return RHCOS
    return key


def _from_image(os_image: str) -> str:
    for pattern, os_id, versioned in _OS_IMAGES:
        if match := re.fullmatch(pattern, os_image.strip()):
            return f"{os_id}{match[1]}" if versioned else os_id
    return ""


def os_major(key: str) -> str:
    """``rhel9`` for ``rhel9.6``: the key without what follows the major number."""
    return key.partition(".")[0]


def os_parts(key: str) -> tuple[str, str]:
    """ID and version of a key: ``rhel9.6`` is ("rhel", "9.6")."""
    match = re.fullmatch(r"([a-z_\-]*)(.*)", key)
    return (match[1], match[2]) if match else ("", key)


_KUBELET_SUFFIXES: Final = (
    ("+k3s", "k3s"),
    ("+rke2", "rke2"),
    ("+k0s", "k0s"),
    ("-gke.", "gke"),
    ("-eks-", "eks"),
    ("+vmware", "vks"),
)
_DISTRIBUTION_LABELS: Final = (
    ("node.openshift.io/os_id", "openshift"),
    ("microk8s.io/cluster", "microk8s"),
    ("kubernetes.azure.com/cluster", "aks"),
    ("cloud.google.com/gke-nodepool", "gke"),
    ("eks.amazonaws.com/nodegroup", "eks"),
)


def distribution(kubelet: str, labels: Mapping[str, str]) -> str:
    """Which distribution of Kubernetes a node runs, as the matrix names it; ``k8s`` when nothing says otherwise."""
    for suffix, name in _KUBELET_SUFFIXES:
        if suffix in kubelet:
            return name
    return next((name for label, name in _DISTRIBUTION_LABELS if label in labels), "k8s")


OPENSHIFT_MINORS_BEHIND: Final = 13
"""OpenShift 4.N carries Kubernetes 1.(N+13)."""


def openshift_of(kubernetes: Minor) -> Minor:
    """The OpenShift version that carries this Kubernetes."""
    return (4, kubernetes[1] - OPENSHIFT_MINORS_BEHIND)


# --- Kernels ---------------------------------------------------------------------------------------------------------


def kernel_series(kernel: str) -> str:
    """``6.8`` of ``6.8.0-60-generic``; empty when it begins with no two numbers."""
    found = minor(kernel)
    return minor_text(found) if found else ""


def kernel_flavour(kernel: str) -> str:
    """``azure-fde`` of Ubuntu's ``6.8.0-1021-azure-fde``; empty for kernels that are not named so."""
    match = re.fullmatch(r"\d+\.\d+\.\d+-\d+-(.+)", kernel)
    return match[1] if match else ""
