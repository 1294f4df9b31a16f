"""The page of MIG layouts, docs/reference/mig-layouts.md, says what is."""

from pathlib import Path

from groundplane.node.mig import hooks, layout, parted

PAGE = (Path(__file__).parents[3] / "docs/reference/mig-layouts.md").read_text()


def test_its_examples_are_read() -> None:
    layouts, around = (part.split("```")[0] for part in PAGE.split("```yaml\n")[1:])
    assert list(layout.parse(layouts, "the page")) == ["all-disabled", "mixed"]
    assert set(hooks.parse(around, "the page")) <= set(hooks.NAMES)


def test_it_names_every_command() -> None:
    assert all(f"`{word}" in PAGE for word in parted._WORDS)
    assert all(f"`{name}`" in PAGE for name in hooks.NAMES)
    assert f"{hooks.LIMIT_S / 60:g} minutes".replace("10", "ten") in PAGE
