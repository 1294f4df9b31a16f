"""The support matrix: which releases, systems, runtimes, drivers and GPUs NVIDIA validated together, as data.

The facts are in data/support-matrix.yaml and nowhere else; a newer file may be given in its place. This module
knows the file's shape and finds mistakes in it; what the rows mean for a cluster is lookups.py.
"""

import datetime
import functools
import re
import types
import typing
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import yaml
from msgspec import field

from .versions import Minors, Patterns, minor, numbers

SCHEMA_VERSION: Final = 1
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Lifecycle = Literal["supported", "deprecated", "end_of_support", "generally_available", "maintenance", "eol"]


class MatrixError(ValueError):
    """A support matrix cannot be used; the message names the file and the path within it."""


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all rows: a misspelt key is an error."""


class Rules(_Row, frozen=True):
    """Rules that hold across families; texts are for people."""

    versioning: str
    upgrade_path: str
    downgrade: str
    family_order: tuple[str, ...]
    lifecycle_policy: str
    helm: dict[str, Any]
    kubectl_required: bool
    gpu_cluster_mode: dict[str, Any]
    nvidiadriver_crd: dict[str, Any]
    same_os_on_all_gpu_nodes: dict[str, Any]
    community_kubernetes_support: str
    precompiled_tag: str
    conventional_tag: str
    os_tag: dict[str, Any]


class KubernetesRange(_Row, frozen=True):
    """Kubernetes minors of a family, and where early patches of it stop."""

    min: str
    max: str
    max_by_patch: dict[str, str] = field(default_factory=dict)


class OsRow(_Row, frozen=True):
    """An operating system's row: what it was validated with, by distribution of Kubernetes."""

    k8s: Minors | None = None
    rke2: Minors | None = None
    k3s: Minors | None = None
    k0s: Minors | None = None
    vks: Minors | None = None
    microk8s: Minors | None = None
    openshift: Minors | None = None
    """OpenShift's own versions, not Kubernetes'."""
    nkp: tuple[str, ...] = ()
    vsphere: tuple[str, ...] = ()
    hpe_ezmeral: str = ""
    arch: tuple[str, ...] = ()
    """Architectures of the machine; empty means all."""
    since: str = ""
    until: str = ""
    note: str = ""


class Clouds(_Row, frozen=True):
    """Managed Kubernetes; None is not listed."""

    eks: Minors | None
    gke: Minors | None
    aks: Minors | None
    os: tuple[str, ...]


class ContainerdRange(_Row, frozen=True):
    """containerd's minors, inclusive."""

    min: str
    max: str
    as_printed: str = ""


class NriCrio(_Row, frozen=True):
    """CRI-O's part of NRI."""

    min: str
    since_patch: str = ""


class Nri(_Row, frozen=True):
    """What the NRI plugin needs."""

    requires_cdi: bool
    containerd: tuple[Patterns, ...]
    crio: NriCrio
    runtime_must_enable: tuple[str, ...]
    requires_toolkit: bool = False
    k3s_rke2_k0s_env_not_needed: bool = True
    gpu_runtime_class_created: bool = True
    maturity: str = ""


class Precompiled(_Row, frozen=True):
    """Precompiled driver images of one operating system."""

    flavours: tuple[str, ...]
    kernels: tuple[str, ...]
    branches: tuple[int, ...]


class Family(_Row, frozen=True):
    """Platforms of one family of releases (``26.3``)."""

    kubernetes: KubernetesRange
    os: dict[str, OsRow]
    csp: Clouds
    containerd: ContainerdRange
    containerd_os: tuple[str, ...]
    crio_os: tuple[str, ...]
    nri: Nri | None
    precompiled: dict[str, Precompiled]
    vgpu_os_extra: dict[str, Minors] = field(default_factory=dict)
    partner_validated: dict[str, tuple[str, ...]] = field(default_factory=dict)
    ubuntu_kernels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    cdi_restrictions: tuple[str, ...] = ()
    driver_restrictions: tuple[str, ...] = ()
    network_operator: str = ""


