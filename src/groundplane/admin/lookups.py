"""What the support matrix says of one release on one system: verdicts, each with its reason and the row it came from.

The order of a lookup is release, family, row of the operating system, Kubernetes minor, then the release's own limit
(contracts/admin-workflow.md 4). What is not listed is "not validated", a warning; only what is known not to work
fails. Nothing here looks at a cluster: checks bring what they saw.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, Self

import msgspec

from ..api import names
from ..api.release import Release
from ..diagnose.findings import Outcome
from ..operands import images
from .matrix import Architecture, Family, Matrix, Nri, OsRow, Precompiled, ReleaseRow, RuntimePaths
from .versions import (
    RHCOS,
    Minor,
    Minors,
    kernel_flavour,
    kernel_series,
    minor,
    minor_text,
    numbers,
    openshift_of,
    os_major,
    os_parts,
    runtime,
)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the matrix says of one thing."""

    outcome: Outcome
    reason: str
    row: str = ""
    """Path within the matrix of what decided, such as ``platforms.26.3.os.rhel9.6``."""
    fix: tuple[str, ...] = ()
    blocks: bool = False
    """A warning that nothing goes on over unless it is forced."""


def _yes(reason: str, row: str) -> Verdict:
    return Verdict(outcome=Outcome.PASS, reason=reason, row=row)


def _unlisted(reason: str, row: str, *fix: str, blocks: bool = False) -> Verdict:
    return Verdict(outcome=Outcome.WARN, reason=f"{reason}: not validated", row=row, fix=fix, blocks=blocks)


def _broken(reason: str, row: str, *fix: str) -> Verdict:
    return Verdict(outcome=Outcome.FAIL, reason=reason, row=row, fix=fix)


