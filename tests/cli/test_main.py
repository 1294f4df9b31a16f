"""The executable: what it lists, what it answers without importing, how it refuses."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from groundplane import __version__
from groundplane.cli import main as cli


def test_help_lists_every_command_with_its_line() -> None:
    text = CliRunner().invoke(cli.main, ["--help"]).output
    for name, entry in cli.COMMANDS.items():
        assert name in text
        assert entry.help.split()[0] in text


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_of_the_table_exists_under_its_name(name: str) -> None:
    result = CliRunner().invoke(cli.main, [name, "--help"])
    assert result.exit_code == 0, result.output
    if name not in ("operator", "manage-crds"):  # their own parsers answer, on the real standard output
        assert f"main {name}" in result.output


def test_version() -> None:
    assert CliRunner().invoke(cli.main, ["--version"]).output == f"groundplane, version {__version__}\n"


def test_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(cli.main, ["rendre"])
    assert result.exit_code == 2
    assert "rendre" in result.output


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_and_version_import_none_of_the_slow_libraries(arguments: list[str]) -> None:
    """What keeps the start fast is that nothing heavy is imported."""
    code = (
        "import sys\nfrom groundplane.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print([n for n in ('lightkube', 'aiohttp', 'grpc', 'yaml', 'rich', 'msgspec') if n in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
