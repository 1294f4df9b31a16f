"""The ``manage-crds`` executable: brings custom resource definitions up to date, or deletes them (contract 6).

The chart's hooks run it. Helm does not touch definitions at an upgrade, so an upgraded operator would meet an old
schema, by which the API server silently drops new fields. :func:`apply` closes that gap: after it each definition holds
exactly what is wanted, whoever wrote it before, and the API server serves it. What a definition means is
``api/crd.py``'s.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from .. import __version__
from ..api import crd, node_features
from ..cluster import kinds
from ..cluster.client import Client
from ..cluster.config import Config
from ..cluster.errors import ClusterError, Conflict, NotFound

Document = dict[str, Any]
Tell = Callable[[str], None]

TIMEOUT_S: Final = 60.0
"""How long a definition may take to be served, or to be gone with all its objects."""
POLL_S: Final = 0.2
ATTEMPTS: Final = 5
"""How often a write is repeated when somebody else changed the definition meanwhile."""
FIELD_MANAGER: Final = "helm"
"""Definitions are written in Helm's name. Helm 4 installs them by server-side apply and would otherwise meet another
manager's fields at the next installation, and refuse."""


class DefinitionsError(Exception):
    """A file holds no usable definitions, or a definition cannot come about; the message says which and why."""


def shipped(*, features: bool = False) -> list[Document]:
    """The definitions of the kinds that this version of the operator knows, with ``features`` node features' too."""
    return [*crd.definitions(), *(node_features.definitions() if features else ())]


def load(path: str) -> list[Document]:
    """The definitions in a YAML file, or in the ``.yaml`` and ``.yml`` files of a folder, in the order of their names.

    Raises :class:`DefinitionsError` for a file that cannot be read, is no YAML, or holds something else.
    """
    place = Path(path)
    files = sorted(each for each in place.iterdir() if each.suffix in (".yaml", ".yml")) if place.is_dir() else [place]
    if not files:
        raise DefinitionsError(f"{path}: no .yaml file in this folder")
    found = [document for file in files for document in _documents(file)]
    if not found:
        raise DefinitionsError(f"{path}: no document in it")
    return found


def _documents(file: Path) -> Iterator[Document]:
    try:
        for document in yaml.load_all(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader):
            if document is None:
                continue
            _check(document, file)
            yield document
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionsError(f"{file}: {error}") from error
    except yaml.YAMLError as error:
        raise DefinitionsError(f"{file} is not YAML: {' '.join(str(error).split())}") from error


def _check(document: object, file: Path) -> None:
    found = "a document that is no mapping"
    if isinstance(document, Mapping):
        if (document.get("apiVersion"), document.get("kind")) == (kinds.CRD.api_version, kinds.CRD.kind):
            if isinstance(document.get("metadata"), Mapping) and document["metadata"].get("name"):
                return
            raise DefinitionsError(f"{file}: a {kinds.CRD.kind} without metadata.name")
        found = f"{document.get('apiVersion')} {document.get('kind')}"
    raise DefinitionsError(f"{file}: expected {kinds.CRD.api_version} {kinds.CRD.kind}, found {found}")


# --- apply ------------------------------------------------------------------------------------------------------------


async def apply(
    client: Client, definitions: Sequence[Document], *, tell: Tell = print, timeout_s: float = TIMEOUT_S
) -> None:
    """Create each definition or make it so, then wait until the API server serves them all.

    Its spec is afterwards exactly the wanted one, also where an older one had more, and Helm is its only field manager,
    whoever was it before. Labels and annotations of others stay. One that is right already is not written.

    Raises :class:`DefinitionsError` for one that is not served in time or whose names another holds, and
    :class:`~groundplane.cluster.errors.ClusterError` for a request that fails.
    """
    for definition in definitions:
        tell(f"{definition['metadata']['name']}: {await _write(client, definition)}")
    for definition in definitions:
        await _served(client, definition["metadata"]["name"], timeout_s)


async def _write(client: Client, wanted: Document) -> str:
    """Make one definition so; what was done, in a word."""
    name = wanted["metadata"]["name"]
    before: Document | None = None
    for _ in range(ATTEMPTS):
        try:
            live = await client.get(kinds.CRD, name)
        except NotFound:
            await client.apply(kinds.CRD, wanted, field_manager=FIELD_MANAGER)
            return "created"
        before = before or live
        try:
            await _take_over(client, live)
        except Conflict:
            continue
        written = await client.apply(kinds.CRD, wanted, field_manager=FIELD_MANAGER)
        if _taken_over(written) is None:
            return "unchanged" if _meaning(written) == _meaning(before) else "updated"
    raise DefinitionsError(f"{name}: somebody else writes it all the time: {_others(live)}; stop that and try again")


def _meaning(document: Document) -> tuple[Any, ...]:
    metadata = document["metadata"]
    return document["spec"], metadata.get("labels") or {}, metadata.get("annotations") or {}


# An apply removes only what its own manager set before. So that it removes every field of an older spec, and nothing of
# other people's metadata, whatever others hold of the spec is first put down to our manager, as if it had applied it.


async def _take_over(client: Client, live: Document) -> None:
    """Make our manager the only one of the spec. Raises :class:`Conflict` if the definition has changed meanwhile."""
    entries = _taken_over(live)
    if entries is not None:
        metadata = {"resourceVersion": live["metadata"]["resourceVersion"], "managedFields": entries}
        await client.patch(kinds.CRD, live["metadata"]["name"], {"metadata": metadata})


