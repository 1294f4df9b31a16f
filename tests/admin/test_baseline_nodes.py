"""GPUs and counters as nodes tell them: exporters' pages of any maker, and what nvidia-smi prints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.admin.nodehealth import SMI, SMI_FIELDS, Health, merged, of_page, of_smi, pci

LABELS = (
    'gpu="0",UUID="GPU-1",pci_bus_id="00000000:3B:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",'
    'Hostname="gpu-1",DCGM_FI_DRIVER_VERSION="580.95.05"'
)
PAGE = f"""# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{{{LABELS},err_code="79",err_msg="a \\"quoted\\" }} text"}} 79
DCGM_FI_DEV_ROW_REMAP_FAILED{{{LABELS}}} 0
DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{{LABELS},pod="a"}} 1
DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{{LABELS},pod="b"}} 3
DCGM_FI_DEV_GPU_TEMP{{{LABELS}}} 40
DCGM_FI_DEV_THERMAL_VIOLATION{{{LABELS}}} nothing
DCGM_FI_DEV_XID_ERRORS{{gpu="1"}} 5
go_goroutines 7
"""


def test_a_page_tells_gpus_and_counters_under_their_one_name() -> None:
    health = of_page(PAGE)
    (gpu,) = health.gpus
    assert (gpu.uuid, gpu.pci, gpu.driver) == ("GPU-1", "0000:3b:00.0", "580.95.05")
    assert gpu.name == "NVIDIA H100 80GB HBM3"
    assert health.counters == {
        "GPU-1": {
            "DCGM_FI_DEV_XID_ERRORS": 79.0,
            "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0.0,
            "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 3.0,
        }
    }


@given(st.text())
def test_any_text_is_a_page(page: str) -> None:
    assert of_page(page).counters.keys() == {gpu.uuid for gpu in of_page(page).gpus}


LINE = "GPU-1, 00000000:3B:00.0, NVIDIA H100 80GB HBM3, 580.95.05, 1654, 96.00.74.00.01, G520.0200.00.05, 2, [N/A]\n"


def test_nvidia_smi_tells_firmware_and_totals() -> None:
    health = of_smi(LINE)
    (gpu,) = health.gpus
    assert (gpu.uuid, gpu.pci, gpu.serial) == ("GPU-1", "0000:3b:00.0", "1654")
    assert (gpu.vbios, gpu.inforom) == ("96.00.74.00.01", "G520.0200.00.05")
    assert health.counters == {"GPU-1": {"DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": 2.0}}
    assert len(SMI[1].split(",")) == len(SMI_FIELDS)


@pytest.mark.parametrize("text", ["No devices were found\n", "uuid\n", LINE.replace("GPU-1", "other")])
def test_another_text_of_nvidia_smi_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="nvidia-smi printed"):
        of_smi(text)


def test_both_together_know_most() -> None:
    both = merged(of_page(PAGE), of_smi(LINE))
    (gpu,) = both.gpus
    assert gpu.serial == "1654"
    assert len(both.counters["GPU-1"]) == 4
    assert merged(None, of_smi(LINE)) == of_smi(LINE)
    assert merged(None, None) == Health()


@pytest.mark.parametrize("address", ["00000000:3B:00.0", "0000:3b:00.0", "0:3B:00.0"])
def test_a_pci_address_has_one_form(address: str) -> None:
    assert pci(address) == "0000:3b:00.0"
