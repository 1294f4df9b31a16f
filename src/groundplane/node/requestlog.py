"""The log of a program's HTTP server: what goes wrong in it, but not what anybody sends that is no HTTP.

A request that cannot be read is answered with 400, and is nobody's mistake here; without this, each would put a
traceback into the log of a port that the whole cluster reaches.
"""

import logging
from typing import Final

from aiohttp.http_exceptions import HttpProcessingError


def _is_ours(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


LOGGER: Final = logging.getLogger("groundplane.http")
"""For aiohttp's ``AppRunner(logger=...)``."""
LOGGER.addFilter(_is_ours)