def _taken_over(live: Document) -> list[Document] | None:
    """The ``managedFields`` after a take-over, None where no one else holds anything of the spec."""
    spec: Document = {}
    kept: list[Document] = []
    ours: Document | None = None
    taken = False
    for entry in live["metadata"].get("managedFields") or []:
        fields = dict(entry.get("fieldsV1") or {})
        if entry.get("subresource"):
            kept.append(entry)
        elif (entry.get("manager"), entry.get("operation")) == (FIELD_MANAGER, "Apply"):
            ours = entry
        elif "f:spec" in fields:
            taken = True
            spec = _union(spec, fields.pop("f:spec"))
            if fields:
                kept.append({**entry, "fieldsV1": fields})
        else:
            kept.append(entry)
    if not taken:
        return None
    if ours is None:
        ours = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {}}
        ours["apiVersion"] = kinds.CRD.api_version
    return [*kept, {**ours, "fieldsV1": _union(ours["fieldsV1"], {"f:spec": spec})}]


def _union(one: Document, two: Document) -> Document:
    """Two sets of fields in one, in the notation of ``fieldsV1``."""
    return {**one, **{key: _union(one.get(key, {}), value) for key, value in two.items()}}


def _others(live: Document) -> str:
    entries = live["metadata"].get("managedFields") or []
    return ", ".join(sorted({each.get("manager", "") for each in entries} - {FIELD_MANAGER})) or "an unknown manager"


async def _served(client: Client, name: str, timeout_s: float) -> None:
    """Wait until a definition is established."""
    deadline = time.monotonic() + timeout_s
    while True:
        live = await client.get(kinds.CRD, name)
        conditions = {each["type"]: each for each in live.get("status", {}).get("conditions") or []}
        if conditions.get("Established", {}).get("status") == "True":
            return
        refused = conditions.get("NamesAccepted", {})
        if refused.get("status") == "False":
            raise DefinitionsError(
                f"{name}: its names are not accepted: {refused.get('message') or refused.get('reason')}; "
                "delete the definition that holds them (kubectl get crds)"
            )
        if time.monotonic() >= deadline:
            told = conditions.get("Established", {}).get("message") or "the API server says nothing about it"
            raise DefinitionsError(f"{name}: still not served after {timeout_s:g} s: {told}")
        await asyncio.sleep(POLL_S)


# --- delete -----------------------------------------------------------------------------------------------------------


async def delete(
    client: Client, definitions: Sequence[Document], *, tell: Tell = print, timeout_s: float = TIMEOUT_S
) -> None:
    """Delete each definition, with all objects of its kind, and wait until they are gone.

    One that is not there is no error. Raises :class:`DefinitionsError` when objects hold a definition back past
    ``timeout_s`` (it names what they wait for), and :class:`~groundplane.cluster.errors.ClusterError`.
    """
    for definition in definitions:
        name = definition["metadata"]["name"]
        try:
            await client.delete(kinds.CRD, name)
        except NotFound:
            tell(f"{name}: not there")
            continue
        await _gone(client, name, timeout_s)
        tell(f"{name}: deleted")


async def _gone(client: Client, name: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            live = await client.get(kinds.CRD, name)
        except NotFound:
            return
        if time.monotonic() >= deadline:
            conditions = {each["type"]: each for each in live.get("status", {}).get("conditions") or []}
            told = conditions.get("Terminating", {}).get("message") or "no reason is given"
            raise DefinitionsError(
                f"{name}: still there after {timeout_s:g} s: {told}; look for finalizers of its objects "
                f"(kubectl get {name} -o yaml)"
            )
        await asyncio.sleep(POLL_S)


# --- the executable ---------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``manage-crds``; the exit status. 1 with the reason on standard error, :class:`SystemExit` for misuse."""
    flags = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    try:
        definitions = [each for path in flags.filepath for each in load(path)] or shipped(features=flags.nfd)
        asyncio.run(_run(flags, Config.detect(kubeconfig=flags.kubeconfig), definitions))
    except (DefinitionsError, ClusterError, OSError) as error:
        sys.stderr.write(f"manage-crds: {error}\n")
        return 1
    return 0


async def _run(flags: argparse.Namespace, config: Config, definitions: Sequence[Document]) -> None:
    action = {"apply": apply, "delete": delete}[flags.action]
    async with Client(config, user_agent=f"manage-crds/{__version__}") as client:
        await action(client, definitions, tell=lambda text: print(text, flush=True), timeout_s=flags.timeout)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="manage-crds",
        description="Brings the custom resource definitions of a cluster up to date, or deletes them.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (
        ("apply", "create each definition or make it so, and wait until the API server serves it"),
        ("delete", "delete each definition with every object of its kind, and wait until all is gone"),
    ):
        action = actions.add_parser(name, help=text, description=text.capitalize() + ".", allow_abbrev=False)
        action.add_argument(
            "--filepath",
            action="append",
            default=[],
            metavar="PATH",
            help="a file or folder of definitions; may be repeated [those of this version of the operator]",
        )
        action.add_argument(
            "--nfd", action="store_true", help="with those of this version, node-feature-discovery's too"
        )
        action.add_argument(
            "--timeout", type=_seconds, default=TIMEOUT_S, metavar="SECONDS", help=f"how long to wait [{TIMEOUT_S:g}]"
        )
        action.add_argument(
            "--kubeconfig", metavar="FILE", help="how to reach the cluster [KUBECONFIG, else in-cluster]"
        )
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds such as 60")
    return seconds
