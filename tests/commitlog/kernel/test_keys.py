"""What dispatch wants of properties, and the hashes of keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.kernel.keys import KeyHasher, Put, has_key, index_hash, last_value, tags_code
from commitlog.kernel.records import java_hash

pytestmark = pytest.mark.usefixtures("build")

TOPICS = st.sampled_from(["T", "TopicTest", "%RETRY%group", "a" * 127])


@given(TOPICS, st.lists(st.text(min_size=1, max_size=80), max_size=5))
def test_a_key_has_the_hash_of_topic_and_key(topic: str, keys: list[str]) -> None:
    hasher = KeyHasher(topic)
    for key in keys:
        assert hasher.hash(key.encode()) == index_hash(java_hash(f"{topic}#{key}"))


@given(TOPICS, st.text("0123456789ABCDEF", min_size=24, max_size=24), st.lists(st.integers(0, 2**32 - 1)))
def test_unique_keys_of_one_client_have_their_hashes(topic: str, stable: str, numbers: list[int]) -> None:
    hasher = KeyHasher(topic)
    for number in numbers:
        key = f"{stable}{number:08X}"
        assert hasher.hash(key.encode()) == index_hash(java_hash(f"{topic}#{key}"))


def test_of_equal_names_the_last_with_a_value_counts() -> None:
    properties = b"\x02KEYS\x01a\x02MYKEYS\x01b\x02KEYS\x01c\x02KEYS\x01\x02TAGS\x01t"
    assert last_value(properties, b"\x02KEYS\x01") == b"c"
    assert last_value(properties, b"\x02TAGS\x01") == b"t"
    assert last_value(properties, b"\x02UNIQ_KEY\x01") == b""


def test_the_index_has_a_message_under_its_unique_key_and_each_key() -> None:
    properties = b"KEYS\x01a  b\x02UNIQ_KEY\x01u"
    puts: list[Put] = []
    KeyHasher("T").put(puts, b"\x02" + properties, 7, 9)
    assert puts == [(index_hash(java_hash(f"T#{key}")), 7, 9) for key in "uab"]
    assert [has_key(properties, key) for key in (b"a", b"b", b"u", b"", b"c")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_a_tag_counts_by_its_hash() -> None:
    assert tags_code(b"TagA") == 2598919
    assert tags_code(b"") == 0
