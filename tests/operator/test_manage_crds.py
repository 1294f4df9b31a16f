"""Definitions are brought up to date exactly, and deleted with all that depends on them, in the lab over HTTP."""

import asyncio
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from groundplane.api import crd, names
from groundplane.cli import main as cli
from groundplane.cluster import errors, kinds
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.lab import resources
from groundplane.lab.cluster import Lab, data
from groundplane.operator import manage_crds

NAME = "clusterpolicies.nvidia.com"
DRIVERS = "nvidiadrivers.nvidia.com"


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with Lab(operator=False) as running:
        yield running


@pytest.fixture
async def client(lab: Lab) -> AsyncIterator[Client]:
    async with lab.client() as connected:
        yield connected


def widget(**changes: Any) -> dict[str, Any]:
    """A small definition."""
    spec = {
        "group": "example.com",
        "names": {"kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}},
            }
        ],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": spec | changes,
    }


async def live(client: Client, name: str = NAME) -> dict[str, Any]:
    return await client.get(kinds.CRD, name)


def established(document: dict[str, Any]) -> bool:
    return any(each["type"] == "Established" and each["status"] == "True" for each in document["status"]["conditions"])


async def test_what_is_missing_is_created_and_served_afterwards(client: Client) -> None:
    told: list[str] = []
    await manage_crds.apply(client, [widget()], tell=told.append)
    assert told == ["widgets.example.com: created"]
    assert established(await live(client, "widgets.example.com"))


def spec_managers(document: dict[str, Any]) -> set[tuple[str, str]]:
    """Who has a say in the spec."""
    return {
        (each["manager"], each["operation"])
        for each in document["metadata"]["managedFields"]
        if "f:spec" in each["fieldsV1"]
    }


async def test_an_older_definition_becomes_exactly_the_wanted_one(client: Client) -> None:
    old = await live(client)
    properties = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    properties["gone"] = {"type": "string"}
    del properties["cdi"]
    old["metadata"]["annotations"] = {names.CRD_SCHEMA_DIGEST: "old", "mine": "kept"}
    await client.replace(kinds.CRD, old)
    told: list[str] = []
    await manage_crds.apply(client, manage_crds.shipped(), tell=told.append)
    assert told == [f"{NAME}: updated", f"{DRIVERS}: unchanged"]
    found, wanted = await live(client), crd.cluster_policy_crd()
    assert found["spec"]["versions"][0]["schema"] == wanted["spec"]["versions"][0]["schema"]
    assert found["metadata"]["annotations"] == {**wanted["metadata"]["annotations"], "mine": "kept"}
    assert spec_managers(found) == {("helm", "Apply")}


async def test_a_right_one_that_others_hold_too_becomes_helms(client: Client) -> None:
    assert spec_managers(await live(client)) != {("helm", "Apply")}
    told: list[str] = []
    await manage_crds.apply(client, manage_crds.shipped(), tell=told.append)
    assert told == [f"{NAME}: unchanged", f"{DRIVERS}: unchanged"]
    assert spec_managers(await live(client)) == {("helm", "Apply")}


async def test_what_is_right_is_not_written(client: Client) -> None:
    await manage_crds.apply(client, manage_crds.shipped())
    before = (await live(client))["metadata"]["resourceVersion"]
    told: list[str] = []
    await manage_crds.apply(client, manage_crds.shipped(), tell=told.append)
    assert told == [f"{NAME}: unchanged", f"{DRIVERS}: unchanged"]
    assert (await live(client))["metadata"]["resourceVersion"] == before


async def test_objects_survive_an_update(lab: Lab, client: Client) -> None:
    await lab.apply([data("guide-baseline.yaml")])
    before = await client.get(kinds.CLUSTER_POLICY, "cluster-policy")
    wanted = crd.cluster_policy_crd()
    wanted["spec"]["versions"][0]["additionalPrinterColumns"].pop()
    await manage_crds.apply(client, [wanted])
    assert await client.get(kinds.CLUSTER_POLICY, "cluster-policy") == before


class Meddler(Client):
    """A client whose first take-overs meet somebody else's write."""

    conflicts = 0

    async def patch(self, kind: Any, name: str, body: Any, **rest: Any) -> Any:
        if "managedFields" in body.get("metadata", {}) and self.conflicts:
            self.conflicts -= 1
            await super().patch(kind, name, {"metadata": {"labels": {"by": f"n{self.conflicts}"}}})
        return await super().patch(kind, name, body, **rest)


