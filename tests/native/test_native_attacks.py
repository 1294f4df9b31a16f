"""Images and configurations that mean to stop, hold up or crash the hooks and the runtime wrapper."""

import os
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import unavailable

LDCONFIG = next((path for path in ("/sbin/ldconfig.real", "/sbin/ldconfig") if Path(path).is_file()), "")


def glob_bomb(bundle: Any) -> None:
    for number in range(8):
        bundle.link(f"/a{number}", ".")
    bundle.file("/etc/ld.so.conf", f"include {'/*' * 11}/*.conf\n")


def files_that_include_each_other(bundle: Any) -> None:
    bundle.file("/etc/ld.so.conf", "include /etc/c/*\n")
    for number in range(2000):
        bundle.file(f"/etc/c/{number}", "include /etc/c/*\n" * 50)


@pytest.mark.parametrize("bomb", [glob_bomb, files_that_include_each_other])
def test_what_keeps_ldconfig_busy_for_ever_is_ended(hook: Any, bundle: Any, bomb: Any) -> None:
    if not LDCONFIG or os.geteuid() != 0:
        unavailable("no ldconfig in /sbin, or no right to make namespaces")
    bomb(bundle)
    begun = time.monotonic()
    said = hook("update-ldcache", "--folder", "/x", "--ldconfig-path", LDCONFIG, "--limit", "1s", ok=False).stderr
    assert "did not end in 1s" in said
    assert "what do the image's /etc/ld.so.conf and the files that it includes say?" in said
    assert time.monotonic() - begun < 20


OWNER = b"NVIDIA Corporation"


def library(alignment: int, name_size: int, size: int, *, section: int | None = None) -> bytes:
    """A small ELF file with a note about forward compatibility that says other sizes than it has."""
    note = struct.pack("<III", name_size, size, 1) + OWNER + b"\0\0" + b"{}" * 20
    names = b"\0.shstrtab\0.note.cuda.fwd_compatibility\0"
    first, second = 64, 64 + len(note)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, second + len(names), 0, 64, 56, 0, 64, 3, 1
    )
    sections = struct.pack("<IIQQQQIIQQ", *(0,) * 10)
    sections += struct.pack("<IIQQQQIIQQ", 1, 3, 0, 0, second, len(names), 0, 0, 1, 0)
    length = len(note) if section is None else section
    sections += struct.pack("<IIQQQQIIQQ", 11, 7, 0, 0, first, length, 0, 0, alignment, 0)
    return header + note + names + sections


WRONG = {
    "an alignment that overflows": ((1 << 64) - 20, 18, 8),
    "another": ((1 << 64) - 18, 18, 8),
    "an endless name": (4, 0xFFFFFFFF, 8),
    "an endless text": (4, 18, 0xFFFFFFFF),
}


@pytest.mark.parametrize("sizes", WRONG.values(), ids=WRONG)
def test_a_note_of_wrong_sizes_is_none(hook: Any, bundle: Any, sizes: tuple[int, int, int]) -> None:
    bundle.file("/usr/local/cuda/compat/libcuda.so.580.1", library(*sizes))
    said = hook("enable-cuda-compat", "--host-driver-version=570.1").stderr
    assert "passing over the note" in said
    assert "goroutine" not in said
    assert bundle.names("/etc/ld.so.conf.d") == ["00-compat-toolkit.conf"]


def test_a_section_of_wrong_size_is_none(hook: Any, bundle: Any) -> None:
    bundle.file("/usr/local/cuda/compat/libcuda.so.580.1", library(4, 18, 8, section=1 << 62))
    assert "passing over the note" in hook("enable-cuda-compat", "--host-driver-version=570.1").stderr


# --- the wrapper ------------------------------------------------------------------------------------------------------


@pytest.fixture
def create(toolkit: Path, bundle: Any, tmp_path: Path) -> Any:
    """Creates the bundle's container, with these lines of [nvidia-container-runtime], on a node with one CDI device."""
    (tmp_path / "modules").write_text("nvidia 1 0\n")
    (tmp_path / "low").write_text("#!/bin/sh\necho created\n")
    (tmp_path / "low").chmod(0o755)
    (tmp_path / "cdi").mkdir()
    spec = 'cdiVersion: "0.5.0"\nkind: nvidia.com/gpu\ndevices:\n- {name: all, containerEdits: {env: [A=b]}}\n'
    (tmp_path / "cdi/n.yaml").write_text(spec)

    def run(env: list[str], lines: str = "") -> subprocess.CompletedProcess[str]:
        bundle.write(process={"args": ["sh"], "cwd": "/", "env": env})
        (tmp_path / "config.toml").write_text(
            f'[nvidia-container-runtime]\nmode = "cdi"\nruntimes = ["{tmp_path}/low"]\n'
            f'modules-file = "{tmp_path}/modules"\n{lines}\n'
            f'[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{tmp_path}/cdi"]\n'
        )
        return subprocess.run(
            [str(toolkit / "nvidia-container-runtime"), "create", "--bundle", str(bundle.folder), "c"],
            env={"NVIDIA_CTK_CONFIG_FILE_PATH": str(tmp_path / "config.toml")},
            text=True,
            capture_output=True,
            timeout=15,
            check=False,
        )

    return run


def test_very_many_variables_take_no_longer_than_they_are_long(create: Any, bundle: Any) -> None:
    many = [f"X{number}=a" for number in range(150_000)]
    assert create(["NVIDIA_VISIBLE_DEVICES=all", *many]).stdout == "created\n"
    assert bundle.read()["process"]["env"] == ["NVIDIA_VISIBLE_DEVICES=all", *many, "A=b"]


def test_very_many_devices_are_refused_in_few_words(create: Any) -> None:
    done = create([f"NVIDIA_VISIBLE_DEVICES={','.join(f'd{number}' for number in range(30_000))}"])
    assert (done.returncode, done.stdout) == (1, "")
    assert "unresolvable CDI devices nvidia.com/gpu=d0, " in done.stderr
    assert len(done.stderr) < 10_000


def test_a_log_that_is_a_pipe_is_not_waited_for(create: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    done = create(["NVIDIA_VISIBLE_DEVICES=all"], f'debug = "{tmp_path}/log"')
    assert done.stdout == "created\n"
    assert "cannot open the log file" in done.stderr
