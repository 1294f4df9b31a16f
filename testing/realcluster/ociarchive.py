"""The smallest OCI archive: one static program, for a pod's `pause` container. Real images: `deploy/image`."""

import hashlib
import io
import json
import tarfile
from pathlib import Path


def write(program: Path, reference: str, archive: Path) -> Path:
    """An archive, for `ctr images import`, of an image that holds one static program and runs it."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        entry = tarfile.TarInfo(program.name)
        entry.mode, entry.size = 0o755, program.stat().st_size
        with program.open("rb") as source:
            tar.addfile(entry, source)
    blobs: dict[str, bytes] = {}

    def put(data: bytes) -> dict[str, str | int]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}", "size": len(data)}

    kind = "application/vnd.oci.image."
    stored = put(layer.getvalue())
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/" + program.name]},
        "rootfs": {"type": "layers", "diff_ids": [stored["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": kind + "manifest.v1+json",
        "config": {"mediaType": kind + "config.v1+json", **put(json.dumps(config).encode())},
        "layers": [{"mediaType": kind + "layer.v1.tar", **stored}],
    }
    entry_of = {"mediaType": kind + "manifest.v1+json", **put(json.dumps(manifest).encode())}
    index = {"schemaVersion": 2, "manifests": [{**entry_of, "annotations": {"io.containerd.image.name": reference}}]}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode(), **blobs}
    with tarfile.open(archive, "w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return archive
