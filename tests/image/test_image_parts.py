"""The image builder's parts, without network: archives that never differ, wheels laid out, names, tables, errors."""

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.image import aliases, archive, build, contents, debian, launcher, tools, wheels
from deploy.image.errors import ImageError
from groundplane.lab import images, onnode

REFERENCES = {
    "groundplane": "docker.io/library/groundplane:latest",
    "groundplane:0.1.0": "docker.io/library/groundplane:0.1.0",
    "library/groundplane:1": "docker.io/library/groundplane:1",
    "nvcr.io/nvidia/driver:580-ubuntu24.04": "nvcr.io/nvidia/driver:580-ubuntu24.04",
    "localhost:5000/a/b": "localhost:5000/a/b:latest",
    "localhost/a:1": "localhost/a:1",
}


def tree(root: Path) -> Path:
    """A small root with what makes archives differ: order, modes, links, folders for everybody."""
    for name, text in (("usr/bin/tool", "#!/bin/sh\n"), ("etc/b", "b"), ("etc/a", "a")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "usr/bin/tool").chmod(0o700)
    (root / "bin").symlink_to("usr/bin")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    return root


def members(layer: archive.Layer) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(layer.path) as tar:
        return {info.name: info for info in tar}


# --- layers and archives ----------------------------------------------------------------------------------------------


def test_a_layer_does_not_depend_on_who_made_it_when(tmp_path: Path) -> None:
    first = archive.layer(tree(tmp_path / "one"), tmp_path / "one.tar.gz", 7)
    old = os.umask(0o077)
    try:
        again = tree(tmp_path / "two")
    finally:
        os.umask(old)
    os.utime(again / "etc/a", (1, 1))
    second = archive.layer(again, tmp_path / "two.tar.gz", 7)
    assert (first.digest, first.diff_id, first.size) == (second.digest, second.diff_id, second.size)
    assert archive.layer(again, tmp_path / "two.tar.gz", 8).digest != first.digest


def test_a_layer_is_what_its_digests_say_and_holds_the_folder(tmp_path: Path) -> None:
    made = archive.layer(tree(tmp_path / "root"), tmp_path / "layer.tar.gz", 7)
    data = made.path.read_bytes()
    assert made.digest == "sha256:" + hashlib.sha256(data).hexdigest()
    assert made.size == len(data)
    found = members(made)
    assert list(found) == ["bin", "etc", "tmp", "usr", "etc/a", "etc/b", "usr/bin", "usr/bin/tool"]
    assert {(info.uid, info.gid, info.uname, info.mtime) for info in found.values()} == {(0, 0, "", 7)}
    modes = {name: stat.S_IMODE(info.mode) for name, info in found.items()}
    assert modes["tmp"] == 0o1777
    assert (modes["etc"], modes["etc/a"], modes["usr/bin/tool"]) == (0o755, 0o644, 0o755)
    assert (found["bin"].issym(), found["bin"].linkname) == (True, "usr/bin")


def read(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar if info.isfile()}  # type: ignore[union-attr]


def test_an_archive_is_an_oci_layout_that_docker_takes_too(tmp_path: Path) -> None:
    layer = archive.layer(tree(tmp_path / "root"), tmp_path / "layer.tar.gz", 7)
    image = archive.Image(("a:1", "b.io/c/d:2"), (layer,), "amd64", "2026-01-01T00:00:00Z", {"User": "1"}, {"k": "v"})
    other = archive.Image(("e:1",), (layer,), "amd64", "2026-01-01T00:00:00Z", {"User": "2"})
    written = archive.write([image, other], tmp_path / "image.tar")
    assert [each.unpacked for each in written] == [layer.unpacked] * 2
    files = read(tmp_path / "image.tar")
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(files["index.json"])["manifests"]
    named = {entry["annotations"]["io.containerd.image.name"]: entry for entry in index}
    assert set(named) == {"docker.io/library/a:1", "b.io/c/d:2", "docker.io/library/e:1"}
    assert named["b.io/c/d:2"]["digest"] == written[0].digest
    for name, data in files.items():
        if name.startswith("blobs/"):
            assert name == "blobs/sha256/" + hashlib.sha256(data).hexdigest()
    assert len([name for name in files if name.startswith("blobs/")]) == 5, "one layer, two configurations, manifests"
    manifest = json.loads(files["blobs/" + written[0].digest.replace(":", "/")])
    config = json.loads(files["blobs/" + manifest["config"]["digest"].replace(":", "/")])
    assert config["rootfs"]["diff_ids"] == [layer.diff_id]
    assert config["config"] == {"User": "1"}
    docker = json.loads(files["manifest.json"])
    assert docker[0]["RepoTags"] == ["a:1", "b.io/c/d:2"]
    assert docker[0]["Layers"] == ["blobs/" + layer.digest.replace(":", "/")]