def changed() -> dict[str, Any]:
    """Our definition with a column less."""
    definition = crd.cluster_policy_crd()
    definition["spec"]["versions"][0]["additionalPrinterColumns"].pop()
    return definition


@pytest.mark.parametrize("conflicts", [1, 3])
async def test_a_change_meanwhile_is_kept_and_does_not_stop_it(lab: Lab, tmp_path: Path, conflicts: int) -> None:
    async with Meddler(Config.detect(kubeconfig=str(lab.kubeconfig(tmp_path / "kubeconfig")))) as client:
        client.conflicts = conflicts
        await manage_crds.apply(client, [changed()])
        found = await live(client)
        assert client.conflicts == 0
        assert found["metadata"]["labels"] == {"by": "n0"}
        assert len(found["spec"]["versions"][0]["additionalPrinterColumns"]) == 1


async def test_endless_changes_meanwhile_end_in_an_error_that_names_who(lab: Lab, tmp_path: Path) -> None:
    async with Meddler(Config.detect(kubeconfig=str(lab.kubeconfig(tmp_path / "kubeconfig")))) as client:
        client.conflicts = 100
        with pytest.raises(manage_crds.DefinitionsError, match=rf"{NAME}: somebody else writes it all the time: \w+"):
            await manage_crds.apply(client, [changed()])


async def test_an_invalid_definition_is_refused_by_the_server_in_its_words(client: Client) -> None:
    with pytest.raises(errors.Invalid, match="scope"):
        await manage_crds.apply(client, [widget(scope="Everywhere")])


async def test_delete_takes_the_objects_with_it(lab: Lab, client: Client) -> None:
    await lab.apply([data("guide-baseline.yaml")])
    told: list[str] = []
    await manage_crds.delete(client, [*manage_crds.shipped(), widget()], tell=told.append)
    assert told == [f"{NAME}: deleted", f"{DRIVERS}: deleted", "widgets.example.com: not there"]
    with pytest.raises(errors.NotFound):
        await live(client)


async def test_an_object_that_cannot_go_is_named(lab: Lab, client: Client) -> None:
    policy = copy.deepcopy(data("guide-baseline.yaml"))
    policy["metadata"]["finalizers"] = ["example.com/mine"]
    await lab.apply([policy])
    with pytest.raises(manage_crds.DefinitionsError, match=rf"{NAME}: still there after 0.3 s: .*finalizers"):
        await manage_crds.delete(client, manage_crds.shipped(), timeout_s=0.3)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    for name, group in (("b.yaml", "b.example"), ("a.yml", "a.example")):
        document = widget()
        document["metadata"]["name"] = f"widgets.{group}"
        (tmp_path / name).write_text("---\n" + yaml.safe_dump(document))
    (tmp_path / "notes.txt").write_text("not this")
    assert [each["metadata"]["name"] for each in manage_crds.load(str(tmp_path))] == [
        "widgets.a.example",
        "widgets.b.example",
    ]


BAD_FILES = [
    ("", "no document"),
    ("a: [", "is not YAML"),
    ("- 1", "a document that is no mapping"),
    ("apiVersion: v1\nkind: Pod\n", "found v1 Pod"),
    (
        "apiVersion: apiextensions.k8s.io/v1beta1\nkind: CustomResourceDefinition\n",
        "found apiextensions.k8s.io/v1beta1",
    ),
    ("apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n", "without metadata.name"),
    ("apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {}\n", "without metadata.name"),
]


