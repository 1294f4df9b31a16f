"""The program `node-features`: its options, and the client of the API server that it works with."""

from typing import Final

from ..options import BOOL, DURATION, STRINGS, Command, Duration, Leave, Option, Values, read
from ..process import Process
from .machine import PCI_FIELDS, PciSettings

_DEFAULT_PCI: Final = PciSettings()
_LEAST_INTERVAL_S: Final = 1.0

COMMAND: Final = Command(
    name="node-features",
    about="Labels its node with what the machine is, and with what NodeFeature objects and local files ask for.",
    options=(
        Option(name="node", flags=("node-name",), env=("NODE_NAME",), help="name of the node it runs on; required"),
        Option(
            name="namespace",
            flags=("namespace",),
            env=("NAMESPACE", "POD_NAMESPACE"),
            help="where its NodeFeature object is, which comes first when several ask for a label; required",
        ),
        Option(name="pod", flags=("pod-name",), env=("POD_NAME",), help="its pod, whose DaemonSet owns the object"),
        Option(name="kubeconfig", flags=("kubeconfig",), env=("KUBECONFIG",), help="kubeconfig file; else in-cluster"),
        Option(
            name="interval",
            type=DURATION,
            default=Duration.parse("60s"),
            flags=("sleep-interval",),
            env=("SLEEP_INTERVAL",),
            help="time between two looks at the machine",
        ),
        Option(
            name="offer",
            type=BOOL,
            default=True,
            flags=("use-node-feature-api",),
            env=("USE_NODE_FEATURE_API",),
            help="keep a NodeFeature object of what was found, beside labelling the node",
        ),
        Option(
            name="classes",
            type=STRINGS,
            default=_DEFAULT_PCI.classes,
            flags=("pci-class-whitelist",),
            env=("PCI_CLASS_WHITELIST",),
            help="how the hexadecimal classes of PCI devices begin that become labels",
        ),
        Option(
            name="fields",
            type=STRINGS,
            default=_DEFAULT_PCI.fields,
            flags=("pci-label-fields",),
            env=("PCI_LABEL_FIELDS",),
            help=f"what of a PCI device stands in its label: of {', '.join(PCI_FIELDS)}",
        ),
        Option(
            name="extra",
            type=STRINGS,
            default=(),
            flags=("extra-label-ns",),
            env=("EXTRA_LABEL_NS",),
            help="namespaces below kubernetes.io in which labels may be asked for",
        ),
    ),
)


async def run(process: Process) -> int:
    """Keep the node's feature labels until a signal asks for the end."""
    try:
        values = read(COMMAND, process)
        _validate(values)
    except Leave as leave:
        return leave.tell(process)
    from ...cluster.errors import ConfigError
    from .loop import NodeFeatures, Settings

    settings = Settings(
        node=values["node"],
        namespace=values["namespace"],
        pod=values["pod"],
        interval_s=values["interval"].seconds,
        pci=PciSettings(tuple(each.lower() for each in values["classes"]), values["fields"]),
        extra_namespaces=values["extra"],
        offer=values["offer"],
    )
    try:
        client = process.client(values["kubeconfig"])
    except ConfigError as error:
        process.log.error(str(error))
        return 1
    async with client:
        return await NodeFeatures(process, client, settings).run()


def _validate(values: Values) -> None:
    for name, of in (("node", "of this node"), ("namespace", "of this pod")):
        if not values[name]:
            raise values.mistake(name, f"the {name}'s name {of} must be given")
    if values["interval"].seconds < _LEAST_INTERVAL_S:
        raise values.mistake("interval", f"the interval {values['interval']} is shorter than {_LEAST_INTERVAL_S:g}s")
    unknown = [field for field in values["fields"] if field not in PCI_FIELDS]
    if unknown or not values["fields"]:
        raise values.mistake("fields", f"no such fields of PCI devices: {unknown}; there are {', '.join(PCI_FIELDS)}")