_CLOUDS: Final = ("eks", "gke", "aks")
_COLUMNS: Final = ("k8s", "rke2", "k3s", "k0s", "vks", "microk8s")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A release of the operator, looked up in a matrix. Releases and families the matrix lacks can be asked, too."""

    matrix: Matrix
    version: str
    """Without ``v``: ``26.3.3``."""
    family: str
    row: ReleaseRow | None
    platform: Family | None

    @classmethod
    def of(cls, matrix: Matrix, text: str) -> Self:
        """Find a release: ``v26.3.3``, ``26.3.3``, or ``26.3`` for the newest listed of its family.

        Raises:
            ValueError: not a release's version.
        """
        match = re.fullmatch(r"v?(\d+\.\d+)(\.\d+)?", text.strip())
        if match is None:
            raise ValueError(f"{text!r} is no release of the GPU Operator; give one such as v26.3.3")
        family = match[1]
        version = f"{family}{match[2]}" if match[2] else _newest(matrix, family)
        return cls(
            matrix=matrix,
            version=version,
            family=family,
            row=matrix.releases.get(f"v{version}"),
            platform=matrix.platforms.get(family),
        )

    @property
    def _path(self) -> str:
        return f"platforms.{self.family}"

    # --- The release itself ------------------------------------------------------------------------------------------

    def listed(self) -> Verdict:
        """Whether the matrix knows the release."""
        if self.row is not None:
            return _yes(f"release v{self.version} is listed", f"releases.v{self.version}")
        where = f"family {self.family} is" if self.platform is not None else "neither it nor its family is"
        return _unlisted(
            f"release v{self.version} is not in the matrix of {self.matrix.data_as_of}, {where}", "releases"
        )

    def lifecycle(self) -> Verdict:
        """Supported, deprecated or ended, by the family's position from the newest."""
        order = self.matrix.family_order
        row = "rules.family_order"
        if self.family not in order:
            return _unlisted(f"family {self.family} is not in the matrix of {self.matrix.data_as_of}", row)
        behind = len(order) - 1 - order.index(self.family)
        if behind == 0:
            return _yes(f"family {self.family} is supported", row)
        word = "deprecated (critical bugs and CVEs only)" if behind == 1 else "past its end of support"
        reason = f"family {self.family} is {word}; the newest is {order[-1]}"
        return Verdict(outcome=Outcome.WARN, reason=reason, row=row, fix=(f"plan an upgrade to {order[-1]}",))

    # --- Kubernetes and operating system -----------------------------------------------------------------------------

    def operating_system(self, key: str, arch: str = "amd64", *, cloud: str = "", vgpu: bool = False) -> Verdict:
        """Whether a node's operating system is listed.

        Args:
            key: the matrix's key, such as ``rhel9.6`` (versions.os_key).
            arch: the machine's architecture as Kubernetes names it.
            cloud: ``eks``, ``gke`` or ``aks``; their rows have operating systems of their own.
            vgpu: some rows are listed for vGPU only.
        """
        if self.platform is None:
            return self.listed()
        if not key:
            return Verdict(outcome=Outcome.UNKNOWN, reason="the node does not say which operating system it runs")
        path = f"{self._path}.os.{key}"
        row = self.platform.os.get(key)
        if row is None:
            return self._os_elsewhere(self.platform, key, cloud=cloud, vgpu=vgpu)
        release = numbers(self.version)
        if row.since and release < numbers(row.since):
            return _unlisted(f"{key} is listed from {row.since}", path, f"use v{row.since} or newer")
        if row.until and release > numbers(row.until):
            return _unlisted(f"{key} is listed up to {row.until} only", path)
        if row.arch and arch not in row.arch:
            return _unlisted(f"{key} is listed for {', '.join(row.arch)}, not for {arch}", path)
        return _yes(f"{key} is listed for {self.family}", path)

    def _os_elsewhere(self, platform: Family, key: str, *, cloud: str, vgpu: bool) -> Verdict:
        os_id, version = os_parts(key)
        if cloud in _CLOUDS and key in platform.csp.os:
            return _yes(f"{key} is listed for managed Kubernetes", f"{self._path}.csp.os")
        if vgpu and key in platform.vgpu_os_extra:
            return _yes(f"{key} is listed for vGPU", f"{self._path}.vgpu_os_extra.{key}")
        if version.partition(".")[0] in platform.partner_validated.get(os_id, ()):
            return _yes(f"{key} is validated by its vendor", f"{self._path}.partner_validated.{os_id}")
        near = [known for known in platform.os if os_parts(known)[0] == os_id]
        listed = f"; listed: {', '.join(near)}" if near else ""
        return _unlisted(f"{key} is not listed for {self.family}{listed}", f"{self._path}.os")

    def kubernetes(self, version: str, key: str = "", distribution: str = "k8s") -> Verdict:
        """Whether a Kubernetes version is listed for the release on an operating system.

        Args:
            version: as the API server or a kubelet says it, any suffix.
            key: the operating system's key; rows that are not there give way to the family's range.
            distribution: as versions.distribution names it.
        """
        found = minor(version)
        if self.platform is None:
            return self.listed()
        if found is None:
            return Verdict(outcome=Outcome.UNKNOWN, reason=f"{version!r} is no version of Kubernetes")
        name, allowed, path = self._range(self.platform, key, distribution)
        if allowed is None:
            return _unlisted(f"{distribution} on {key or 'this system'} is not listed for {self.family}", path)
        asked = openshift_of(found) if name == "OpenShift" else found
        if asked not in allowed:
            return _unlisted(f"{name} {minor_text(asked)} is not in {allowed} of {self.family}", path)
        return self._within_patch(self.platform, found) or _yes(f"{name} {minor_text(asked)} is in {allowed}", path)

    def _range(self, platform: Family, key: str, distribution: str) -> tuple[str, Minors | None, str]:
        """The kind of version, its range and the range's path."""
        if distribution in _CLOUDS:
            clouds: Mapping[str, Minors | None] = msgspec.structs.asdict(platform.csp)
            return "Kubernetes", clouds[distribution], f"{self._path}.csp.{distribution}"
        row = platform.os.get(key)
        if key == RHCOS and row is not None:
            return "OpenShift", row.openshift, f"{self._path}.os.{key}.openshift"
        if row is None:
            low, high = minor(platform.kubernetes.min), minor(platform.kubernetes.max)
            allowed = Minors(low, high) if low and high else None
            return "Kubernetes", allowed, f"{self._path}.kubernetes"
        return "Kubernetes", _column(row, distribution), f"{self._path}.os.{key}.{distribution}"

    def _within_patch(self, platform: Family, found: Minor) -> Verdict | None:
        """The limit of the release's own patch, which may stop before its family's."""
        at = numbers(self.version)
        limits = [(numbers(patch), patch, top) for patch, top in platform.kubernetes.max_by_patch.items()]
        fitting = [entry for entry in sorted(limits) if entry[0] <= at]
        if not fitting:
            return None
        _, patch, top = fitting[-1]
        if found <= (minor(top) or found):
            return None
        newer = next((name for _, name, limit in sorted(limits) if found <= (minor(limit) or found)), "")
        fix = (f"use v{newer} or newer",) if newer else ()
        path = f"{self._path}.kubernetes.max_by_patch.{patch}"
        return _unlisted(f"Kubernetes {minor_text(found)} is beyond {top}, where v{self.version} stops", path, *fix)

    # --- Container runtime -------------------------------------------------------------------------------------------

    def runtime(self, text: str, key: str = "") -> Verdict:
        """Whether a node's ``containerRuntimeVersion`` is listed; Docker is known not to work."""
        found = runtime(text)
        if found is None:
            return Verdict(outcome=Outcome.UNKNOWN, reason=f"{text!r} is no container runtime's version")
        if found.kind == "docker":
            reason = f"{found.words}: Docker is no runtime of the Kubernetes releases that are supported"
            return _broken(reason, f"{self._path}.containerd", "move the node to containerd or CRI-O")
        if self.platform is None:
            return self.listed()
        if found.kind == "cri-o":
            return self._system_listed(found.words, key, self.platform.crio_os, f"{self._path}.crio_os")
        if found.kind != "containerd":
            return _unlisted(f"{found.words} is no listed runtime", f"{self._path}.containerd")
        limits, path = self.platform.containerd, f"{self._path}.containerd"
        low, high = numbers(limits.min), numbers(limits.max)
        if not low <= found.version[:2] <= high:
            return _unlisted(f"{found.words} is not in {limits.min}-{limits.max} of {self.family}", path)
        return self._system_listed(found.words, key, self.platform.containerd_os, f"{self._path}.containerd_os")

    @staticmethod
    def _system_listed(words: str, key: str, systems: Iterable[str], path: str) -> Verdict:
        if not key or key in systems or os_major(key) in systems:
            return _yes(f"{words} is listed" + (f" on {key}" if key else ""), path)
        return _unlisted(f"{words} is not listed on {key}", path)

    def nri(self, runtime_text: str, *, cdi: bool = True, toolkit: bool = True) -> Verdict:
        """Whether the toolkit's NRI plugin can be used; what is not listed blocks unless forced (4, "Not listed")."""
        rules, path = (self.platform.nri if self.platform else None), f"{self._path}.nri"
        if rules is None:
            return _unlisted(f"{self.family} has no NRI plugin", path, "leave cdi.nriPluginEnabled off", blocks=True)
        if rules.requires_cdi and not cdi:
            return _broken("NRI needs cdi.enabled=true", f"{path}.requires_cdi", "set cdi.enabled=true")
        if rules.requires_toolkit and not toolkit:
            return _broken("NRI needs toolkit.enabled=true", f"{path}.requires_toolkit", "set toolkit.enabled=true")
        found = runtime(runtime_text)
        if found is None:
            return Verdict(outcome=Outcome.UNKNOWN, reason=f"{runtime_text!r} is no container runtime's version")
        if found.kind == "containerd":
            if any(found.version in pattern for pattern in rules.containerd):
                return _yes(f"{found.words} is listed for NRI", f"{path}.containerd")
            listed = ", ".join(map(str, rules.containerd))
            off = "leave cdi.nriPluginEnabled off, or update containerd"
            return _unlisted(f"{found.words} is not in {listed}", f"{path}.containerd", off, blocks=True)
        if found.kind == "cri-o":
            return self._nri_crio(rules, found.words, found.version)
        return _unlisted(f"{found.words} is not listed for NRI", path, blocks=True)

    def _nri_crio(self, rules: Nri, words: str, version: tuple[int, ...]) -> Verdict:
        path = f"{self._path}.nri.crio"
        since = rules.crio.since_patch
        if since and numbers(self.version) < numbers(since):
            return _unlisted(f"CRI-O is listed for NRI from v{since}", path, f"use v{since} or newer", blocks=True)
        if version < numbers(rules.crio.min):
            update = f"update CRI-O to {rules.crio.min}, or leave cdi.nriPluginEnabled off"
            return _unlisted(f"{words} is older than {rules.crio.min}", f"{path}.min", update, blocks=True)
        return _yes(f"{words} is listed for NRI", path)

    def toolkit_env(self, distribution: str, env: Mapping[str, str]) -> Verdict:
        """Whether the toolkit is told the paths of the distribution's containerd, and no other's (A49; NRI off)."""
        paths, path = self._paths(distribution)
        if paths is None and env.get("CONTAINERD_CONFIG") and env.get("CONTAINERD_SOCKET"):
            return _yes(f"toolkit.env has paths of its own for {distribution}", path)
        if paths is None:
            reason = f"no paths of {distribution}'s containerd are listed"
            return _unlisted(reason, path, "set CONTAINERD_CONFIG and CONTAINERD_SOCKET in toolkit.env")
        if path.endswith(".default"):
            return self._foreign_env(distribution, env)
        wrong = {name: value for name, value in paths.env.items() if env.get(name) != value}
        if not wrong:
            return _yes(f"toolkit.env has the paths of {distribution}", path)
        return Verdict(
            outcome=Outcome.WARN,
            reason=f"toolkit.env lacks {distribution}'s {', '.join(wrong)}: the toolkit would edit another file",
            row=path,
            fix=tuple(f"set {name}={value} in toolkit.env" for name, value in wrong.items()),
        )

    def runtime_env(self, distribution: str) -> dict[str, str]:
        """The toolkit's variables that a distribution needs; empty where its own defaults fit, or none are listed."""
        paths, path = self._paths(distribution)
        return {} if paths is None or path.endswith(".default") else paths.env

    def _foreign_env(self, distribution: str, env: Mapping[str, str]) -> Verdict:
        """On a node with the usual paths: whether none is set that belongs to another distribution."""
        for other in ("microk8s", "k3s", "rke2"):
            row: RuntimePaths = getattr(self.matrix.runtime_paths, other)
            theirs = sorted(name for name, value in row.env.items() if env.get(name) == value)
            if theirs:
                reason = f"toolkit.env has {other}'s {', '.join(theirs)}, the node runs {distribution}"
                remove = (f"remove {', '.join(theirs)} from toolkit.env",)
                return Verdict(outcome=Outcome.WARN, reason=reason, row=f"runtime_paths.{other}", fix=remove)
        return _yes("the toolkit's own paths fit", "runtime_paths.default")

    def _paths(self, distribution: str) -> tuple[RuntimePaths | None, str]:
        """The toolkit's variables for a distribution and their path; None where only its own would do."""
        table = self.matrix.runtime_paths
        own: Mapping[str, RuntimePaths] = {"microk8s": table.microk8s, "k3s": table.k3s, "rke2": table.rke2}
        toolkit = self.row.components.get("container_toolkit", "") if self.row is not None else ""
        if distribution == "gke" and toolkit.startswith("v1.18.0"):
            return table.gke, "runtime_paths.gke"
        if distribution == "k0s":
            return None, "runtime_paths"
        row = own.get(distribution)
        return (row, f"runtime_paths.{distribution}") if row else (table.default, "runtime_paths.default")

    # --- Driver ------------------------------------------------------------------------------------------------------

    def driver(self, version: str) -> Verdict:
        """Whether a full driver version is listed for the release."""
        if self.row is None:
            return self.listed()
        path = f"releases.v{self.version}.driver"
        if version == self.row.driver.default:
            return _yes(f"driver {version} is what v{self.version} installs", f"{path}.default")
        if version == self.row.driver.recommended or version in self.row.drivers_listed:
            return _yes(f"driver {version} is listed for v{self.version}", f"releases.v{self.version}.drivers_listed")
        return _unlisted(
            f"driver {version} is not listed for v{self.version}", f"releases.v{self.version}.drivers_listed"
        )

    def driver_form(self, version: str, *, precompiled: bool) -> Verdict:
        """Whether ``driver.version`` has the form that the kind of image asks for (A41).

        Precompiled images are named by a branch, all others by a full version; a digest and an empty version (the
        chart's default) are neither. The chart's default is a full version, so precompiled always needs one set.
        """
        path = "rules.precompiled_tag" if precompiled else "rules.conventional_tag"
        if version.startswith("sha256:"):
            return _yes("driver.version is a digest", path)
        branch = re.fullmatch(r"\d+", version) is not None
        if precompiled and not branch:
            reason = f"driver.usePrecompiled=true needs a branch, driver.version is {version or 'not set'}"
            return _broken(reason, path, f"set driver.version to a branch such as {self._branch(version)}")
        if not precompiled and branch:
            reason = f"driver.version={version} is a branch, driver.usePrecompiled is off"
            return _broken(reason, path, "set a full driver version, or driver.usePrecompiled=true")
        return _yes(f"driver.version {version or '(default)'} fits", path)

    def _branch(self, version: str) -> int:
        if found := numbers(version):
            return found[0]
        return (
            self.row.driver.branch if self.row is not None else self.matrix.releases[_last(self.matrix)].driver.branch
        )

    def precompiled(self, key: str, kernel: str, branch: str) -> Verdict:
        """Whether a precompiled image is published for an operating system, kernel and branch (A40)."""
        if self.platform is None:
            return self.listed()
        path = f"{self._path}.precompiled"
        tag = precompiled_tag(branch, kernel, key)
        row = self.platform.precompiled.get(key)
        if row is None:
            listed = ", ".join(self.platform.precompiled)
            build = "use the conventional driver image, or build one for this kernel"
            return _unlisted(f"no precompiled images are published for {key} (there are for {listed})", path, build)
        problem = _precompiled_problem(row, kernel, branch)
        if problem:
            other = (
                f"use a listed branch and kernel, or build {tag}" if branch else "set driver.version to a listed branch"
            )
            return _unlisted(problem, f"{path}.{key}", other)
        return _yes(f"image tag {tag} is listed", f"{path}.{key}")

    def image_os_tag(self, key: str) -> str:
        """The operating system as tags of conventional driver images name it (``rhel9``, ``ubuntu24.04``)."""
        os_id, version = os_parts(key)
        order = self.matrix.family_order
        at = order.index(self.family) if self.family in order else len(order)
        release = Release.V26_7 if "26.7" not in order or at >= order.index("26.7") else Release.V26_3
        return images.os_tag(os_id, version, release)

    def image_tag_change(self, source: "Target", key: str) -> Verdict:
        """Whether an upgrade from ``source`` asks for driver images under another tag: mirrors must have them."""
        before, after = source.image_os_tag(key), self.image_os_tag(key)
        if before == after:
            return _yes(f"driver images of {key} keep the tag {after}", "rules.os_tag")
        reason = (
            f"driver images of {key} were tagged {before} in {source.family} and are tagged {after} in {self.family}"
        )
        mirror = f"mirror the driver image under its tag …-{after}"
        return Verdict(outcome=Outcome.WARN, reason=reason, row="rules.os_tag", fix=(mirror,))

    def pin(self, architecture: str) -> str:
        """The newest listed driver that still knows a GPU architecture, where the release's default does not.

        Empty when the default does, or none is listed.
        """
        row = self.matrix.gpu.architectures.get(architecture)
        if self.row is None or row is None or row.last_branch is None or self.row.driver.branch <= row.last_branch:
            return ""
        fitting = [version for version in self.row.drivers_listed if numbers(version)[0] <= row.last_branch]
        return max(fitting, key=numbers, default="")


