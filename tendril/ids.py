"""Identifiers: time-ordered ids for things, keyed hashes for people."""

import hashlib
import os
import time
from uuid import UUID


def new_id() -> str:
    """A UUIDv7 in its usual text form: sorts by creation time (RFC 9562, section 5.7)."""
    milliseconds = time.time_ns() // 1_000_000
    random_bits = int.from_bytes(os.urandom(10), "big")
    value = (milliseconds & (2**48 - 1)) << 80
    value |= 0x7 << 76 | (random_bits >> 68 & 0xFFF) << 64 | 0b10 << 62 | random_bits & (2**62 - 1)
    return str(UUID(int=value))


def user_key(user: str, secret: bytes) -> str:
    """Keyed hash of a user id (BLAKE2b, 128 bits, hex): the only form that leaves the gateway."""
    return hashlib.blake2b(user.encode(), key=secret[:64], digest_size=16).hexdigest()


def tenant_user_key(tenant: str, user: str | None, secret: bytes) -> str:
    """The hash under which a tenant's user is known; those without a name are one in each."""
    return user_key(f"{tenant}/{user or 'anonymous'}", secret)


def digest_of(*parts: str) -> str:
    """128-bit hex digest of `parts`, each delimited: names derived from content are stable."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode()
        hasher.update(len(encoded).to_bytes(8, "big") + encoded)
    return hasher.hexdigest()
