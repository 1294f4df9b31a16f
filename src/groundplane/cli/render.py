"""``groundplane render``: what a policy, or NVIDIADrivers, lead to, printed without any cluster."""

from typing import TYPE_CHECKING, Any

import click

from . import documents
from . import output as printing

if TYPE_CHECKING:
    from ..api.codec import Form, Loaded
    from ..api.nvidiadriver import NVIDIADriver
    from ..api.release import Release
    from ..cluster.views import NodeView
    from ..operator.plan import Offline

FORMATS = ["manifests", "yaml", "json"]
SAMPLE = {"kernel": "6.8.0-60-generic", "os": "ubuntu:24.04", "runtime": "containerd://2.1.4"}


@click.command("render")
@click.option(
    "-f",
    "--file",
    "path",
    required=True,
    metavar="FILE",
    help="The ClusterPolicy, or NVIDIADrivers; - for standard input.",
)
@click.option("--nodes", metavar="FILE", help="Nodes as YAML or JSON (`kubectl get nodes -o yaml`), or sample nodes.")
@click.option("--with", "given", metavar="FILE", multiple=True, help="ConfigMaps and Secrets that the policy names.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="manifests", show_default=True)
@click.option("--namespace", default="gpu-operator", show_default=True, help="The operator's namespace.")
@click.option("--release", "release_text", envvar="GROUNDPLANE_RELEASE", help="26.3.3 or 26.7.0 (the default).")
@click.option("--state", "states", multiple=True, metavar="NAME", help="Only this operand state; may be repeated.")
@click.option("--kernel", default=SAMPLE["kernel"], show_default=True, help="Without --nodes: the kernel.")
@click.option("--os", "os_name", default=SAMPLE["os"], show_default=True, help="Without --nodes: ID:VERSION_ID.")
@click.option("--runtime", default=SAMPLE["runtime"], show_default=True, help="Without --nodes: the container runtime.")
@click.option(
    "--manager-image",
    metavar="IMAGE",
    envvar="DRIVER_MANAGER_IMAGE",
    default="",
    help="The driver manager of NVIDIADrivers that name none, as the operator's environment has it.",
)
@click.option("--service-monitors", is_flag=True, help="As in a cluster that has the ServiceMonitor CRD.")
def command(
    path: str,
    nodes: str | None,
    given: tuple[str, ...],
    output: str,
    namespace: str,
    release_text: str | None,
    states: tuple[str, ...],
    kernel: str,
    os_name: str,
    runtime: str,
    manager_image: str,
    service_monitors: bool,
) -> None:
    """Print the objects and node labels that a ClusterPolicy leads to, or that the NVIDIADrivers of a file do.

    `manifests` is a stream for `kubectl apply -f -`, with the label changes as comments; `yaml` and `json` hold states,
    objects and node changes in one document. The exit status is 1 when a part of the policy cannot be carried out.
    """
    from ..operator import plan

    items = documents.read(path)
    drivers = _drivers(items, path)
    loaded = None if drivers else load_policy(path, items)
    chosen = release(release_text)
    _check(states, bool(drivers))
    _keep_selected_labels(drivers)
    try:
        views = plan.node_views(documents.read(nodes) if nodes else [_sample(kernel, os_name, runtime)])
    except plan.PlanError as error:
        raise click.ClickException(f"{nodes}: {error}" if nodes else str(error)) from error
    found = _keys([item for file in given for item in documents.read(file)], namespace)
    if loaded is not None:
        offline = _offline(loaded, views, namespace, chosen, found, service_monitors)
        name = loaded.policy.metadata.name
    else:
        offline = _offline_drivers(drivers, views, namespace, chosen, found, manager_image)
        name = " ".join(sorted(driver.name for driver in drivers))
    _print(offline, views if nodes else [], output, states, name, chosen)
    for warning in offline.warnings:
        click.echo(f"warning: {warning}", err=True)
    for problem in offline.problems:
        click.echo(f"error: {problem}", err=True)
    if offline.problems:
        raise SystemExit(1)


def _check(states: tuple[str, ...], drivers: bool) -> None:
    """Refuse states that there are not."""
    from ..operands import stack

    known = [] if drivers else [state.name for state in stack.STATES]
    if unknown := sorted(set(states) - set(known)):
        have = (
            f"no such state; there are {', '.join(known)}" if known else "NVIDIADrivers have no states to choose from"
        )
        raise click.ClickException(f"--state {', '.join(unknown)}: {have}")


def _drivers(items: list[dict[str, Any]], path: str) -> "list[NVIDIADriver]":
    """The NVIDIADrivers of a file that holds no ClusterPolicy."""
    from ..api import codec

    kind = codec.NVIDIA_DRIVER.name
    items = documents.unpacked(documents.unpacked(items, kind), "ClusterPolicy")
    if any(item.get("kind") == codec.CLUSTER_POLICY.name for item in items):
        return []
    found = []
    for item in items:
        if item.get("kind") != kind:
            continue
        try:
            loaded = codec.load_nvidia_driver(item)
        except codec.PolicyError as error:
            raise click.ClickException(f"{path}: {error}") from error
        if not loaded.driver.name:
            raise click.ClickException(f"{path}: metadata.name: missing; give the {kind} a name")
        _warn(path, loaded.unknown, codec.NVIDIA_DRIVER)
        found.append(loaded.driver)
    return found


def _warn(path: str, unknown: list[str], form: "Form[Any]") -> None:
    """Tell of fields that do nothing, on standard error."""
    from ..api import codec

    for field in unknown:
        meant = codec.suggest(field, form)
        hint = f"; did you mean {meant}?" if meant else ""
        click.echo(f"warning: {path}: {field} is not a field of {form.name} and does nothing{hint}", err=True)


def _keep_selected_labels(drivers: "list[NVIDIADriver]") -> None:
    """Of nodes only labels are kept that something depends on: those that drivers select by, too."""
    from ..cluster import views

    for driver in drivers:
        views.keep(driver.spec.nodeSelector or {})


def load_policy(path: str, items: list[dict[str, Any]] | None = None) -> "Loaded":
    """Read the one ClusterPolicy of a file; unknown fields are warned of on standard error.

    ``items`` are the file's documents where they have been read.
    """
    from ..api import codec

    document = documents.of_kind(documents.read(path) if items is None else items, "ClusterPolicy", path)
    try:
        loaded = codec.load_cluster_policy(document)
    except codec.PolicyError as error:
        raise click.ClickException(f"{path}: {error}") from error
    if not loaded.policy.metadata.name:
        raise click.ClickException(f"{path}: metadata.name: missing; give the ClusterPolicy a name")
    _warn(path, loaded.unknown, codec.CLUSTER_POLICY)
    return loaded


def release(text: str | None) -> "Release":
    """Return the release to behave like; raises :class:`click.ClickException` for an unknown one."""
    from ..api.release import Release

    if not text:
        return Release.DEFAULT
    try:
        return Release.parse(text)
    except ValueError as error:
        raise click.ClickException(f"--release: {error}") from error


def _sample(kernel: str, os_name: str, runtime: str) -> dict[str, Any]:
    """Return a GPU node as node feature discovery labels it."""
    from ..api import names

    os_id, _, version = os_name.partition(":")
    if not os_id or not version:
        raise click.ClickException(f"--os {os_name!r}: expected ID:VERSION_ID as in /etc/os-release, such as rhel:9.4")
    labels = {
        names.PCI_GPU_LABELS[0]: "true",
        names.KERNEL_VERSION: kernel,
        names.OS_RELEASE_ID: os_id,
        names.OS_RELEASE_VERSION_ID: version,
        names.OS_RELEASE_VERSION_MAJOR: version.partition(".")[0],
    }
    return {
        "kind": "Node",
        "metadata": {"name": "sample", "labels": labels},
        "status": {"nodeInfo": {"containerRuntimeVersion": runtime}},
    }


Keys = dict[str, dict[str, tuple[str, ...]]]


def _keys(items: list[dict[str, Any]], namespace: str) -> Keys:
    """Return the keys of the ConfigMaps and Secrets given, by kind and name."""
    found: Keys = {"ConfigMap": {}, "Secret": {}}
    for item in items:
        kind, meta = item.get("kind"), item.get("metadata") or {}
        if kind not in found or not meta.get("name"):
            raise click.ClickException(f"--with: expected ConfigMaps and Secrets with a name, found a {kind}")
        if (where := meta.get("namespace", namespace)) != namespace:
            raise click.ClickException(
                f"--with: {kind} {meta['name']} is in namespace {where}, but the operator reads {namespace} only"
            )
        parts = [item.get(part) or {} for part in ("data", "binaryData", "stringData")]
        found[kind][meta["name"]] = tuple(sorted({key for part in parts for key in part}))
    return found


def _offline(
    loaded: "Loaded", views: "list[NodeView]", namespace: str, chosen: "Release", found: Keys, service_monitors: bool
) -> "Offline":
    from ..operands.facts import references
    from ..operator import plan

    wanted = references(loaded.policy.spec)
    return plan.offline(
        loaded.policy,
        views,
        namespace=namespace,
        release=chosen,
        service_monitor_crd=service_monitors,
        config_maps={name: found["ConfigMap"].get(name) for name in wanted.config_maps},
        secrets={name: found["Secret"].get(name) for name in wanted.secrets},
    )


def _offline_drivers(
    drivers: "list[NVIDIADriver]",
    views: "list[NodeView]",
    namespace: str,
    chosen: "Release",
    found: Keys,
    manager_image: str,
) -> "Offline":
    from ..operands.nvidiadriver import references
    from ..operator import plan_drivers

    wanted = references(driver.spec for driver in drivers)
    return plan_drivers.offline(
        drivers,
        views,
        namespace=namespace,
        release=chosen,
        default_images={"DRIVER_MANAGER_IMAGE": manager_image},
        config_maps={name: found["ConfigMap"].get(name) for name in wanted.config_maps},
        secrets={name: found["Secret"].get(name) for name in wanted.secrets},
    )


def _print(
    offline: "Offline",
    views: "list[NodeView]",
    output: str,
    states: tuple[str, ...],
    policy: str,
    chosen: "Release",
) -> None:
    rendered = [each for each in offline.rendered if not states or each.state in states]
    changes = offline.nodes if views else ()
    if output == "manifests":
        for change in changes:
            for key, value in {**change.labels, **change.annotations}.items():
                click.echo(f"# node {change.name}: {key}{'-' if value is None else f'={value}'}")
        for each in rendered:
            click.echo(f"# {each.state}" + ("" if each.enabled else ": disabled"))
            for manifest in each.objects:
                click.echo("---")
                click.echo(printing.to_yaml(printing.ordered(manifest)), nl=False)
        return
    document = {
        "apiVersion": "groundplane.dev/v1alpha1",
        "kind": "Rendering",
        "policy": policy,
        "release": chosen.value,
        "states": [
            {"name": each.state, "enabled": each.enabled, "objects": list(each.objects)}
            | ({"error": str(each.error)} if each.error else {})
            for each in rendered
        ],
        "nodes": [
            {"name": change.name, "labels": change.labels, "annotations": change.annotations} for change in changes
        ],
    }
    click.echo(printing.to_json(document) if output == "json" else printing.to_yaml(document))