def _newest(matrix: Matrix, family: str) -> str:
    patches = [name.removeprefix("v") for name, row in matrix.releases.items() if row.family == family]
    return max(patches, key=numbers, default=f"{family}.0")


def _last(matrix: Matrix) -> str:
    return max(matrix.releases, key=numbers)


def _column(row: OsRow, distribution: str) -> Minors | None:
    columns: Mapping[str, Minors | None] = {name: getattr(row, name) for name in _COLUMNS}
    return columns.get(distribution)


def _precompiled_problem(row: Precompiled, kernel: str, branch: str) -> str:
    series, flavour = kernel_series(kernel), kernel_flavour(kernel)
    if not branch.isdigit() or int(branch) not in row.branches:
        return f"branch {branch or '(none)'} is not in {', '.join(map(str, row.branches))}"
    if series not in row.kernels:
        return f"kernel {kernel} is not of {', '.join(row.kernels)}"
    if flavour not in row.flavours:
        return f"kernel flavour {flavour or '(none)'} is not in {', '.join(row.flavours)}"
    return ""


def precompiled_tag(branch: str, kernel: str, key: str) -> str:
    """``<branch>-<kernel>-<os>``, the tag of a precompiled driver image."""
    return f"{branch}-{kernel}-{key}"


# --- GPUs ------------------------------------------------------------------------------------------------------------