@pytest.mark.parametrize(("reference", "full"), REFERENCES.items())
def test_references_are_completed_as_containerd_wants_them(reference: str, full: str) -> None:
    assert archive.full_reference(reference) == full


# --- packages ---------------------------------------------------------------------------------------------------------


def test_what_apt_prints_is_read_with_its_digest() -> None:
    line = f"'http://x/busybox_1.35.0-4%2bb1_amd64.deb' busybox_1%3a1.35.0-4+b1_amd64.deb 452120 SHA256:{'a' * 64}"
    match = debian._URI.match(line)
    assert match is not None
    package = debian._package(match)
    assert (package.name, package.version, package.arch) == ("busybox", "1:1.35.0-4+b1", "amd64")
    assert package.file == "busybox_1%3a1.35.0-4+b1_amd64.deb"
    assert str(package) == f"busybox 1:1.35.0-4+b1 amd64 sha256:{'a' * 64}"


def test_a_package_file_that_is_not_what_the_index_says_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = debian.Package("p", "1", "all", "p_1_all.deb", hashlib.sha256(b"good").hexdigest())
    (tmp_path / package.file).write_bytes(b"bad")
    asked: list[list[str]] = []

    def download(command: list[str], **_more: Any) -> str:
        asked.append(command)
        (tmp_path / package.file).write_bytes(b"good" if len(asked) == 1 else b"bad")
        return ""

    monkeypatch.setattr(tools, "run", download)
    assert debian.fetch([package], tmp_path) == [tmp_path / package.file]
    assert asked[0][-1] == "p=1"
    assert debian.fetch([package], tmp_path)
    assert len(asked) == 1, "what is there and right is not fetched"
    (tmp_path / package.file).unlink()
    with pytest.raises(ImageError, match=r"p_1_all\.deb is not what apt's index says"):
        debian.fetch([package], tmp_path)


def test_missing_libraries_are_named(tmp_path: Path) -> None:
    program = Path(os.path.realpath(sys.executable))
    if program.read_bytes()[:4] != b"\x7fELF":
        pytest.skip("this Python is no ELF file")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_bytes(program.read_bytes())
    lacking = debian.unresolved(tmp_path)
    assert "/bin/python: libc.so.6" in lacking
    for name in {line.partition(": ")[2] for line in lacking}:
        (tmp_path / name).symlink_to("elsewhere.so")
    assert debian.unresolved(tmp_path) == []


def test_accounts_certificates_and_shell_are_put_in_place(tmp_path: Path) -> None:
    for name in ("etc", "usr/bin", "usr/share/ca-certificates/mozilla"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "usr/share/ca-certificates/mozilla/b.crt").write_text("B\n\n")
    (tmp_path / "usr/share/ca-certificates/mozilla/a.crt").write_text("A")
    (tmp_path / "usr/bin/tar").write_text("the package's own")
    debian.settle(tmp_path, [debian.Package("p", "1", "all", "f", "0")])
    debian.link_busybox(tmp_path, ["tar", "cat"])
    assert (tmp_path / "etc/ssl/certs/ca-certificates.crt").read_text() == "A\nB\n"
    assert (tmp_path / "usr/share/groundplane/packages").read_text() == "p 1 all sha256:0\n"
    assert f"nonroot:x:{contents.USER}:{contents.USER}:" in (tmp_path / "etc/passwd").read_text()
    links = {name: (tmp_path / "usr/bin" / name) for name in ("sh", "cat", "tar")}
    assert links["sh"].readlink() == Path("bash")
    assert links["cat"].readlink() == Path("busybox")
    assert not links["tar"].is_symlink()


def test_packages_that_are_left_out_have_a_reason_and_are_not_asked_for() -> None:
    assert all(contents.LEFT_OUT.values())
    assert not set(contents.LEFT_OUT) & set(contents.PACKAGES)


