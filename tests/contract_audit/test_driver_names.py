"""Names of precompiled drivers' DaemonSets must be names that an API server takes (contract 4.6 and 2.4)."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.operands import driver_pools
from groundplane.operands.driver_pools import Kind
from groundplane.operands.facts import ClusterFacts, GpuNode

# What Kubernetes asks of an object's name (RFC 1123 subdomain) and allows in a label's value.
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
EDGE = string.ascii_letters + string.digits
LABEL_VALUES = st.from_regex(r"\A[A-Za-z0-9]([A-Za-z0-9._-]{0,40}[A-Za-z0-9])?\Z")


def _name(kernel: str, os_id: str = "ubuntu", version: str = "24.04") -> str:
    node = GpuNode(name="gpu-1", kernel=kernel, os_id=os_id, os_version=version)
    facts = ClusterFacts(namespace="gpu-operator", nodes=(node,))
    (pool,) = driver_pools.pools("nvidia-driver-daemonset", Kind.PRECOMPILED, facts)
    return pool.name


@pytest.mark.parametrize(
    ("kernel", "os_id", "version", "name"),
    [
        ("6.8.0-60-generic", "ubuntu", "24.04", "6.8.0-60-generic-ubuntu24.04"),
        ("5.14.0-427.13.1.el9_4.x86_64", "rhel", "9.4", "5.14.0-427.13.1.el9.4-rhel9.4"),
        ("5.14.0-427.13.1.el9_4.aarch64_64k", "rhel", "9.4", "5.14.0-427.13.1.el9.4-rhel9.4"),
        ("5.14.0-427.13.1.el9_4.x86_64_rt", "rhel", "9.4", "5.14.0-427.13.1.el9.4.rt-rhel9.4"),
        ("6.4.0-150600.23.42-default", "sles", "15-SP6", "6.4.0-150600.23.42-default-sles15-sp6"),
        ("6.4.0-default", "sl-micro", "6.0", "6.4.0-default-sl-micro6.0"),
        ("6.12.0", "talos", "v1.9.1", "6.12.0-talosv1.9.1"),
    ],
)
def test_known_systems(kernel, os_id, version, name):
    assert _name(kernel, os_id, version) == f"nvidia-driver-daemonset-{name}"


@given(kernel=LABEL_VALUES, os_id=LABEL_VALUES, version=LABEL_VALUES)
def test_whatever_a_label_can_hold_makes_a_valid_name(kernel, os_id, version):
    assert NAME.fullmatch(_name(kernel, os_id, version))