_ARCHITECTURE_OF_FAMILY: Final = {"ada-lovelace": "ada"}
_SYSTEM_WORDS: Final = re.compile(r"DGX|HGX|NVL\d+")


class Gpu(msgspec.Struct, frozen=True):
    """What a node's labels say of its GPUs."""

    architecture: str
    """A key of ``gpu.architectures``; empty when the labels do not say."""
    product: str


def gpu_of(labels: Mapping[str, str]) -> Gpu | None:
    """The GPU that GPU feature discovery labelled a node with, or None before it has run there."""
    product = re.sub(r"-SHARED$|-MIG-.*$|-MIG-INVALID$", "", labels.get(names.GPU_PRODUCT, ""))
    family = labels.get("nvidia.com/gpu.family", "")
    if not product and not family:
        return None
    if re.search(r"\bGH200\b", product):
        return Gpu("grace_hopper", product)
    return Gpu(_ARCHITECTURE_OF_FAMILY.get(family, family), product)


def product_listed(matrix: Matrix, gpu: Gpu) -> Verdict:
    """Whether a product is one of those that the operator's platform page lists (A1)."""
    words = set(re.split(r"[-\s]+", gpu.product))
    for name, row in matrix.gpu.architectures.items():
        for product in row.products:
            if any(needed <= words for needed in _spellings(product)):
                return _yes(f"{gpu.product} is listed as {product}", f"gpu.architectures.{name}.products")
    return _unlisted(f"GPU {gpu.product or gpu.architecture} is not in the product list", "gpu.architectures")