class DriverRow(_Row, frozen=True):
    """The driver of a release: what the chart installs, and what the page came to recommend."""

    default: str
    branch: int
    recommended: str = ""
    recommended_note: str = ""


class ReleaseRow(_Row, frozen=True):
    """One release of the chart."""

    family: str
    chart_tagged: datetime.date
    driver: DriverRow
    components: dict[str, str]
    validator_image: str
    drivers_listed: tuple[str, ...] = ()


class Architecture(_Row, frozen=True):
    """A GPU architecture: usable kernel modules and the last driver branch that knows it."""

    open: bool | Literal["required"]
    proprietary: bool
    last_branch: int | None = None
    products: tuple[str, ...] = ()
    note: str = ""


class KernelModuleTypes(_Row, frozen=True):
    """Values of ``driver.kernelModuleType`` and where ``auto`` works."""

    field: str
    values: tuple[str, ...]
    default: str
    auto_supported_from: tuple[str, ...]
    auto_not_supported_branches: tuple[int, ...]
    deprecated_field: dict[str, str]


class KnownBadDriver(_Row, frozen=True):
    """Drivers with a known fault."""

    versions: tuple[str, ...]
    condition: str
    effect: str
    fix: tuple[str, ...]


class Gpus(_Row, frozen=True):
    """GPUs and drivers."""

    architectures: dict[str, Architecture]
    nvswitch_needs_fabric_manager: tuple[str, ...]
    driver_minimums: dict[str, str]
    kernel_module_type: KernelModuleTypes
    open_modules_required_by_feature: dict[str, str]
    known_bad_drivers: tuple[KnownBadDriver, ...]
    cdmm: dict[str, Any]
    igpu_unsupported: tuple[str, ...]
    arm_products: tuple[str, ...]
    deployment_models: tuple[str, ...]


