"""The CustomResourceDefinitions of node-feature-discovery, whose objects GPU feature discovery writes.

GPU feature discovery hands its labels over as NodeFeature objects by default (contracts/device-plugin-gfd.md 8), so
whoever provides node features provides these definitions. They mean the same as those of node-feature-discovery 0.18
and 0.19; the wording is ours.
"""

from typing import Any, Final

Schema = dict[str, Any]

GROUP: Final = "nfd.k8s-sigs.io"
VERSION: Final = "v1alpha1"


def _text(description: str = "") -> Schema:
    return {"type": "string", **({"description": description} if description else {})}


def _texts(description: str) -> Schema:
    return {"type": "array", "items": _text(), "description": description}


def _map(values: Schema, description: str) -> Schema:
    return {"type": "object", "additionalProperties": values, "description": description}


def _object(description: str = "", required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    made: Schema = {"type": "object", "properties": dict(sorted(properties.items()))}
    if description:
        made["description"] = description
    return {**made, "required": sorted(required)} if required else made


def _list(items: Schema, description: str) -> Schema:
    return {"type": "array", "items": items, "description": description}


OPERATORS: Final = (
    *("In", "NotIn", "InRegexp", "Exists", "DoesNotExist"),
    *("Gt", "Ge", "Lt", "Le", "GtLt", "GeLe", "IsTrue", "IsFalse"),
)


def _expression(description: str) -> Schema:
    return _object(
        description,
        ("op",),
        op={"type": "string", "enum": list(OPERATORS), "description": "How the value found is compared."},
        type=_text("How values are read before they are compared: empty for text, or version."),
        value=_texts("What it is compared with; none for operators that ask for presence or truth."),
    )


def _matches() -> Schema:
    match = _object(
        required=("feature",),
        feature=_text("Which set of features, such as kernel.loadedmodule."),
        matchExpressions=_map(_expression(""), "Conditions by the name of a feature; all must hold."),
        matchName=_expression("A condition on the names of the features."),
    )
    return _list(match, "Conditions that must all hold.")


def _rule(description: str, **more: Schema) -> Schema:
    return _object(
        description,
        ("name",),
        name=_text("Name of the rule."),
        matchFeatures=_matches(),
        matchAny=_list(
            _object(required=("matchFeatures",), matchFeatures=_matches()),
            "Groups of conditions, one of which must hold.",
        ),
        vars=_map(_text(), "Values that later rules can match as rule.matched."),
        varsTemplate=_text("A template of lines `name=value`, which become vars."),
        **more,
    )


def _features() -> Schema:
    def sets(elements: Schema, description: str) -> Schema:
        return _map(_object(required=("elements",), elements=elements), description)

    instance = _object(required=("attributes",), attributes=_map(_text(), "Attributes of one instance."))
    return _object(
        "What was found, by kind.",
        attributes=sets(_map(_text(), "Values by name."), "Sets of named values."),
        flags=sets(_map({"type": "object"}, "Names; their values are empty."), "Sets of names."),
        instances=sets(_list(instance, "The instances."), "Sets of things with attributes."),
    )


def _feature_spec() -> Schema:
    return _object(
        "Features of one node, which the label nfd.node.kubernetes.io/node-name names.",
        features=_features(),
        labels=_map(_text(), "Labels asked for."),
    )


def _group_spec() -> Schema:
    rule = _rule("A rule by which nodes belong to the group.")
    return _object("Which nodes.", ("featureGroupRules",), featureGroupRules=_list(rule, "Any of these."))


def _group_status() -> Schema:
    nodes = {
        **_list(_object(required=("name",), name=_text("Name of the node.")), "The nodes of the group."),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    return _object("Which nodes belong to it now.", nodes=nodes)


def _rule_spec() -> Schema:
    taint = _object(
        required=("effect", "key"),
        effect=_text("NoSchedule, PreferNoSchedule or NoExecute."),
        key=_text("Key of the taint."),
        timeAdded={"type": "string", "format": "date-time", "description": "Set by the system."},
        value=_text("Value of the taint."),
    )
    rule = _rule(
        "What a node gets when the conditions hold.",
        annotations=_map(_text(), "Annotations."),
        extendedResources=_map(_text(), "Amounts of extended resources."),
        labels=_map(_text(), "Labels."),
        labelsTemplate=_text("A template of lines `key=value`, which become labels."),
        taints=_list(taint, "Taints."),
    )
    return _object("The rules.", ("rules",), rules=_list(rule, "Rules, in order."))


def definitions() -> list[dict[str, Any]]:
    """The definitions of NodeFeature, NodeFeatureGroup and NodeFeatureRule; fresh documents."""
    return [
        _definition("NodeFeature", _feature_spec(), scope="Namespaced"),
        _definition("NodeFeatureGroup", _group_spec(), scope="Namespaced", short="nfg", status=_group_status()),
        _definition("NodeFeatureRule", _rule_spec(), scope="Cluster", short="nfr"),
    ]


def _definition(
    kind: str, spec: Schema, *, scope: str, short: str = "", status: Schema | None = None
) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    root = _object(
        "",
        ("spec",),
        apiVersion=_text(),
        kind=_text(),
        metadata={"type": "object"},
        spec=spec,
        **({"status": status} if status else {}),
    )
    version: dict[str, Any] = {"name": VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": root}}
    if status:
        version["subresources"] = {"status": {}}
    named: dict[str, Any] = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    if short:
        named["shortNames"] = [short]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "names": named, "scope": scope, "versions": [version]},
    }
