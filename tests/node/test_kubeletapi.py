"""The kubelet's gRPC interfaces: committed stubs are those of the .proto files, and the wire facts hold."""

from pathlib import Path

import pytest

from groundplane.node.kubeletapi import generate
from groundplane.node.kubeletapi.stubs import deviceplugin_pb2, deviceplugin_pb2_grpc, podresources_pb2

FIELDS = [
    (deviceplugin_pb2.RegisterRequest, {"version": 1, "endpoint": 2, "resource_name": 3, "options": 4}),
    (deviceplugin_pb2.Device, {"ID": 1, "health": 2, "topology": 3}),
    (
        deviceplugin_pb2.ContainerAllocateResponse,
        {"envs": 1, "mounts": 2, "devices": 3, "annotations": 4, "cdi_devices": 5},
    ),
    (
        deviceplugin_pb2.ContainerPreferredAllocationRequest,
        {"available_deviceIDs": 1, "must_include_deviceIDs": 2, "allocation_size": 3},
    ),
    (podresources_pb2.DynamicResource, {"claim_name": 2, "claim_namespace": 3, "claim_resources": 4}),
    (
        podresources_pb2.ContainerResources,
        {"name": 1, "devices": 2, "cpu_ids": 3, "memory": 4, "dynamic_resources": 5},
    ),
]


def test_committed_stubs_are_current(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    generate.generate(tmp_path)
    fresh = {file.name: file.read_text() for file in tmp_path.iterdir()}
    committed = {file.name: file.read_text() for file in generate.STUBS.iterdir() if file.is_file()}
    assert fresh == committed


@pytest.mark.parametrize(("message", "numbers"), FIELDS, ids=lambda value: getattr(value, "__name__", ""))
def test_field_numbers(message: type, numbers: dict[str, int]) -> None:
    assert {field.name: field.number for field in message.DESCRIPTOR.fields} == numbers


def test_service_names() -> None:
    services = deviceplugin_pb2.DESCRIPTOR.services_by_name
    assert {name: service.full_name for name, service in services.items()} == {
        "Registration": "v1beta1.Registration",
        "DevicePlugin": "v1beta1.DevicePlugin",
    }
    assert podresources_pb2.DESCRIPTOR.services_by_name["PodResourcesLister"].full_name == "v1.PodResourcesLister"
    assert hasattr(deviceplugin_pb2_grpc, "DevicePluginStub")


def test_round_trip() -> None:
    answer = deviceplugin_pb2.ContainerAllocateResponse(
        envs={"NVIDIA_VISIBLE_DEVICES": "GPU-1"},
        devices=[
            deviceplugin_pb2.DeviceSpec(container_path="/dev/nvidia0", host_path="/dev/nvidia0", permissions="rw")
        ],
        cdi_devices=[deviceplugin_pb2.CDIDevice(name="k8s.device-plugin.nvidia.com/gpu=GPU-1")],
    )
    again = deviceplugin_pb2.ContainerAllocateResponse.FromString(answer.SerializeToString())
    assert again == answer
    assert again.cdi_devices[0].name == "k8s.device-plugin.nvidia.com/gpu=GPU-1"
