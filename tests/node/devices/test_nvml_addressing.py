"""Whether a GPU shares its address space with the CPU, as the driver's library says (contracts/toolkit-cdi.md 3.9)."""

from typing import Any

import pytest

from groundplane.node.devices import nvml, nvmlerrors


@pytest.mark.parametrize(
    ("answer", "coherent"),
    [(0, False), (1, False), (2, True), (nvmlerrors.NOT_SUPPORTED, False), (nvmlerrors.FUNCTION_NOT_FOUND, False)],
)
def test_a_gpu_is_coherent_if_it_uses_the_cpus_page_tables(
    monkeypatch: pytest.MonkeyPatch, answer: int, coherent: bool
) -> None:
    asked = []

    def ask(doing: str, function: str, *args: Any) -> int:
        asked.append(function)
        if answer > 2:
            raise nvmlerrors.error(answer, doing)
        return answer

    monkeypatch.setattr(nvml, "ask", ask)
    assert nvml._coherent("GPU 0", object()) is coherent
    assert asked == ["nvmlDeviceGetAddressingMode"]
