"""An exporter's page as figures: by Prometheus' parser, whole GPUs and instances, what is not told stays untold."""

import pytest

from groundplane.lab.figures import Figures, FiguresError, parse

WHOLE = (
    'gpu="{0}",UUID="GPU-{0}",pci_bus_id="00000000:1B:00.0",device="nvidia{0}",modelName="NVIDIA H100",Hostname="n1"'
)
USED = ',container="main",namespace="team",pod="trainer"'
SLICE = WHOLE.format(0) + ',GPU_I_PROFILE="1g.10gb",GPU_I_ID="{0}"'


def page(*rows: str) -> str:
    return "".join(f"{row}\n" for row in rows)


def test_figures_of_a_gpu_are_put_together_with_who_uses_it() -> None:
    labels = WHOLE.format(0) + USED
    text = page(
        "# HELP DCGM_FI_DEV_GPU_TEMP Temperature of the GPU (in C).",
        "# TYPE DCGM_FI_DEV_GPU_TEMP gauge",
        f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} 41",
        "# TYPE DCGM_FI_DEV_POWER_USAGE gauge",
        f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} 71.500000",
        f"DCGM_FI_DEV_FB_USED{{{labels}}} 1024",
        f"DCGM_FI_DEV_FB_FREE{{{labels}}} 80016",
        f'DCGM_FI_DEV_XID_ERRORS{{{labels},err_code="0",err_msg="No Error"}} 0',
        f"DCGM_FI_DEV_SM_CLOCK{{{labels}}} 345",
    )
    (found,) = parse(text)
    assert found == Figures(0, "", "", "GPU-0", "team/trainer/main", 41, 71.5, 1024, 80016, 0)
    assert found.complete


def test_gpus_and_their_instances_are_told_apart_and_in_order() -> None:
    rows = [WHOLE.format(10), WHOLE.format(2), SLICE.format(9), SLICE.format(7) + USED]
    found = parse(page(*(f"DCGM_FI_DEV_FB_USED{{{labels}}} 5" for labels in rows)))
    assert [(each.gpu, each.profile, each.instance, each.user) for each in found] == [
        (0, "1g.10gb", "7", "team/trainer/main"),
        (0, "1g.10gb", "9", ""),
        (2, "", "", ""),
        (10, "", "", ""),
    ]


def test_what_a_page_does_not_tell_is_none() -> None:
    (found,) = parse(page(f"DCGM_FI_DEV_GPU_TEMP{{{WHOLE.format(3)}}} 41"))
    assert (found.temperature_c, found.power_w, found.xid) == (41, None, None)
    assert not found.complete


@pytest.mark.parametrize("text", ["", "# nothing yet\n", 'up{job="x"} 1\n'])
def test_a_page_without_gpus_has_no_figures(text: str) -> None:
    assert parse(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "<html>no metrics here</html>\n",
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0"} warm\n',
        'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-0"} 41\n',
        'DCGM_FI_DEV_GPU_TEMP{gpu="first",UUID="GPU-0"} 41\n',
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0} 41\n',
    ],
)
def test_what_is_no_exporters_page_is_refused(text: str) -> None:
    with pytest.raises(FiguresError, match="not in Prometheus' text format, or not of GPUs"):
        parse(text)