def _spellings(product: str) -> list[set[str]]:
    """Each product a listed text stands for, as the words that its name must have; names of systems do not count."""
    found: list[set[str]] = [set()]
    for word in product.split():
        choices = [choice for choice in word.split("/") if not _SYSTEM_WORDS.fullmatch(choice)]
        if choices:
            found = [words | {choice} for words in found for choice in choices]
    return [words for words in found if words]


def _architecture(matrix: Matrix, name: str) -> tuple[Architecture | None, str]:
    return matrix.gpu.architectures.get(name), f"gpu.architectures.{name}"


def driver_branch(matrix: Matrix, architecture: str, driver: str) -> Verdict:
    """Whether a driver (a version or a branch) still knows a GPU architecture."""
    row, path = _architecture(matrix, architecture)
    found = numbers(driver)
    if row is None or not found:
        return Verdict(
            outcome=Outcome.UNKNOWN, reason=f"architecture {architecture or '?'} or driver {driver!r} unknown"
        )
    if row.last_branch is not None and found[0] > row.last_branch:
        reason = f"driver {driver} does not know {architecture} GPUs: branch {row.last_branch} was the last that did"
        return _broken(reason, f"{path}.last_branch", f"pin driver.version to branch {row.last_branch} for these nodes")
    return _yes(f"driver {driver} knows {architecture} GPUs", path)


