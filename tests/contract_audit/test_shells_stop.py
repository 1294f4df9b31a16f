"""A shell that is a container's first process ignores SIGTERM unless it traps it: every one that sleeps must.

Waiting init containers and placeholders would otherwise hold their pod for the whole grace period (differences.md).
"""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from groundplane.api import codec
from groundplane.api.release import Release
from groundplane.operands import stack
from groundplane.operands.facts import ClusterFacts, GpuNode, OpenShift

POLICIES = Path(__file__).parent.parent / "data" / "clusterpolicy"
IMAGE = {"enabled": True, "repository": "r", "image": "i", "version": "v"}
NODE = GpuNode(name="gpu-1", kernel="6.8.0", os_id="rhcos", os_version="4.18", ostree="418.94")


def _shells(release, mode, openshift):
    document = yaml.safe_load((POLICIES / f"{release.value}-default.yaml").read_text())
    spec = document["spec"]
    spec["sandboxWorkloads"] = {"enabled": True, "mode": mode}
    for section in ("vgpuManager", "kataManager", "gds", "gdrcopy"):
        spec[section] = {**spec.get(section, {}), **IMAGE}
    spec["dcgm"]["enabled"] = True
    facts = ClusterFacts(namespace="gpu-operator", release=release, nodes=(NODE,), openshift=openshift)
    for result in stack.render(codec.load_cluster_policy(document).policy.spec, facts):
        assert result.error is None
        for each in result.objects:
            if each["kind"] == "DaemonSet":
                pod = each["spec"]["template"]["spec"]
                for container in (*pod.get("initContainers", ()), *pod["containers"]):
                    words = [*container.get("command", ()), *container.get("args", ())]
                    if any("sleep" in word for word in words):
                        yield container["name"], words


ALL = {
    (name, *words)
    for release in Release
    for mode in ("kubevirt", "kata")
    for openshift in (None, OpenShift(version="4.18", driver_toolkit={"418.94": "toolkit"}))
    for name, words in _shells(release, mode, openshift)
}


def test_the_shells_are_found():
    names = {name for name, *_ in ALL}
    assert {"toolkit-validation", "nvidia-vfio-manager", "openshift-driver-toolkit-ctr", "nvidia-fs-ctr"} <= names


@pytest.mark.parametrize(("name", "words"), [(name, words) for name, *words in sorted(ALL)])
def test_a_shell_that_sleeps_ends_when_asked(name, words):
    """Run as it is, with programs and pauses shortened, and asked to stop like a container."""
    *shell, script = words
    assert "trap " in script and " TERM" in script, name
    script = script.replace("vfio-manage bind --all", "echo bound")
    for pause in ("sleep 5", "sleep 10"):
        script = script.replace(f"{pause};", "sleep 0.05;")
    assert shell[-1] in ("-c", "-xc")
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "it says what it waits for, or that it holds"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, 143)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
