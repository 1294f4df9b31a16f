"""aiohttp for clients, imported without the system's certificate authorities.

When it is imported aiohttp makes a TLS context for connections that are given none, with every authority of the system
in it: a quarter of what its import takes, in each program that starts. The client gives every connection to an HTTPS
server a context of its own (``auth.tls_context``), so that here that one is made empty. It believes nobody: a
connection that relied on it after all would be refused.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def _no_authorities() -> Iterator[None]:
    def bare(*_: Any, **__: Any) -> ssl.SSLContext:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    usual = ssl.create_default_context
    ssl.create_default_context = bare
    try:
        yield
    finally:
        ssl.create_default_context = usual


with _no_authorities():
    import aiohttp as aiohttp
