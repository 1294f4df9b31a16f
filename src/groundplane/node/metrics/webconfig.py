"""Who may ask and how: the web config file with TLS and basic authentication, in the form of Prometheus' exporters.

Passwords are kept as bcrypt hashes. These are checked by the system's libcrypt, since Python has no bcrypt of its own;
where that knows none either, a file with users is refused. What cannot be had through Python's TLS is refused, too.
Source: contracts/mig-exporter-validator.md 4.
"""

import asyncio
import base64
import binascii
import ctypes
import hashlib
import hmac
import re
import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal

import msgspec

from ...api import goyaml


class WebConfigError(ValueError):
    """The web config file cannot be used; the text names file, place and what is expected."""


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


ClientAuth = Literal[
    "NoClientCert", "RequestClientCert", "RequireAnyClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"
]
_VERSIONS: Final = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
Version = Literal["TLS10", "TLS11", "TLS12", "TLS13"]


class _Tls(_Part, frozen=True):
    cert_file: str
    key_file: str
    client_auth_type: ClientAuth | Literal[""] = ""
    client_ca_file: str = ""
    min_version: Version = "TLS12"
    max_version: Version = "TLS13"


class _Http(_Part, frozen=True):
    http2: bool = True
    """Accepted for the file's sake; HTTP/1.1 is served."""
    headers: dict[str, str] | None = None


class _Document(_Part, frozen=True):
    tls_server_config: _Tls | None = None
    http_server_config: _Http | None = None
    basic_auth_users: dict[str, str] | None = None


class WebConfig(msgspec.Struct, frozen=True):
    """How to serve: with TLS if there is a context, to whom, and with which further headers."""

    tls: ssl.SSLContext | None = None
    certificate: tuple[Path, Path] | None = None
    """The files of certificate and key."""
    users: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}


def load(path: Callable[[str], Path], name: str) -> WebConfig:
    """Read a web config file; ``path`` maps a path of the container. Raises :class:`WebConfigError`."""
    try:
        document = goyaml.loads(path(name).read_text(encoding="utf-8"))
        found = msgspec.convert({} if document is None else document, _Document)
    except (OSError, UnicodeDecodeError) as error:
        raise WebConfigError(f"the web config file {name} cannot be read: {error}") from error
    except goyaml.DocumentError as error:
        raise WebConfigError(f"{name} is no YAML: {error}") from error
    except msgspec.ValidationError as error:
        raise WebConfigError(
            f"{name}: {error}; expected tls_server_config, http_server_config, basic_auth_users"
        ) from error
    users = found.basic_auth_users or {}
    for user, hashed in users.items():
        _check_hash(name, user, hashed)
    headers = (found.http_server_config or _Http()).headers or {}
    for header, value in headers.items():
        _check_header(name, header, value)
    tls = found.tls_server_config
    folder = PurePosixPath(name).parent

    def beside(file: str) -> Path:
        return path(str(folder / file))

    return WebConfig(
        tls=None if tls is None else _context(tls, beside, name),
        certificate=None if tls is None else (beside(tls.cert_file), beside(tls.key_file)),
        users=users,
        headers=headers,
    )