@pytest.mark.parametrize(("text", "why"), BAD_FILES, ids=[why for _, why in BAD_FILES])
def test_a_file_of_something_else_is_refused_by_name(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "crds.yaml"
    path.write_text(text)
    with pytest.raises(manage_crds.DefinitionsError) as told:
        manage_crds.load(str(path))
    assert str(path) in str(told.value)
    assert why in str(told.value)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(manage_crds.DefinitionsError, match=r"nowhere\.yaml"):
        manage_crds.load(str(tmp_path / "nowhere.yaml"))
    with pytest.raises(manage_crds.DefinitionsError, match=r"no \.yaml file"):
        manage_crds.load(str(tmp_path))


# --- the executable ---------------------------------------------------------------------------------------------------


async def program(lab: Lab, tmp_path: Path, *words: str) -> int:
    kubeconfig = str(lab.kubeconfig(tmp_path / "kubeconfig"))
    return await asyncio.to_thread(manage_crds.main, [*words, "--kubeconfig", kubeconfig])


async def test_the_program_applies_and_deletes(
    lab: Lab, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "crds.yaml"
    file.write_text(yaml.safe_dump(widget()))
    assert await program(lab, tmp_path, "apply") == 0
    assert capsys.readouterr().out == f"{NAME}: unchanged\n{DRIVERS}: unchanged\n"
    assert await program(lab, tmp_path, "apply", f"--filepath={file}") == 0
    assert capsys.readouterr().out == "widgets.example.com: created\n"
    assert await program(lab, tmp_path, "delete", f"--filepath={file}", "--timeout=30") == 0
    assert capsys.readouterr().out == "widgets.example.com: deleted\n"
    assert established(await live(client))


async def test_the_program_fails_with_the_reason(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await program(lab, tmp_path, "apply", "--filepath=/nowhere") == 1
    assert "/nowhere" in capsys.readouterr().err
    bad = tmp_path / "bad.yaml"
    bad.write_text(yaml.safe_dump(widget(scope="Everywhere")))
    assert await program(lab, tmp_path, "apply", f"--filepath={bad}") == 1
    assert "scope" in capsys.readouterr().err


def test_the_program_tells_a_cluster_that_cannot_be_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert manage_crds.main(["apply", "--kubeconfig", str(tmp_path / "none")]) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "ACTION"),
        (["replace"], "'apply', 'delete'"),
        (["apply", "--timeout=soon"], "such as 60"),
        (["apply", "x"], "x"),
    ],
)
def test_misuse_is_told(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        manage_crds.main(words)
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


def test_the_command_is_the_program() -> None:
    result = CliRunner().invoke(cli.main, ["manage-crds", "apply", "--filepath=/nowhere", "--help"])
    assert result.exit_code == 0
    assert "--filepath" in result.output


# --- a server that does not come round --------------------------------------------------------------------------------


class Stubborn(Client):
    """A client whose server stores a definition, and says of it what it is told to say."""

    conditions: list[dict[str, str]] = []

    async def get(self, kind: Any, name: str, *rest: Any, **more: Any) -> Any:
        found = await super().get(kind, name, *rest, **more)
        return {**found, "status": {"conditions": self.conditions}}


@pytest.mark.parametrize(
    ("conditions", "why"),
    [
        ([], "still not served after 0.3 s: the API server says nothing about it"),
        ([{"type": "Established", "status": "False", "message": "wait"}], "still not served after 0.3 s: wait"),
        (
            [{"type": "NamesAccepted", "status": "False", "message": '"Widget" is already in use'}],
            'its names are not accepted: "Widget" is already in use; delete the definition that holds them',
        ),
        ([{"type": "NamesAccepted", "status": "False", "reason": "KindConflict"}], "not accepted: KindConflict"),
    ],
    ids=["silent", "waiting", "names", "reason"],
)
async def test_a_definition_that_is_not_served_is_told(
    lab: Lab, tmp_path: Path, conditions: list[dict[str, str]], why: str
) -> None:
    async with Stubborn(Config.detect(kubeconfig=str(lab.kubeconfig(tmp_path / "kubeconfig")))) as client:
        client.conditions = conditions
        with pytest.raises(manage_crds.DefinitionsError) as told:
            await manage_crds.apply(client, [widget()], timeout_s=0.3)
    assert "widgets.example.com: " in str(told.value)
    assert why in str(told.value)


async def test_node_features_definitions_come_when_asked_for(
    lab: Lab, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in ("nodefeatures", "nodefeaturegroups", "nodefeaturerules"):  # a lab has them
        lab.api.delete(resources.CUSTOM_RESOURCE_DEFINITIONS, f"{each}.nfd.k8s-sigs.io")
    assert await program(lab, tmp_path, "apply", "--nfd") == 0
    assert "nodefeatures.nfd.k8s-sigs.io: created\n" in capsys.readouterr().out
    assert established(await live(client, "nodefeaturerules.nfd.k8s-sigs.io"))
