"""A pod's volumes: what appears where in its containers.

Host paths come from the node's own file tree; ConfigMaps, Secrets, downward API files, tokens and empty folders are
written below the kubelet's folder of the pod, as a kubelet does. A volume that cannot be set up is a MountError whose
text is the event's.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...node.hostroot import HostRoot
from ..host import SimulatedHost
from ..programs import Mount, expand
from .environment import ConfigError, Document, Lookup, contents, field_value, resource_value


class MountError(RuntimeError):
    """A volume cannot be set up (event FailedMount)."""


class SubPathError(RuntimeError):
    """A mount's subPath cannot be used (container waits with CreateContainerConfigError)."""


def pod_folder(uid: str) -> str:
    """The kubelet's folder of a pod, as a host path."""
    return f"/var/lib/kubelet/pods/{uid}"


def _is_folder(path: Path) -> bool:
    return path.is_dir()


_HOST_PATH_CHECKS: dict[str, tuple[Callable[[Path], bool], str]] = {
    "Directory": (_is_folder, "is not a directory"),
    "File": (Path.is_file, "is not a file"),
    "Socket": (Path.is_socket, "is not a socket file"),
    "CharDevice": (Path.exists, "is not a character device"),
    "BlockDevice": (Path.exists, "is not a block device"),
}