def _context(wanted: _Tls, beside: Callable[[str], Path], name: str) -> ssl.SSLContext:
    """A context for TLS; files that are not named by whole paths are ``beside`` the web config file."""
    where = f"{name}, tls_server_config"
    if wanted.client_auth_type in ("RequestClientCert", "RequireAnyClientCert"):
        raise WebConfigError(
            f"{where}: client_auth_type {wanted.client_auth_type} asks for certificates that nobody verifies, which is "
            "not offered; use VerifyClientCertIfGiven or RequireAndVerifyClientCert"
        )
    if _VERSIONS[wanted.min_version] > _VERSIONS[wanted.max_version]:
        raise WebConfigError(
            f"{where}: min_version {wanted.min_version} is above max_version {wanted.max_version}, so that nobody "
            "could connect"
        )
    verifies = wanted.client_auth_type in ("VerifyClientCertIfGiven", "RequireAndVerifyClientCert")
    if verifies != bool(wanted.client_ca_file):
        raise WebConfigError(f"{where}: client_ca_file and a client_auth_type that verifies belong together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.minimum_version, context.maximum_version = _VERSIONS[wanted.min_version], _VERSIONS[wanted.max_version]
        load_certificate(context, beside(wanted.cert_file), beside(wanted.key_file))
        if verifies:
            context.load_verify_locations(beside(wanted.client_ca_file))
            required = wanted.client_auth_type == "RequireAndVerifyClientCert"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    except (OSError, ValueError) as error:
        raise WebConfigError(f"{where}: certificates cannot be used: {error}") from error
    return context


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Let a context show a certificate. OSError or ValueError; a key with a password is one, and nobody is asked."""

    def no_password() -> str:
        raise ValueError(
            f"the key {key.name} is encrypted; there is nobody to ask for its password, so store it decrypted"
        )

    context.load_cert_chain(certificate, key, no_password)


_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")


def _check_header(name: str, header: str, value: str) -> None:
    if not _HEADER.fullmatch(header) or not _HEADER_VALUE.fullmatch(value):
        raise WebConfigError(f"{name}, http_server_config.headers: {header!r}: {value!r} can be no header of an answer")


# --- passwords --------------------------------------------------------------------------------------------------------

_KNOWN: Final = "$2b$04$abcdefghijklmnopqrstuuN/rOGb3k1lHL/OTPkHThAb4XhWIlYIS"
"""A hash to be checked in place of that of a user who is not known, so that both take time."""
_PREFIXES: Final = ("$2a$", "$2b$", "$2y$")
_lock: Final = threading.Lock()


def _find_crypt() -> Callable[[bytes, bytes], bytes | None] | None:
    for library in ("libcrypt.so.1", "libcrypt.so.2"):
        try:
            function = ctypes.CDLL(library).crypt
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_char_p
        function.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        return function
    return None


def bcrypt(password: str, hashed: str) -> str | None:
    """The hash of a password with the salt of a hash; None where the system knows no bcrypt."""
    function = _find_crypt()
    if function is None:
        return None
    with _lock:  # it answers in a buffer of its own
        found: Any = function(password.encode(), hashed.encode())
    text = found.decode() if found else ""
    return text if text.startswith(_PREFIXES) else None


def _check_hash(name: str, user: str, hashed: str) -> None:
    if not hashed.startswith(_PREFIXES):
        raise WebConfigError(f"{name}, basic_auth_users, {user}: expected a bcrypt hash, as htpasswd -nBC 10 prints it")
    if bcrypt("", _KNOWN) is None:
        raise WebConfigError(
            f"{name}, basic_auth_users: this system's libcrypt knows no bcrypt, so nobody could be let in"
        )
    if bcrypt("", hashed) is None:
        raise WebConfigError(f"{name}, basic_auth_users, {user}: the bcrypt hash is malformed")


class Gate:
    """Lets in who has a password. What was right once is remembered, as checking it takes its time."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self._good: set[bytes] = set()

    async def admits(self, authorization: str | None) -> bool:
        """Whether a request with this header may pass."""
        if not self._users:
            return True
        credentials = _credentials(authorization)
        if credentials is None:
            return False
        user, password = credentials
        hashed = self._users.get(user, "")
        seen = hashlib.sha256(f"{user}\0{hashed}\0{password}".encode()).digest()
        if hashed and seen in self._good:
            return True
        found = await asyncio.to_thread(bcrypt, password, hashed or _KNOWN)
        good = bool(hashed) and hmac.compare_digest(found or "", hashed)
        if good:
            self._good.add(seen)
        return good


def _credentials(header: str | None) -> tuple[str, str] | None:
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (user, password) if colon and "\0" not in password else None