# --- wheels -----------------------------------------------------------------------------------------------------------


def wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as out:
        for file, text in files.items():
            info = zipfile.ZipInfo(file)
            info.external_attr = (0o755 if file.endswith(".so") else 0o644) << 16
            out.writestr(info, text)
    return path


def test_wheels_are_laid_out_without_what_no_program_reads(tmp_path: Path) -> None:
    files = {
        "p/__init__.py": "",
        "p/fast.so": "",
        "p/fast.c": "",
        "p/typed.pyi": "",
        "p/sub/tests/test_x.py": "",
        "p/tests.py": "",
        "p-1.data/purelib/q/__init__.py": "",
        "p-1.data/scripts/tool": "#!python",
        "p-1.dist-info/METADATA": "Name: p",
    }
    wheels.lay_out([wheel(tmp_path, "p-1-py3-none-any.whl", files)], tmp_path / "site")
    found = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*") if path.is_file()}
    assert found == {"p/__init__.py", "p/fast.so", "p/tests.py", "q/__init__.py", "p-1.dist-info/METADATA"}
    assert (tmp_path / "site/p/fast.so").stat().st_mode & stat.S_IXUSR


@pytest.mark.parametrize("name", ["../out.py", "/out.py"])
def test_a_wheel_that_reaches_out_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ImageError, match="does not belong in it"):
        wheels.lay_out([wheel(tmp_path, "p-1-py3-none-any.whl", {name: ""})], tmp_path / "site")


def test_two_wheels_with_one_file_are_refused(tmp_path: Path) -> None:
    both = [wheel(tmp_path, f"{name}-1-py3-none-any.whl", {"x.py": ""}) for name in "pq"]
    with pytest.raises(ImageError, match=r"q-1-py3-none-any\.whl has x\.py, which another wheel has too"):
        wheels.lay_out(both, tmp_path / "site")


# --- names and programs -----------------------------------------------------------------------------------------------


def test_every_executable_of_the_operands_images_has_a_link() -> None:
    linked = {Path(path).name for path in launcher.links()}
    wanted = {
        name for key, image in images.IMAGES.items() for name in image.executables if key not in ("pause", "nginx")
    }
    assert wanted <= linked
    assert {"groundplane", "gpu-operator", "manage-crds", "node-features"} <= linked
    assert "usr/bin/nvidia-smi" not in launcher.links(), "it comes with the driver, or by injection"
    assert f"{launcher.DRIVER_PATH}/nvidia-smi" in launcher.links()


@pytest.mark.parametrize("target", [*contents.EXECUTABLES.values(), contents.STAND_INS])
def test_every_program_of_the_launcher_can_be_called(target: str) -> None:
    module, _, function = target.partition(":")
    assert callable(getattr(__import__(module, fromlist=[function]), function))


def test_the_launcher_runs_the_program_it_is_called_by(tmp_path: Path) -> None:
    path = tmp_path / "launcher"
    path.write_text(launcher.source().replace("#!/usr/bin/python3 -I", f"#!{sys.executable}"))
    path.chmod(0o755)
    outcomes = {"groundplane": "groundplane, version", "gpu-operator": "usage: gpu-operator", "nothing": "no stand-in"}
    for name, words in outcomes.items():
        (tmp_path / name).symlink_to(path)
        argument = "--version" if name == "groundplane" else "--help"
        command = [str(tmp_path / name), argument]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert words in done.stdout + done.stderr


BASE = archive.Image(
    ("groundplane:1",), (), "amd64", "x", {"User": "65532:65532", "Entrypoint": ["/usr/bin/gpu-operator"], "Env": []}
)


@pytest.mark.parametrize(
    ("reference", "entrypoint", "user", "environment"),
    [
        ("x.io/gpu-operator:1", ["/usr/bin/gpu-operator"], "65532:65532", {"NVIDIA_VISIBLE_DEVICES": "void"}),
        ("nvcr.io/nvidia/k8s/dcgm-exporter:4", ["dcgm-exporter"], "0:0", {"NVIDIA_VISIBLE_DEVICES": "all"}),
        ("r:5000/driver:580.1-ubuntu24.04", ["nvidia-driver", "init"], "0:0", {onnode.IMAGE_ENV: "driver"}),
    ],
)  # fmt: skip
def test_aliases_have_the_entrypoint_user_and_environment_of_the_image_they_stand_for(
    reference: str, entrypoint: list[str], user: str, environment: dict[str, str]
) -> None:
    (made,) = aliases.aliases(BASE, [reference], environment={"MORE": "1"})
    found = dict(pair.split("=", 1) for pair in made.config["Env"])
    assert (made.references, made.config["Entrypoint"], made.config["User"]) == ((reference,), entrypoint, user)
    assert found.items() >= {**environment, onnode.REFERENCE_ENV: reference, "MORE": "1"}.items()
    assert ("/driver/bin:" in found["PATH"]) is ("driver:" in reference)