class PodVolumes:
    """Sets up the volumes of one pod and turns a container's mounts into trees."""

    def __init__(self, host: SimulatedHost, pod: Document, status: Document, node: Document, lookup: Lookup) -> None:
        self._host = host
        self._pod = pod
        self._status = status
        self._node = node
        self._lookup = lookup
        self._trees: dict[str, tuple[HostRoot, str]] = {}

    def set_up(self) -> None:
        """Set up every volume the pod names. MountError, naming the volume, at the first that fails."""
        for volume in self._pod["spec"].get("volumes") or ():
            name = volume["name"]
            try:
                self._trees[name] = self._tree(volume)
            except (MountError, ConfigError, OSError) as error:
                raise MountError(f'MountVolume.SetUp failed for volume "{name}" : {error}') from error

    def mounts(self, container: Document, env: Mapping[str, str]) -> tuple[Mount, ...]:
        """The trees of a container's volume mounts. SubPathError if a subPath leaves its volume or is missing."""
        return tuple(self._mount(mount, env) for mount in container.get("volumeMounts") or ())

    def _mount(self, mount: Document, env: Mapping[str, str]) -> Mount:
        root, inside = self._trees[mount["name"]]
        sub = mount.get("subPath") or expand(mount.get("subPathExpr") or "", env)
        if ".." in sub.split("/") or sub.startswith("/"):
            raise SubPathError(
                f'failed to prepare subPath for volumeMount "{mount["name"]}" of container: {sub!r} leaves it'
            )
        if sub:
            inside = f"{inside.rstrip('/')}/{sub}"
            if not root.exists(inside):
                self._sub_folder(root, inside, mount["name"])
        at = "/" + mount["mountPath"].strip("/")
        return Mount(at, root, inside, bool(mount.get("readOnly")))

    @staticmethod
    def _sub_folder(root: HostRoot, inside: str, volume: str) -> None:
        """Make a missing subPath a folder, as the kubelet does."""
        try:
            root.mkdir(inside)
        except OSError as error:
            raise SubPathError(f'failed to create subPath directory for volumeMount "{volume}": {error}') from error

    def _tree(self, volume: Document) -> tuple[HostRoot, str]:
        if "hostPath" in volume:
            return self._host_path(volume["hostPath"])
        uid = self._pod["metadata"]["uid"]
        for key, (plugin, files) in _SOURCES.items():
            if key in volume:
                folder = f"{pod_folder(uid)}/volumes/kubernetes.io~{plugin}/{volume['name']}"
                return self._written(folder, files(self, volume[key] or {}))
        kinds = ", ".join(sorted({"hostPath", *_SOURCES}))
        raise MountError(f"the lab has no such kind of volume ({', '.join(set(volume) - {'name'})}); it knows {kinds}")

    def _host_path(self, source: Document) -> tuple[HostRoot, str]:
        path, kind = source["path"], source.get("type") or ""
        real = self._host.root.path(path)
        if kind == "DirectoryOrCreate" and not real.exists():
            real.mkdir(parents=True)
        elif kind == "FileOrCreate" and not real.exists():
            real.parent.mkdir(parents=True, exist_ok=True)
            real.touch()
        check = {"DirectoryOrCreate": "Directory", "FileOrCreate": "File"}.get(kind, kind)
        if check:
            fits, otherwise = _HOST_PATH_CHECKS[check]
            if not fits(real):
                raise MountError(f"hostPath type check failed: {path} {otherwise}")
        elif not real.exists():
            real.mkdir(parents=True)  # as the container runtime: a missing source becomes a folder
        return self._host.root, path

    def _written(self, folder: str, files: Iterator[tuple[str, bytes, int]]) -> tuple[HostRoot, str]:
        real = self._host.root.mkdir(folder)
        for name, data, mode in files:
            target = HostRoot(real).path(name)
            if target.is_file() and target.read_bytes() == data:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(mode)
        return HostRoot(real), "/"

    # --- what the files of each kind of volume are --------------------------------------------------------------------

    def _empty(self, _source: Document) -> Iterator[tuple[str, bytes, int]]:
        return iter(())

    def _config_map(self, source: Document) -> Iterator[tuple[str, bytes, int]]:
        return self._keys("ConfigMap", source.get("name") or "", source)

    def _secret(self, source: Document) -> Iterator[tuple[str, bytes, int]]:
        return self._keys("Secret", source.get("secretName") or source.get("name") or "", source)

    def _keys(self, kind: str, name: str, source: Document, mode: int = 0o644) -> Iterator[tuple[str, bytes, int]]:
        found = self._lookup(kind, name)
        if found is None:
            if source.get("optional"):
                return
            raise MountError(f'{kind.lower()} "{name}" not found')
        values = contents(kind, found)
        mode = source.get("defaultMode") or mode
        if not source.get("items"):
            yield from ((key, data, mode) for key, data in values.items())
            return
        for item in source["items"]:
            if item["key"] in values:
                yield item["path"], values[item["key"]], item.get("mode") or mode
            elif not source.get("optional"):
                raise MountError(f"references non-existent {kind.lower()} key: {item['key']}")

    def _downward(self, source: Document) -> Iterator[tuple[str, bytes, int]]:
        mode = source.get("defaultMode") or 0o644
        for item in source.get("items") or ():
            if "fieldRef" in item:
                text = field_value(self._pod, self._status, item["fieldRef"]["fieldPath"])
            else:
                text = resource_value(self._pod, {}, self._node, item["resourceFieldRef"])
            yield item["path"], text.encode(), item.get("mode") or mode

    def _token(self, source: Document) -> Iterator[tuple[str, bytes, int]]:
        uid, account = self._pod["metadata"]["uid"], self._pod["spec"].get("serviceAccountName", "default")
        digest = hashlib.sha256(f"{uid}/{account}".encode()).hexdigest()
        yield source.get("path") or "token", f"lab.{digest}".encode(), 0o600

    def _projected(self, source: Document) -> Iterator[tuple[str, bytes, int]]:
        mode = source.get("defaultMode") or 0o644
        for part in source.get("sources") or ():
            if "configMap" in part:
                yield from self._keys("ConfigMap", part["configMap"]["name"], part["configMap"], mode)
            elif "secret" in part:
                yield from self._keys("Secret", part["secret"]["name"], part["secret"], mode)
            elif "downwardAPI" in part:
                yield from self._downward(part["downwardAPI"])
            elif "serviceAccountToken" in part:
                yield from self._token(part["serviceAccountToken"])


Files = Callable[[PodVolumes, Any], Iterator[tuple[str, bytes, int]]]

_SOURCES: dict[str, tuple[str, Files]] = {
    "configMap": ("configmap", PodVolumes._config_map),
    "secret": ("secret", PodVolumes._secret),
    "emptyDir": ("empty-dir", PodVolumes._empty),
    "downwardAPI": ("downward-api", PodVolumes._downward),
    "projected": ("projected", PodVolumes._projected),
}
