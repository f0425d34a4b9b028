"""Secrets and keys of this workspace: made once, private, hashed in memory, never shown.

Keys come from three places: `keys.toml` (`tendril keys`), the settings' `serving.api_keys`, and,
where those name none, the development key in `<workspace>/api_key`.
"""

import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from serving.key_file import KeyEntry, key_digest, new_key, read_keys
from tendril.files import WorkspaceUnwritable
from tendril.records import Lane
from tendril.settings import InvalidSettings, Settings

log = logging.getLogger(__name__)

RELOAD_CHECK_S = 0.5
MAX_KEY_CHARACTERS = 512
DEVELOPMENT = "development"


class ApplicationKey(msgspec.Struct, frozen=True, kw_only=True):
    """What a key lets its holder do; it does not hold the key."""

    name: str
    tenant: str
    lanes: tuple[Lane, ...] = ("online",)
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


def load_or_create(path: Path, make: str) -> str:
    """The file's content; made once, with `make` as its content, where it does not exist.

    Two processes that start together agree: the first to create the file wins.
    Raises `WorkspaceUnwritable`, or `ValueError` for a file that is there and empty.
    """
    try:
        if not path.exists():
            _create(path, make)
        content = path.read_text().strip()
    except OSError as error:
        raise WorkspaceUnwritable(path, error) from error
    if not content:
        raise ValueError(f"{path}: expected a secret, got an empty file; delete it for a new one")
    return content


def _create(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)  # fails where it exists: never half a file, never two contents
    finally:
        scratch.unlink(missing_ok=True)


def node_secret(workspace: Path) -> bytes:
    """Signs feedback tokens, keys the hashes of user ids, and is what gateway and replica share.

    Gateways and replicas on several machines need the same `<workspace>/node.secret`.
    """
    return bytes.fromhex(load_or_create(workspace / "node.secret", secrets.token_hex(32)))


def internal_token(secret: bytes) -> str:
    """What a gateway shows a replica in `x-tendril-gateway`; it tells nothing about the secret."""
    return hashlib.blake2b(b"tendril gateway", key=secret[:64], digest_size=32).hexdigest()


def is_internal(token: str, secret: bytes) -> bool:
    """Whether a gateway that knows the secret made `token`; compared in constant time."""
    return hmac.compare_digest(token.encode(errors="replace"), internal_token(secret).encode())


def key_ring(settings: Settings) -> "KeyRing":
    """The ring of this workspace; makes a development key where nothing names any key."""
    key_file = settings.path(settings.access.key_file)
    configured = settings.serving.api_keys
    development = settings.workspace / "api_key"
    if not configured and not key_file.exists():
        load_or_create(development, new_key("tk-"))
    return KeyRing(key_file, configured, None if configured else development)


def unnamed_keys(settings: Settings) -> tuple[ApplicationKey, ...]:
    """Those that the settings hold, or else the development key if it was made."""
    if settings.serving.api_keys:
        return tuple(_plain(key) for key in settings.serving.api_keys if key)
    key = _read_development(settings.workspace / "api_key")
    return (_plain(key, DEVELOPMENT),) if key else ()


def _read_development(path: Path) -> str:
    """The development key, "" where there is none."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_text().strip()
    return ""


class KeyRing:
    """Who a key belongs to. Follows its files, so that a revoked key ends without a restart."""

    def __init__(
        self,
        key_file: Path,
        configured: tuple[str, ...] = (),
        development_key: Path | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises `InvalidSettings` for a key file that cannot be read."""
        self._key_file, self._development_key = key_file, development_key
        self._configured = {key_digest(key): _plain(key) for key in configured if key}
        self._monotonic = monotonic
        self._next_check = monotonic() + RELOAD_CHECK_S
        self._stamps = self._read_stamps()
        self._applications: Mapping[str, ApplicationKey] = {}
        self._operators: Mapping[str, str] = {}
        self._load()

    def authenticate(self, authorization: str) -> ApplicationKey | None:
        """The application key in an `Authorization` header's value, None for any other."""
        digest = self._digest(authorization)
        return self._applications.get(digest)

    def authenticate_operator(self, authorization: str) -> str | None:
        """The name of the operator key in that header, None for any other key."""
        digest = self._digest(authorization)
        return self._operators.get(digest)

    def _digest(self, authorization: str) -> str:
        """Of the key, "" where there is none; reads the files again where they have changed.

        Looked up by hash: equal work for every key of a length, and what a timing could tell is
        about hashes, from which no key follows.
        """
        scheme, _, key = authorization.strip().partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else authorization.strip()
        if not key or len(key) > MAX_KEY_CHARACTERS:
            return ""
        now = self._monotonic()
        if now >= self._next_check:
            self._next_check = now + RELOAD_CHECK_S
            self._reload()
        return key_digest(key)

    def _reload(self) -> None:
        """A file that no longer reads keeps the keys as they were: a typo must not lock all out."""
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._load()
        except InvalidSettings as error:
            log.error("keys stay as they were: %s", error)

    def _load(self) -> None:
        entries = read_keys(self._key_file)
        applications = {e.digest: _application(e) for e in entries if e.role == "application"}
        plain = dict(self._configured)
        if self._development_key is not None:
            key = _read_development(self._development_key)
            plain |= {key_digest(key): _plain(key, DEVELOPMENT)} if key else {}
        self._applications = plain | applications
        self._operators = {e.digest: e.name for e in entries if e.role == "operator"}

    def _read_stamps(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(
            _stamp(path) for path in (self._key_file, self._development_key) if path is not None
        )


def _application(entry: KeyEntry) -> ApplicationKey:
    return ApplicationKey(
        name=entry.name,
        tenant=entry.tenant,
        lanes=entry.lanes,
        requests_per_minute=entry.requests_per_minute,
        tokens_per_minute=entry.tokens_per_minute,
    )


def _plain(key: str, name: str = "configured") -> ApplicationKey:
    """A key without a name of its own: its tenant is a digest of it."""
    return ApplicationKey(
        name=name, tenant=hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
    )


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
