"""Real Kubernetes nodes that have simulated GPUs, with groundplane's image and chart: end-to-end tests and `lab up`.

The cluster is `realcluster.node`'s. What makes its nodes GPU nodes is a simulated machine in a folder that every
container of the node sees (`groundplane.lab.onnode`), and an archive in which groundplane's one image stands for
NVIDIA's images: the node programs in it are the shipped ones, and what is NVIDIA's own, such as the driver's container,
is the lab's stand-in. The operator comes from the chart, by the real Helm engine, and runs as a pod with the chart's
rights.
"""

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from deploy.hostprogram import host_program
from deploy.image import aliases, archive
from deploy.image import build as image_build
from groundplane import __version__
from groundplane.api import codec, names
from groundplane.api.release import Release
from groundplane.lab import onnode
from groundplane.lab.nodes import NodeSpec
from groundplane.lab.onnode import host
from groundplane.node.cdi.roots import NULL_DEVICES
from groundplane.node.ownprocess import SIMULATION_ENV
from groundplane.operator import manage_crds, plan

from .realcluster import build
from .realcluster.node import Cluster, NodeSetup
from .realcluster.process import ProcessFailedError, Started

CHART = Path(__file__).parents[1] / "deploy" / "chart"
NAMESPACE = "gpu-operator"
RELEASE_NAME = "gpu-operator"
OPERATOR_IMAGE = f"localhost/groundplane:{__version__}"
PEOPLES_IMAGES = ("nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0", "docker.io/library/busybox:latest")
HELM_TIMEOUT_S = 300
EVERYTHING = {name: {"enabled": True} for name in ("gds", "gdrcopy", "dcgm", "nodeStatusExporter", "sandboxWorkloads")}
"""Values that switch on what is off by default, for the images it needs."""


