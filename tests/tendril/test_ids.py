"""Identifiers: ordered, keyed, delimited."""

import time
from uuid import RFC_4122, UUID

from tendril.ids import digest_of, new_id, user_key


def test_a_new_id_is_a_uuid_of_version_7_that_holds_the_time() -> None:
    before = time.time_ns() // 1_000_000
    made = UUID(new_id())
    after = time.time_ns() // 1_000_000
    assert (made.version, made.variant) == (7, RFC_4122)
    assert before <= made.int >> 80 <= after


def test_ids_sort_by_time_and_never_repeat() -> None:
    first = new_id()
    time.sleep(0.003)
    later = [new_id() for _ in range(2_000)]
    assert all(first < made for made in later)
    assert len(set(later)) == 2_000


def test_a_user_key_depends_on_the_user_and_on_the_secret() -> None:
    keys = {user_key(u, s) for u in ("ann", "bob", "") for s in (b"one", b"two")}
    assert len(keys) == 6
    assert user_key("ann", b"one") == user_key("ann", b"one")
    assert len(user_key("Zoë 用户", b"x" * 100)) == 32


def test_a_digest_delimits_its_parts() -> None:
    assert digest_of("ab", "c") != digest_of("a", "bc")
    assert digest_of("ab") != digest_of("ab", "")
    assert digest_of("a") == digest_of("a")