def test_an_alias_may_have_another_images_entrypoint() -> None:
    (made,) = aliases.aliases(BASE, {"x.io/mine:1": "dcgm"})
    assert made.config["Entrypoint"] == ["nv-hostengine"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: aliases.aliases(BASE, ["x.io/nothing:1"]), "no stand-in for image x.io/nothing:1"),
        (lambda: aliases.aliases(BASE, {"x.io/a:1": "nothing"}), "unknown entrypoint 'nothing'"),
    ],
)
def test_an_image_that_the_lab_does_not_have_is_named(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ImageError, match=words):
        call()


# --- errors and settings ----------------------------------------------------------------------------------------------


def test_a_missing_tool_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageError, match=r"apt-get is not on PATH: .*deploy/image/Containerfile"):
        debian.select(tmp_path)


def test_a_failed_command_shows_its_last_lines_and_the_remedy() -> None:
    script = "import sys; [print(n) for n in range(40)]; sys.exit('it broke')"
    with pytest.raises(ImageError, match=r"(?s)counting failed .*ended with 1.*39.*it broke.*try less") as error:
        tools.run([sys.executable, "-c", script], what="counting", remedy="try less")
    assert "\n10\n" not in str(error.value)


def test_a_broken_package_is_an_error() -> None:
    with pytest.raises(ImageError, match="unpacking failed"):
        tools.pipe([sys.executable, "-c", "raise SystemExit(3)"], ["cat"], what="unpacking")
    with pytest.raises(ImageError, match="unpacking failed: no"):
        no = [sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit('no')"]
        tools.pipe(["true"], no, what="unpacking")


def test_the_images_time_is_given_or_the_commits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "12")
    assert build.epoch() == 12
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "today")
    with pytest.raises(ImageError, match="SOURCE_DATE_EPOCH is 'today'"):
        build.epoch()
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(ImageError, match="outside a git checkout set SOURCE_DATE_EPOCH"):
        build.epoch(tmp_path)
    assert build.revision(tmp_path) == ""


def test_only_the_latest_layers_stay_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_LAYERS_KEPT", 2)
    root = tree(tmp_path / "root")
    made = []
    prepared: list[str] = []
    for number, key in enumerate("abca"):
        layer = build._layer(root, key, 7, tmp_path / "out", tmp_path / "kept", lambda key=key: prepared.append(key))
        os.utime(tmp_path / "kept" / f"{key}.json", (number, number))
        made.append(layer)
    assert prepared == ["a", "b", "c", "a"], "a was the oldest when c came"
    assert len({layer.digest for layer in made}) == 1
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "a.json", "a.tar.gz", "c.json", "c.tar.gz",
    ]  # fmt: skip
    assert build._layer(root, "c", 7, tmp_path / "out", tmp_path / "kept", lambda: prepared.append("again")).size
    assert prepared[-1] == "a"


def test_a_tree_is_written_into_a_new_folder_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ImageError, match="is not empty"):
        build.write_tree(tmp_path)


def test_the_containerfile_says_what_the_archive_says() -> None:
    lines = (build.TREE / "deploy/image/Containerfile").read_text().splitlines()
    said = dict(line.split(" ", 1) for line in lines if line.startswith(("ENV PATH", "USER", "ENTRYPOINT")))
    config = build._config({})
    assert said["ENV"].split() == config["Env"]
    assert said["USER"] == config["User"]
    assert json.loads(said["ENTRYPOINT"]) == config["Entrypoint"]


def test_bytes_are_bytes() -> None:
    target = io.BytesIO()
    counting = archive._Digesting(target)
    assert counting.write(b"abc") == 3
    assert (counting.size, counting.digest) == (3, "sha256:" + hashlib.sha256(b"abc").hexdigest())