class GpuCluster(Started):
    """A real cluster of GPU nodes while the context is open; what Cluster raises, and ImageError of `deploy.image`.

    `policies` are the ClusterPolicy documents that will be used, by release: their images are loaded. Programs wait
    `speed` times shorter than in life.
    """

    def __init__(
        self,
        specs: Sequence[NodeSpec],
        policies: Iterable[tuple[Release, Mapping[str, Any]]],
        *,
        speed: float = 20.0,
        audit: bool = False,
        workdir: Path | None = None,
        port: int = 0,
        log: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ) -> None:
        self.specs = list(specs)
        self.references = sorted(set(images(policies, self.specs)) | set(PEOPLES_IMAGES))
        self._log = log
        self.cluster = Cluster(
            [_setup(spec, speed) for spec in self.specs], audit=audit, workdir=workdir, port=port, log=log
        )

    def start(self) -> None:
        """Build the image, start the cluster, load the image under all names."""
        self.cluster.start()
        self._log("the nodes are ready")
        with tempfile.TemporaryDirectory(prefix="groundplane-images-") as scratch:
            path = Path(scratch, "images.tar")
            self._log(f"making an archive of {len(self.references)} images")
            made = image_build.image(OPERATOR_IMAGE, layers_folder=Path(scratch))
            archive.write([made, image_build.for_nodes(made), *aliases.aliases(made, self.references)], path)
            self._log("loading it into the nodes")
            self.cluster.load_image(path)
            self._log("loaded")

    def stop(self) -> None:
        """End everything."""
        self.cluster.stop()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.cluster.control_plane.kubeconfig()

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One plain request as the administrator."""
        return self.cluster.control_plane.request(method, path, body)

    def create_definitions(self) -> None:
        """Create the custom resource definitions without the chart, for an operator that runs elsewhere."""
        for definition in manage_crds.shipped():
            status, answer = self.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
            if status != HTTPStatus.CREATED:
                raise ProcessFailedError(f"the API server refused a definition: {answer.get('message', answer)}")

    # --- the chart ----------------------------------------------------------------------------------------------------

    def install(self, values: Mapping[str, Any], *, wait: str | None = None) -> None:
        """`helm install` of the chart into its namespace. HelmError says what went wrong."""
        options = {"namespace": NAMESPACE, "create_namespace": True, "wait": wait, "timeout": HELM_TIMEOUT_S}
        for attempts_left in reversed(range(3)):
            with self._helm() as helm:
                try:
                    helm.install(CHART, RELEASE_NAME, dict(values), **options)
                except _engine().HelmReleaseError as error:
                    # Helm has created the definitions, but asked a busy API server too early for its new kinds.
                    if not attempts_left or "ensure CRDs are installed first" not in str(error):
                        raise
                else:
                    return

    def upgrade(self, values: Mapping[str, Any], *, wait: str | None = None) -> None:
        """`helm upgrade` with these values instead of the former ones."""
        with self._helm() as helm:
            helm.upgrade(CHART, RELEASE_NAME, dict(values), namespace=NAMESPACE, wait=wait, timeout=HELM_TIMEOUT_S)

    def rollback(self) -> None:
        """`helm rollback` to the revision before."""
        with self._helm() as helm:
            helm.rollback(RELEASE_NAME, timeout=HELM_TIMEOUT_S)

    def uninstall(self) -> None:
        """`helm uninstall`."""
        with self._helm() as helm:
            helm.uninstall(RELEASE_NAME, timeout=HELM_TIMEOUT_S)

    def _helm(self) -> Any:
        return _engine().Config(kubeconfig_path=str(self.kubeconfig), namespace=NAMESPACE)


def _setup(spec: NodeSpec, speed: float) -> NodeSetup:
    found = host.node_files(spec)
    return NodeSetup(
        spec.name,
        labels=spec.labels,
        files=found.files,
        links=found.links,
        programs=dict.fromkeys(host.HANDLERS.values(), host_program()) if spec.host_driver else {},
        container_mounts=[onnode.FOLDER],
        container_environment={
            onnode.SPEED_ENV: f"{speed:g}",
            SIMULATION_ENV: f"{onnode.FOLDER}/{host.MACHINE}",
            NULL_DEVICES: "true",
        },
    )


def _engine() -> Any:
    try:
        import helm_python
    except ImportError as error:
        raise build.UnavailableError("the Helm engine is missing: pip install helm-python-sdk (make setup)") from error
    return helm_python


def chart_policy(release: Release, values: Mapping[str, Any]) -> dict[str, Any]:
    """The ClusterPolicy that the chart renders from values."""
    wanted = {**values, "operator": {**values.get("operator", {}), "release": release.value}}
    with _engine().Chart.load(CHART) as chart:
        rendered = chart.render(values=wanted, name=RELEASE_NAME, namespace=NAMESPACE)
    texts = [text for path, text in rendered.items() if path.endswith(".yaml")]
    documents = [document for text in texts for document in yaml.safe_load_all(text) if document]
    (policy,) = (each for each in documents if each["kind"] == "ClusterPolicy")
    return dict(policy)


def images(policies: Iterable[tuple[Release, Mapping[str, Any]]], specs: Sequence[NodeSpec]) -> Iterator[str]:
    """Every image that the policies lead to on such nodes: containers' and those that environment variables name."""
    views = plan.node_views(_labelled(spec) for spec in specs)
    for release, document in policies:
        policy = codec.load_cluster_policy(document).policy
        rendered = plan.offline(policy, views, namespace=NAMESPACE, release=release)
        for state in rendered.rendered:
            for manifest in state.objects:
                yield from _references(manifest)


def _references(manifest: Mapping[str, Any]) -> Iterator[str]:
    pod = manifest.get("spec", {}).get("template", {}).get("spec", {})
    for container in [*pod.get("initContainers", ()), *pod.get("containers", ())]:
        yield container["image"]
        for variable in container.get("env", ()):
            if variable["name"].endswith("_IMAGE") and variable.get("value"):
                yield variable["value"]


def _labelled(spec: NodeSpec) -> dict[str, Any]:
    """The node as it is once its features are labelled."""
    labels = {
        names.KERNEL_VERSION: spec.kernel,
        names.OS_RELEASE_ID: spec.os.id,
        names.OS_RELEASE_VERSION_ID: spec.os.version_id,
        names.OS_RELEASE_VERSION_MAJOR: spec.os.version_id.partition(".")[0],
        **({names.PCI_GPU_LABELS[0]: "true"} if spec.gpus else {}),
    }
    return {
        "kind": "Node",
        "metadata": {"name": spec.name, "labels": labels},
        "status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.4.2"}},
    }