class RuntimePaths(_Row, frozen=True):
    """Variables of the toolkit that a distribution of Kubernetes needs."""

    CONTAINERD_CONFIG: str = ""
    CONTAINERD_SOCKET: str = ""
    RUNTIME_CONFIG_SOURCE: str = ""
    RUNTIME_DROP_IN_CONFIG: str = ""
    note: str = ""
    applies_to: str = ""

    @property
    def env(self) -> dict[str, str]:
        """The variables that are listed."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if name.isupper() and value}


class RuntimePathTable(_Row, frozen=True):
    """:class:`RuntimePaths` by distribution."""

    default: RuntimePaths
    microk8s: RuntimePaths
    k3s: RuntimePaths
    rke2: RuntimePaths
    gke: RuntimePaths
    cdi_default_since: str
    dropin_default_since: str


class Matrix(_Row, frozen=True):
    """The whole file."""

    schema_version: int
    data_as_of: datetime.date
    rules: Rules
    lifecycle: dict[str, Lifecycle]
    lifecycle_history: dict[str, dict[str, Lifecycle]]
    platforms: dict[str, Family]
    precompiled_limits: tuple[str, ...]
    releases: dict[str, ReleaseRow]
    gpu: Gpus
    runtime_paths: RuntimePathTable
    discrepancies: tuple[str, ...]

    @property
    def family_order(self) -> tuple[str, ...]:
        """Families, oldest first."""
        return self.rules.family_order


# --- Loading ---------------------------------------------------------------------------------------------------------


@functools.cache
def shipped() -> Matrix:
    """The matrix that comes with groundplane."""
    resource = files(__package__) / "data" / "support-matrix.yaml"
    return parse(resource.read_text(encoding="utf-8"), "support-matrix.yaml (shipped)")


def load(path: Path | None = None) -> Matrix:
    """The matrix in a file, or the shipped one.

    Raises:
        MatrixError: the file cannot be read or used.
    """
    if path is None:
        return shipped()
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MatrixError(f"support matrix {path}: {error}") from error
    return parse(content, str(path))


def parse(content: str, source: str) -> Matrix:
    """Read a support matrix.

    Args:
        content: the YAML text.
        source: what to call it in errors.

    Raises:
        MatrixError: not YAML, another schema version, an unknown, missing or wrong value; the message has its path.
    """
    try:
        document = yaml.load(content, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise MatrixError(f"support matrix {source}: not YAML: {error}") from error
    if not isinstance(document, dict):
        raise MatrixError(f"support matrix {source}: not a mapping")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise MatrixError(
            f"support matrix {source}: schema_version: {version!r} is not {SCHEMA_VERSION}, the one this tool reads"
        )
    try:
        matrix: Matrix = _convert(document, Matrix)
    except msgspec.ValidationError as error:
        raise MatrixError(f"support matrix {source}: {_wrong(document, Matrix, '') or error}") from error
    for problem in _contradictions(matrix):
        raise MatrixError(f"support matrix {source}: {problem}")
    return matrix


def _convert(value: Any, kind: Any) -> Any:
    return msgspec.convert(value, kind, dec_hook=_special)


def _special(kind: type, value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, got {value!r}")
    readers: dict[type, Callable[[str], Any]] = {Minors: Minors.parse, Patterns: Patterns.parse}
    return readers[kind](value)


def _wrong(value: Any, kind: Any, path: str) -> str | None:
    """The innermost place that cannot be read and why, or None; msgspec names neither keys nor places in its paths."""
    try:
        _convert(value, kind)
    except msgspec.ValidationError as error:
        for inner, inner_kind, step in _inside(value, kind):
            if found := _wrong(inner, inner_kind, f"{path}{step}"):
                return found
        return f"{path.removeprefix('.') or 'document'}: {str(error).partition(' - at `')[0]}"
    return None


def _inside(value: Any, kind: Any) -> Iterator[tuple[Any, Any, str]]:
    """Each part of a value with the type it should have and its step of the path."""
    arguments = typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, _Row) and isinstance(value, dict):
        for row in msgspec.structs.fields(kind):
            if row.encode_name in value:
                yield value[row.encode_name], row.type, f".{row.encode_name}"
    elif typing.get_origin(kind) is dict and isinstance(value, dict):
        for key, entry in value.items():
            yield entry, arguments[1], f".{key}"
    elif typing.get_origin(kind) is tuple and isinstance(value, list):
        for at, entry in enumerate(value):
            yield entry, arguments[0], f"[{at}]"
    elif isinstance(kind, types.UnionType) and value is not None:
        yield value, next(one for one in arguments if one is not types.NoneType), ""


# --- What the shape cannot say ---------------------------------------------------------------------------------------


def _contradictions(matrix: Matrix) -> Iterator[str]:
    """Mistakes between rows, each with its path."""
    order = matrix.family_order
    for at, family in enumerate(order):
        if family not in matrix.platforms:
            yield f"rules.family_order[{at}]: family {family!r} has no row under platforms"
    for family, row in matrix.platforms.items():
        if family not in order:
            yield f"platforms.{family}: not in rules.family_order"
        yield from _family_mistakes(f"platforms.{family}", row)
    for name, release in matrix.releases.items():
        if release.family not in matrix.platforms:
            yield f"releases.{name}.family: no family {release.family!r} under platforms"
        if not re.fullmatch(r"v\d+\.\d+\.\d+", name):
            yield f"releases.{name}: no release's name; one is v26.3.3"
        if not name.startswith(f"v{release.family}."):
            yield f"releases.{name}.family: {release.family!r} is not this release's family"
        if numbers(release.driver.default)[:1] != (release.driver.branch,):
            yield f"releases.{name}.driver.branch: {release.driver.branch} is not of {release.driver.default!r}"


def _family_mistakes(path: str, family: Family) -> Iterator[str]:
    limits = {
        f"{path}.kubernetes.min": family.kubernetes.min,
        f"{path}.kubernetes.max": family.kubernetes.max,
        f"{path}.containerd.min": family.containerd.min,
        f"{path}.containerd.max": family.containerd.max,
        **{f"{path}.kubernetes.max_by_patch.{patch}": top for patch, top in family.kubernetes.max_by_patch.items()},
    }
    for where, version in limits.items():
        if minor(version) is None:
            yield f"{where}: {version!r} is no minor version"
    if family.nri is not None and minor(family.nri.crio.min) is None:
        yield f"{path}.nri.crio.min: {family.nri.crio.min!r} is no minor version"
