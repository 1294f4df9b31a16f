"""The entrypoint scripts, run by a real shell against a folder in place of the node's."""

import contextlib
import os
import shutil
import subprocess

import pytest

from groundplane.operands import build, scripts

SHELL = shutil.which("sh")
DRIVER_READY = (
    "IS_HOST_DRIVER=true\nNVIDIA_DRIVER_ROOT=/host root\n# not a variable\nDRIVER_ROOT_CTR_PATH=$(touch pwned)\n"
)

ENTRYPOINTS = {
    "nvidia-toolkit": scripts.TOOLKIT_ENTRYPOINT,
    "nvidia-device-plugin": scripts.DEVICE_PLUGIN_ENTRYPOINT,
    "nvidia-mig-manager": scripts.MIG_MANAGER_ENTRYPOINT,
}


@pytest.fixture
def run(tmp_path):
    """Runs a script whose program prints its environment; ``sleep`` is recorded and creates what is waited for."""
    validations = tmp_path / "validations"
    validations.mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()

    def program(name, text):
        (programs / name).write_text(f"#!{SHELL}\n{text}\n")
        (programs / name).chmod(0o755)

    def execute(script, name, *, ready=DRIVER_READY, late=False, modules="", env=None):
        target = validations / "driver-ready"
        (tmp_path / "content").write_text(ready)
        if not late:
            target.write_text(ready)
        program("sleep", f'echo "slept $1"; cp "{tmp_path}/content" "{target}"')
        program(name, "env")
        if modules is not None:
            (tmp_path / "modules").write_text(modules)
        for place in ("/run/nvidia/validations", "/proc/modules"):
            script = script.replace(place, str(tmp_path / place.rpartition("/")[2]))
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [SHELL, "-c", script],
            env={"PATH": path, **(env or {})},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=10,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return execute


@pytest.mark.parametrize(("name", "script"), ENTRYPOINTS.items())
def test_the_driver_facts_are_printed_and_handed_on_unevaluated(run, tmp_path, name, script):
    lines = run(script, name)
    for fact in ("IS_HOST_DRIVER=true", "NVIDIA_DRIVER_ROOT=/host root", "DRIVER_ROOT_CTR_PATH=$(touch pwned)"):
        assert lines.count(fact) == 2, "once from the file, once in the program's environment"
    assert not (tmp_path / "pwned").exists()


def test_the_device_plugin_starts_where_the_kernel_has_no_list_of_modules(run):
    assert "IS_HOST_DRIVER=true" in run(ENTRYPOINTS["nvidia-device-plugin"], "nvidia-device-plugin", modules=None)


@pytest.mark.parametrize(("name", "script"), ENTRYPOINTS.items())
def test_it_waits_for_the_driver_in_steps_of_five_seconds(run, name, script):
    lines = run(script, name, late=True)
    assert "slept 5" in lines
    assert "IS_HOST_DRIVER=true" in lines


def test_the_toolkit_pauses_before_it_starts(run):
    lines = run(ENTRYPOINTS["nvidia-toolkit"], "nvidia-toolkit")
    assert lines.count("slept 5") == 1


def test_a_last_line_without_an_end_counts(run):
    assert "LAST=1" in run(scripts.MIG_MANAGER_ENTRYPOINT, "nvidia-mig-manager", ready="IS_HOST_DRIVER=false\nLAST=1")


@pytest.mark.parametrize("host", ["true", "false"])
def test_host_clients_are_shut_down_with_a_host_driver(run, host):
    lines = run(scripts.MIG_MANAGER_ENTRYPOINT, "nvidia-mig-manager", ready=f"IS_HOST_DRIVER={host}\n")
    assert f"WITH_SHUTDOWN_HOST_GPU_CLIENTS={host}" in lines


MODULES = "nvidia 1 0 - Live 0x0\ngdrdrv 24576 0 - Live 0x0\nnvidia_fs 262144 0 - Live 0x0\n"


def test_loaded_modules_switch_features_on(run, tmp_path):
    lines = run(scripts.DEVICE_PLUGIN_ENTRYPOINT, "nvidia-device-plugin", modules=MODULES)
    for flag in ("GDRCOPY_ENABLED=true", "GDS_ENABLED=true", "MOFED_ENABLED=true"):
        assert flag in lines
    assert (
        tmp_path / "feature-flags.env"
    ).read_text() == "GDRCOPY_ENABLED=true\nGDS_ENABLED=true\nMOFED_ENABLED=true\n"


def test_a_set_variable_is_kept(run):
    lines = run(scripts.DEVICE_PLUGIN_ENTRYPOINT, "nvidia-device-plugin", modules=MODULES, env={"GDS_ENABLED": "false"})
    assert "GDS_ENABLED=false" in lines
    assert "GDS_ENABLED=true" not in lines


def test_other_modules_switch_nothing_on(run):
    lines = run(scripts.DEVICE_PLUGIN_ENTRYPOINT, "nvidia-device-plugin", modules="nvidia_fs_helper 1 0 - Live 0x0\n")
    assert not [line for line in lines if line.startswith(("GDS", "GDRCOPY", "MOFED"))]


@pytest.mark.parametrize(
    "script", [*ENTRYPOINTS.values(), scripts.VALIDATED, scripts.FORGET_VALIDATIONS, build.wait_for("/x", what="x")]
)
def test_syntax(script):
    assert subprocess.run([SHELL, "-n", "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("script", "line", "code"),
    [
        (scripts.VALIDATED, "validated", 0),
        (build.wait_for("/nowhere/ready", what="the toolkit").replace("sleep 5", "sleep 0.1"), "the toolkit", 143),
        (scripts.TOOLKIT_ENTRYPOINT.replace("sleep 5", "sleep 0.1"), "not validated yet", 143),
    ],
)
def test_a_waiting_shell_stops_when_asked(script, line, code):
    process = subprocess.Popen([SHELL, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert line in process.stdout.readline()
        process.terminate()
        assert process.wait(timeout=20) == code
    finally:
        process.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
