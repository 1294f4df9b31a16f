"""Secrets of every kind in every kind of place: not one byte of an archive has them; names that tell whose it is."""

import base64
import gzip
import itertools
import json
import random
import string
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from groundplane.admin import gather_files, gather_pack
from groundplane.admin.gather import Gathered
from groundplane.admin.gather_files import Extra
from groundplane.diagnose.archive import Captured
from groundplane.diagnose.evidence import Command, KernelLog, Log, NodeFacts
from groundplane.diagnose.survey import Survey

RANDOM = random.Random(7)


def word(length: int = 20) -> str:
    return "q7" + "".join(RANDOM.choices(string.ascii_letters + string.digits, k=length))


KINDS: dict[str, Callable[[str], str]] = {
    "env by name": lambda secret: f"NGC_API_TOKEN={secret}",
    "password by name": lambda secret: f'db_password: "{secret}"',
    "passphrase flag": lambda secret: f"login --passphrase {secret} --quiet",
    "bearer": lambda secret: f"Authorization: Bearer {secret}",
    "basic": lambda secret: f"Proxy-Authorization: Basic {base64.b64encode(f'u:{secret}'.encode()).decode()}",
    "JWT": lambda secret: f"got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOi{secret}.c2ln{secret}",
    "registry auth": lambda secret: json.dumps({"auths": {"nvcr.io": {"auth": secret}}}),
    "dockerconfigjson": lambda secret: f".dockerconfigjson: {secret}",
    "URL with user": lambda secret: f"cloning https://joe:{secret}@git.example/x.git",
    "proxy credentials": lambda secret: f"HTTPS_PROXY=http://proxyuser:{secret}@proxy.example:3128",
    "cloud key": lambda secret: f"uses ghp_{secret}",
    "NGC key": lambda secret: f"uses nvapi-{secret}",
    "signed URL": lambda secret: f"GET https://blob.example/a?sv=1&sig={secret}&se=2",
    "private key": lambda secret: f"-----BEGIN PRIVATE KEY-----\nMII{secret}\n-----END PRIVATE KEY-----",
    "vGPU licence token": lambda secret: f"client_configuration_token={secret}",
    "cookie": lambda secret: f"Cookie: session={secret}",
}


def node(name: str, **annotations: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": annotations}}


def thing(kind: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "x", "namespace": "gpu-operator"}, **more}


def release(values: dict[str, Any], manifest: str, hook: str) -> dict[str, Any]:
    stored = {
        "name": "gpu-operator",
        "namespace": "gpu-operator",
        "version": 1,
        "info": {"status": "deployed"},
        "chart": {"metadata": {"name": "gpu-operator", "version": "v26.7.0"}, "values": {"driver": {"enabled": True}}},
        "config": values,
        "manifest": manifest,
        "hooks": [{"name": "h", "kind": "Job", "manifest": hook, "events": ["pre-install"]}],
    }
    packed = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(stored).encode()))).decode()
    return {**thing("Secret"), "type": "helm.sh/release.v1", "data": {"release": packed}}


Plant = Callable[[str], dict[str, Any]]


def objects(*documents: dict[str, Any]) -> dict[str, Any]:
    return {"documents": list(documents)}


PLACES: dict[str, Plant] = {
    "env's value": lambda text: objects(
        thing("Pod", spec={"containers": [{"name": "c", "image": "i", "env": [{"name": "SETUP", "value": text}]}]})
    ),
    "argument": lambda text: objects(thing("Pod", spec={"containers": [{"name": "c", "image": "i", "args": [text]}]})),
    "ConfigMap": lambda text: objects(thing("ConfigMap", data={"conf": text})),
    "annotation": lambda text: objects(node("n", note=text)),
    "event": lambda text: objects(thing("Event", message=text, involvedObject={"kind": "Pod", "name": "x"})),
    "condition": lambda text: objects(thing("ClusterPolicy", status={"conditions": [{"message": text}]})),
    "log": lambda text: {"logs": (Log(text=text, pod="x", container="c"),)},
    "kernel log": lambda text: {"kernel": (KernelLog(text=text, node="n"),)},
    "node's command": lambda text: {"facts": (NodeFacts(name="n", commands={"journalctl -u x": Command(text, 0)}),)},
    "node's fact": lambda text: {"facts": (NodeFacts(name="n", facts={"containerd": {"errors": [text]}}),)},
    "metrics": lambda text: {"extras": [Extra(name="metrics/a.prom", text=text)]},
    "Helm's values": lambda text: objects(release({"driver": {"note": text}}, "", "")),
    "Helm's manifest": lambda text: objects(release({}, yaml.safe_dump(thing("ConfigMap", data={"a": text})), "")),
    "Helm's hook": lambda text: objects(release({}, "", yaml.safe_dump(thing("ConfigMap", data={"a": text})))),
    "Helm's broken manifest": lambda text: objects(release({}, f"a: [\n{text}\n", "")),
    "what could not be read": lambda text: {"missing": (text,)},
}