def driver_minimum(matrix: Matrix, gpu: Gpu, driver: str) -> Verdict | None:
    """Whether a driver (a version or a branch) is as new as a product needs; None for products without a minimum."""
    words, found = set(re.split(r"[-\s]+", gpu.product)), numbers(driver)
    for product, minimum in matrix.gpu.driver_minimums.items():
        if not found or not any(needed <= words for needed in _spellings(product.partition(" on ")[0])):
            continue
        row = f"gpu.driver_minimums.{product}"
        if found < numbers(minimum)[: len(found)]:
            reason = f"driver {driver} is older than {minimum}, the first listed for {product}"
            return _unlisted(reason, row, f"set driver.version to {minimum} or newer")
        return _yes(f"driver {driver} is new enough for {product}", row)
    return None


def module_type(matrix: Matrix, architecture: str, kind: str, driver: str) -> Verdict:
    """Whether ``driver.kernelModuleType`` fits a GPU architecture and a driver (A42).

    Args:
        matrix: the support matrix.
        architecture: a key of ``gpu.architectures``; empty when not known, then the driver alone decides.
        kind: the field's value.
        driver: a driver's version or branch; empty when not known.
    """
    rules, path = matrix.gpu.kernel_module_type, "gpu.kernel_module_type"
    if kind not in rules.values:
        return _broken(f"{rules.field}={kind} is none of {', '.join(rules.values)}", f"{path}.values")
    if kind == "auto":
        return _auto(matrix, driver)
    row, row_path = _architecture(matrix, architecture)
    if row is None:
        return Verdict(
            outcome=Outcome.UNKNOWN, reason=f"which modules fit architecture {architecture or '?'} is unknown"
        )
    if kind == "open" and row.open is False:
        reason = f"open kernel modules do not work with {architecture} GPUs"
        return _broken(reason, f"{row_path}.open", f"set {rules.field}=proprietary or auto")
    if kind == "proprietary" and not row.proprietary:
        reason = f"proprietary kernel modules do not work with {architecture} GPUs"
        return _broken(reason, f"{row_path}.proprietary", f"set {rules.field}=open or auto")
    return _yes(f"{kind} kernel modules work with {architecture} GPUs", row_path)


