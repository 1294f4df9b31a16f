"""Property tests of the api room run the same examples every time and are not timed."""

from contract_report import pytest_terminal_summary  # noqa: F401  (a hook)
from hypothesis import settings

settings.register_profile("api", deadline=None, derandomize=True)
settings.load_profile("api")
