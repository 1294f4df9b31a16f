"""The Go sources: style, vet, their own tests of pure functions, and what the build makes of them."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import unavailable

from deploy import golang, hostprogram


@pytest.fixture(scope="module")
def go() -> Path:
    """The Go command."""
    try:
        return golang.go()
    except golang.UnavailableError as error:
        unavailable(str(error))
        raise


def run(*command: str | Path) -> str:
    """Run a tool on the sources; what it says. It must succeed."""
    environment = {**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    environment.pop("GOFLAGS", None)
    done = subprocess.run(command, cwd=hostprogram.SOURCE, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_sources_are_formatted_and_vetted(go: Path) -> None:
    gofmt = go.with_name("gofmt") if go.with_name("gofmt").exists() else Path(shutil.which("gofmt") or "")
    assert run(gofmt, "-l", ".") == ""
    run(go, "vet", "-mod=readonly", "./...")


def test_go_tests(go: Path) -> None:
    said = run(go, "test", "-mod=readonly", "./...")
    tested = {line.split()[1].rpartition("/")[2] for line in said.splitlines() if line.startswith("ok")}
    assert tested == {"hooks", "oci", "registry", "requests", "requirements"}


def test_pins_are_tidy(go: Path) -> None:
    run(go, "mod", "verify")
    listed = run(go, "list", "-mod=readonly", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./...").split()
    required = (hostprogram.SOURCE / "go.mod").read_text()
    assert {module for module in listed if module != "groundplane.dev/native"} <= set(required.split())


@pytest.mark.parametrize("architecture", hostprogram.ARCHITECTURES)
def test_the_program_is_static_small_and_says_nothing_of_its_builder(go: Path, architecture: str) -> None:
    assert go
    content = hostprogram.host_program(architecture).read_bytes()
    machine = {"amd64": 62, "arm64": 183}[architecture]
    assert (content[:4], int.from_bytes(content[18:20], "little")) == (b"\x7fELF", machine)
    assert b"/lib64/ld-linux" not in content
    assert b"/lib/ld-linux" not in content
    assert str(Path.home()).encode() + b"/" not in content
    assert str(hostprogram.SOURCE).encode() not in content
    assert len(content) < 6_000_000


def test_two_builds_are_the_same(go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert go
    kept = hostprogram.host_program()
    copy = tmp_path / "elsewhere" / "native"
    shutil.copytree(hostprogram.SOURCE, copy)
    monkeypatch.setenv("GROUNDPLANE_CACHE", str(tmp_path / "cache"))
    again = hostprogram.host_program(source=copy)
    assert again != kept
    assert again.read_bytes() == kept.read_bytes()
    changed = copy / "main.go"
    changed.write_text(changed.read_text() + "\n")
    assert hostprogram.host_program(source=copy).parent != again.parent


def test_a_source_that_does_not_compile_is_named(go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert go
    (tmp_path / "native").mkdir()
    (tmp_path / "native/go.mod").write_text("module x\n\ngo 1.26\n")
    (tmp_path / "native/main.go").write_text("package main\n\nfunc main() { nonsense }\n")
    monkeypatch.setenv("GROUNDPLANE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        golang.UnavailableError, match=r"building groundplane-host 1 failed: .*(\n.*)*undefined: nonsense"
    ):
        hostprogram.host_program(source=tmp_path / "native", log=lambda _text: None)
    assert not list((tmp_path / "cache/host").glob("host-*/"))


def test_an_architecture_that_is_not_known_is_refused() -> None:
    with pytest.raises(golang.UnavailableError, match="not built for riscv64; known are amd64, arm64"):
        hostprogram.host_program("riscv64")


def test_the_machines_own_program_is_one_of_them(toolkit: Path) -> None:
    content = (toolkit / "groundplane-host").read_bytes()
    assert int.from_bytes(content[18:20], "little") == {"x86_64": 62, "aarch64": 183}[platform.machine()]
