"""State ``state-dcgm``: a DCGM host engine on each node, which the exporter can read from.

Source: contracts/control-plane.md 4.1, 4.3 and 9.14. ``dcgm.hostPort`` is deprecated and ignored.
"""

from typing import Final

from lightkube.models.core_v1 import ContainerPort, EnvVar, Probe, ServicePort, TCPSocketAction

from ..api import names
from ..api.clusterpolicy import ClusterPolicySpec
from . import build, images, rbac
from .facts import ClusterFacts

STATE: Final = "state-dcgm"
NAME: Final = "nvidia-dcgm"
PORT: Final = 5555


def enabled(spec: ClusterPolicySpec, _facts: ClusterFacts) -> bool:
    """On unless switched off; NVIDIA's chart switches it off by default."""
    return build.on(spec.dcgm.enabled, True)


def render(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights, DaemonSet, and the Service by which a pod reaches the host engine of its own node."""
    port = ServicePort(name="dcgm", port=PORT, targetPort=PORT, protocol="TCP")
    made = [
        *rbac.objects(NAME, facts),
        _daemon_set(spec, facts),
        build.service(NAME, port, scrape=False, traffic_policy="Local"),
    ]
    return [build.finish(each, STATE, facts) for each in made]


def _daemon_set(spec: ClusterPolicySpec, facts: ClusterFacts) -> build.Model:
    section = spec.dcgm
    variables: list[EnvVar] = []
    build.user_env(variables, section.env)
    alive = Probe(tcpSocket=TCPSocketAction(port=PORT), initialDelaySeconds=15)
    main = build.container(
        "nvidia-dcgm-ctr",
        images.resolve(section, "spec.dcgm", "DCGM_IMAGE", facts.default_images),
        pull=section.imagePullPolicy,
        args=section.args or (),
        env=variables,
        ports=[ContainerPort(name="dcgm", containerPort=PORT)],
        liveness=alive,
        readiness=alive,
    )
    return build.daemon_set(
        spec,
        name=NAME,
        account=NAME,
        annotations={names.OPENSHIFT_SCC: "hostmount-anyuid"},
        template_annotations=build.nri_annotation(spec, main.name),
        node_selector={names.DEPLOY_DCGM: "true"},
        init=[build.toolkit_wait(spec, facts, "run-nvidia:/run/nvidia:H")],
        containers=[main],
        volumes=build.host_volumes("run-nvidia=/run/nvidia(D)"),
        pull_secrets=build.secrets_of(section, spec.validator),
        resources=section.resources,
        host_network=build.on(section.hostNetwork),
        runtime_class_name=build.gpu_runtime_class(spec, facts),
    )
