"""The written-out ways of a pull's ext fields are the general ones, faults included."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haservice.bounds import EXPRESSION_BYTES_MAX
from haservice.errors import RequestError
from haservice.remoting.headers.clients import PullMessageHeader, PullMessageResponseHeader
from haservice.remoting.headers.pull_texts import pull_answer, read_pull

WHOLE = PullMessageHeader("G", "T", 1, 2, 32, 3, 4, 15_000, 5, "*", "TAG").encode()
TEXTS = (
    st.sampled_from(["", "x", "1.5", "-1", " 7", "1_0", "0x1", "9" * 5000, "2147483648", "-2147483649"])
    | st.sampled_from([str(1 << 63), str(-(1 << 63) - 1), str((1 << 63) - 1)])
    | st.sampled_from(["n" * 64, "n" * 127, "n" * 128, "é" * 63, "é" * 64, "%RETRY%" + "g" * 250, "g" * 256])
    | st.sampled_from(["x" * EXPRESSION_BYTES_MAX, "é" * EXPRESSION_BYTES_MAX])
    | st.text(max_size=3)
    | st.integers().map(str)
)


def read_by(read: Callable[[Mapping[str, str]], PullMessageHeader], ext: Mapping[str, str]) -> object:
    try:
        return read(ext)
    except RequestError as error:
        return error.code, error.remark


@given(
    st.dictionaries(st.sampled_from([*WHOLE, "bname"]), TEXTS, max_size=4),
    st.sets(st.sampled_from(sorted(WHOLE))),
)
def test_a_pull_is_read_as_the_table_reads_it(changed: dict[str, str], missing: set[str]) -> None:
    ext = {name: text for name, text in {**WHOLE, **changed}.items() if name not in missing}
    assert read_by(read_pull, ext) == read_by(PullMessageHeader.decode, ext)


@pytest.mark.parametrize(
    "absent", [(), ("commitOffset", "suspendTimeoutMillis", "subVersion", "subscription")]
)
def test_a_pull_that_is_whole_is_read(absent: tuple[str, ...]) -> None:
    ext = {name: text for name, text in WHOLE.items() if name not in absent}
    assert read_pull(ext) == PullMessageHeader.decode(ext)
    assert read_pull(ext).queue_offset == 2


@given(st.tuples(*[st.integers(-(1 << 63), (1 << 63) - 1)] * 4))
def test_an_answer_says_what_the_table_says(numbers: tuple[int, int, int, int]) -> None:
    assert pull_answer(*numbers) == PullMessageResponseHeader(*numbers).encode()