def packed(
    documents: Any = (), extras: Any = (), pseudonyms: bool = False, missing: Any = (), **more: Any
) -> dict[str, bytes]:
    kinds = {"ClusterPolicy": "nvidia.com/v1"}
    survey = Survey.of([{**each, "apiVersion": kinds.get(each["kind"], "v1")} for each in documents])
    captured = Captured(survey=survey, missing=missing, whole=True, **more)
    states = tuple(("ok", "") for _ in captured.logs)
    every = (*extras, *gather_files.helm(survey), *gather_files.definitions(survey))
    redactor = gather_pack.redactor_of(survey, pseudonyms)
    plain = gather_pack.redacted(Gathered(captured=captured, states=states, extras=every), redactor)
    return dict(gather_pack.files(plain, redactor))


def shapes(secret: str) -> Iterator[bytes]:
    yield secret.encode()
    for lead in ("", "u:", "a", "ab"):
        yield base64.b64encode(f"{lead}{secret}".encode())[6:24]


@pytest.mark.parametrize("place", PLACES)
def test_no_kind_of_secret_is_in_any_byte_whatever_place_it_stands_in(place: str) -> None:
    for kind, shape in KINDS.items():
        secret = word()
        files = packed(**PLACES[place](shape(secret)))
        everything = b"\n".join((*map(str.encode, files), *files.values()))
        assert not any(each in everything for each in shapes(secret)), (kind, place)
        assert sum(json.loads(files["manifest.json"])["redacted"].values()) > 0, (kind, place)


def test_what_is_secret_by_name_in_one_place_is_taken_out_of_all_others() -> None:
    secrets = {name: word() for name in ("values", "manifest", "environment", "configuration")}
    inner = yaml.safe_dump(thing("Secret", stringData={"a": secrets["manifest"]}))
    pod = thing(
        "Pod",
        spec={
            "containers": [{"name": "c", "image": "i", "env": [{"name": "PASSWORD", "value": secrets["environment"]}]}]
        },
    )
    values = {"licence": {"token": secrets["values"]}}
    files = packed(
        [release(values, inner, ""), pod, thing("ConfigMap", data={"apiKey": secrets["configuration"]})],
        logs=tuple(
            Log(text=f"tried {each} in vain, then {base64.b64encode(each.encode()).decode()}", pod=name)
            for name, each in secrets.items()
        ),
    )
    everything = b"\n".join(files.values())
    for name, each in secrets.items():
        assert not any(shape in everything for shape in shapes(each)), name
    assert b"in vain" in everything
    row = json.loads(files["manifest.json"])["files"]["logs/00000__values_.log"]
    assert row["status"] == "ok" and sum(row["redacted"].values()) == 2


def test_pseudonyms_leave_no_nodes_name_address_or_serial_and_keep_things_apart() -> None:
    names = ["rack7-dgx-alpha", "rack7-dgx-alpha-2", "batch.gpu.corp.example"]
    uuid = "GPU-8f6d1c2e-1111-2222-3333-444455556666"
    pods = [thing("Pod", spec={"nodeName": each, "containers": []}) for each in names]
    for number, each in enumerate(pods):
        each["metadata"] = {"name": f"p{number}", "namespace": "gpu-operator"}
    files = packed(
        [*map(node, names), *pods],
        pseudonyms=True,
        logs=tuple(
            Log(text=f"on {each} at 10.20.30.4{number}, {uuid}, from root@corp.example", pod="p", node=each)
            for number, each in enumerate(names)
        ),
        facts=tuple(NodeFacts(name=each, facts={"kernel": "6.8.0"}) for each in names),
    )
    everything = b"\n".join((*map(str.encode, files), *files.values()))
    for real in (*names, "10.20.30.4", uuid, "corp.example"):
        assert real.encode() not in everything, real
    found = [json.loads(line) for line in files["objects/pods.0000.jsonl"].splitlines()]
    placed = {each["metadata"]["name"]: each["spec"]["nodeName"] for each in found}
    assert len(set(placed.values())) == len(names)
    for number, pod in itertools.product(range(3), placed):
        log = json.loads(files["logs/index.jsonl"].splitlines()[number])
        assert (log["node"] == placed[pod]) == (pod == f"p{number}")
    assert {f"nodes/{each}/facts.yaml" for each in placed.values()} <= set(files)


def test_helms_story_and_the_files_people_read_are_there() -> None:
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusterpolicies.nvidia.com"},
        "spec": {"versions": [{"name": "v1", "schema": {"b": 1, "a": 2}}]},
    }
    files = packed([release({"driver": {"enabled": False}}, yaml.safe_dump(thing("ConfigMap")), ""), node("n")])
    (row,) = yaml.safe_load_all(files["helm/gpu-operator_gpu-operator/history.yaml"])
    assert (row["revision"], row["status"], row["hooks"][0]["events"]) == (1, "deployed", ["pre-install"])
    assert yaml.safe_load(files["helm/gpu-operator_gpu-operator/001.computed.yaml"]) == {"driver": {"enabled": False}}
    assert yaml.safe_load(files["yaml/nodes.yaml"])["metadata"]["name"] == "n"
    survey = Survey(objects={"customresourcedefinitions": (definition,)})
    (extra,) = gather_files.definitions(survey)
    assert extra.documents is not None
    assert extra.documents[0]["versions"][0]["schema"] == gather_files.schema_hash({"a": 2, "b": 1})