def _auto(matrix: Matrix, driver: str) -> Verdict:
    rules, path = matrix.gpu.kernel_module_type, "gpu.kernel_module_type"
    found = numbers(driver)
    if not found:
        return _yes(f"{rules.field}=auto chooses by GPU and driver", path)
    if found[0] in rules.auto_not_supported_branches:
        reason = f"{rules.field}=auto does not work with driver {driver}"
        return _broken(reason, f"{path}.auto_not_supported_branches", f"set {rules.field}=open or proprietary")
    if not any(_from(entry, found) for entry in rules.auto_supported_from):
        reason = f"{rules.field}=auto with driver {driver} is not in {'; '.join(rules.auto_supported_from)}"
        return _unlisted(reason, f"{path}.auto_supported_from", f"set {rules.field}=open or proprietary")
    return _yes(f"{rules.field}=auto works with driver {driver}", f"{path}.auto_supported_from")


def _from(entry: str, version: tuple[int, ...]) -> bool:
    """Whether a version is the entry's, or later where the entry says so; of a branch its number alone counts."""
    base = numbers(entry)
    if len(version) == 1:
        return version[0] >= base[0]
    return version >= base if "later" in entry else version == base


def known_faults(matrix: Matrix, driver: str) -> list[Verdict]:
    """Faults known of a driver version."""
    return [
        Verdict(
            outcome=Outcome.WARN,
            reason=f"driver {driver}: {row.effect}, when {row.condition}",
            row=f"gpu.known_bad_drivers[{at}]",
            fix=tuple(f"use driver {fixed}" for fixed in row.fix),
        )
        for at, row in enumerate(matrix.gpu.known_bad_drivers)
        if any(_is_of(driver, listed) for listed in row.versions)
    ]


def _is_of(driver: str, listed: str) -> bool:
    """Whether a driver is a listed version, or of ``525 branch, before 525.105.17``."""
    if match := re.fullmatch(r"(\d+) branch, before ([\d.]+)", listed):
        found = numbers(driver)
        return len(found) > 1 and found[0] == int(match[1]) and found < numbers(match[2])
    return driver == listed
