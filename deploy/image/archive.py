"""Folders into layers, layers into an OCI archive: the same bytes for the same content.

A layer is a gzipped tar archive with sorted entries, one time, owner 0 and modes that do not depend on who built it.
The archive follows the OCI image layout and carries docker's manifest.json too, so that `ctr images import` and
`docker load` both take it. Nothing here knows what an image is for.
"""

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

OCI = "application/vnd.oci.image"
LAYER = f"{OCI}.layer.v1.tar+gzip"
_LEVEL = 6


@dataclass(frozen=True)
class Layer:
    """A finished layer: the gzipped file, its digest and size in bytes, and digest and size of what is in it."""

    path: Path
    digest: str
    size: int
    diff_id: str
    unpacked: int


@dataclass(frozen=True)
class Image:
    """One image of an archive: full references it is known by, its layers and its configuration (`config` of OCI)."""

    references: tuple[str, ...]
    layers: tuple[Layer, ...]
    architecture: str
    created: str
    config: Mapping[str, Any]
    annotations: Mapping[str, str] = field(default_factory=dict)


class _Digesting(io.RawIOBase):
    """A file that remembers the digest and size of what was written to it."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._sum = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._sum.update(data)
        self.size += len(data)
        return self._target.write(data)

    @property
    def digest(self) -> str:
        return "sha256:" + self._sum.hexdigest()


def layer(root: Path, target: Path, epoch: int) -> Layer:
    """Write a folder as a layer whose files all have the time `epoch` (seconds since 1970)."""
    partial = target.with_name(target.name + ".partial")
    with partial.open("wb") as file:
        outer = _Digesting(file)
        with gzip.GzipFile(filename="", mode="wb", fileobj=outer, compresslevel=_LEVEL, mtime=0) as packed:
            inner = _Digesting(packed)  # type: ignore[arg-type]
            with tarfile.open(fileobj=inner, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                for entry in _entries(root):
                    _add(tar, root, entry, epoch)
    partial.replace(target)
    return Layer(target, outer.digest, outer.size, inner.digest, inner.size)


def _entries(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders.sort()
        here = Path(folder).relative_to(root)
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in sorted([*files, *folders]):
            yield str(here / name)
        folders[:] = [name for name in folders if name not in links]


def _add(tar: tarfile.TarFile, root: Path, name: str, epoch: int) -> None:
    path = root / name
    status = path.lstat()
    info = tarfile.TarInfo(name)
    info.mtime = epoch
    if stat.S_ISLNK(status.st_mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        tar.addfile(info)
    elif stat.S_ISDIR(status.st_mode):
        info.type, info.mode = tarfile.DIRTYPE, 0o1777 if status.st_mode & stat.S_ISVTX else 0o755
        tar.addfile(info)
    else:
        info.size, info.mode = status.st_size, 0o755 if status.st_mode & stat.S_IXUSR else 0o644
        with path.open("rb") as file:
            tar.addfile(info, file)


# --- the archive -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """An archive's image as it was written: its first reference, manifest digest and sizes in bytes."""

    reference: str
    digest: str
    compressed: int
    unpacked: int


def full_reference(reference: str) -> str:
    """A reference with registry and tag, as containerd wants it: `a:1` is `docker.io/library/a:1`."""
    host, slash, _ = reference.partition("/")
    if not slash:
        reference = f"docker.io/library/{reference}"
    elif not ("." in host or ":" in host or host == "localhost"):
        reference = f"docker.io/{reference}"
    return reference if ":" in reference.rpartition("/")[2] or "@" in reference else f"{reference}:latest"


def write(images: Sequence[Image], target: Path) -> list[Written]:
    """Write an OCI archive of images; layers that several share are in it once."""
    blobs: dict[str, bytes | Path] = {}
    written, index, docker = [], [], []
    for image in images:
        config = _blob(blobs, _config(image))
        layers = []
        for part in image.layers:
            blobs[part.digest] = part.path
            layers.append({"mediaType": LAYER, "digest": part.digest, "size": part.size})
        described = {"mediaType": f"{OCI}.config.v1+json", **config}
        document = {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": described,
            "layers": layers,
            **({"annotations": dict(image.annotations)} if image.annotations else {}),
        }
        manifest = _blob(blobs, document)
        index += [_index_entry(image, manifest, full_reference(name)) for name in image.references]
        docker.append(
            {
                "Config": _member(config["digest"]),
                "RepoTags": [full_reference(name).removeprefix("docker.io/library/") for name in image.references],
                "Layers": [_member(part.digest) for part in image.layers],
            }
        )
        written.append(_written(image, manifest))
    top = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": index}
    files = {"oci-layout": {"imageLayoutVersion": "1.0.0"}, "index.json": top, "manifest.json": docker}
    _write_archive(target, blobs, {name: _json(value) for name, value in files.items()})
    return written


def _config(image: Image) -> dict[str, Any]:
    return {
        "architecture": image.architecture,
        "os": "linux",
        "created": image.created,
        "config": dict(image.config),
        "rootfs": {"type": "layers", "diff_ids": [part.diff_id for part in image.layers]},
        "history": [{"created": image.created, "created_by": "deploy/image"} for _ in image.layers],
    }


def _index_entry(image: Image, manifest: Mapping[str, Any], reference: str) -> dict[str, Any]:
    return {
        "mediaType": f"{OCI}.manifest.v1+json",
        **manifest,
        "platform": {"architecture": image.architecture, "os": "linux"},
        "annotations": {
            "io.containerd.image.name": reference,
            "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
        },
    }


def _written(image: Image, manifest: Mapping[str, Any]) -> Written:
    return Written(
        image.references[0],
        str(manifest["digest"]),
        sum(part.size for part in image.layers),
        sum(part.unpacked for part in image.layers),
    )


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _blob(blobs: dict[str, bytes | Path], value: Any) -> dict[str, Any]:
    data = _json(value)
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    blobs[digest] = data
    return {"digest": digest, "size": len(data)}


def _member(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _write_archive(target: Path, blobs: Mapping[str, bytes | Path], files: Mapping[str, bytes]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
        for folder in ("blobs", "blobs/sha256"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        for digest in sorted(blobs):
            _add_member(tar, _member(digest), blobs[digest])
        for name in sorted(files):
            _add_member(tar, name, files[name])
    partial.replace(target)


def _add_member(tar: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    if isinstance(content, bytes):
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    else:
        info.size = content.stat().st_size
        with content.open("rb") as file:
            tar.addfile(info, file)
