"""A slice of the fuzzing: every target with some thousand inputs.  More: scripts/chaos fuzz."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest

import tests.chaos.fuzz as fuzz_module
from commitlog.kernel import dispatching, native
from tests.chaos.fuzz import Finding, Target, fuzz, shares, shrunk, targets, told
from tests.chaos.fuzz_flips import flips_of_ends
from tests.chaos.fuzz_machine import explore
from tests.chaos.fuzz_mutate import INPUT_BYTES_MAX, Mutator

CASES = 100_000
TARGETS = targets()
SHARES = shares(TARGETS, CASES)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What a store says of the damage that it finds is no news here."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_nothing_but_what_the_contract_names_comes_of_any_bytes(name: str) -> None:
    outcome = fuzz(TARGETS[name], SHARES[name], seed=7)
    assert not outcome.findings, "\n".join(told(TARGETS[name], one) for one in outcome.findings.values())
    assert len(outcome.ends) > 1, "no input came to another end than the others"


@pytest.mark.parametrize("which", [0, 1])
def test_a_flip_where_a_queue_begins_or_ends_gives_no_number_twice(which: int) -> None:
    """After a death an entry was dropped whose place had flipped behind what comes again, and did not come again."""
    for data in flips_of_ends(which):
        TARGETS["flipped_store"].run(data)


def test_log_and_acks_in_any_order_prove_nothing_that_is_not_held() -> None:
    explore(examples=250, number=7)


def _hash_of_nothing(tags: bytes) -> int:
    return 0


def _indexed_from_the_next(known: dispatching.Lanes, *where: Any) -> tuple[int, bool, int]:
    *before, indexed_to = where
    return _GATHER(known, *before, indexed_to + 1)


_GATHER = dispatching.Lanes.gather


@pytest.mark.skipif(native.core is None, reason="there is one build only")
@pytest.mark.parametrize(
    ("name", "otherwise"), [("tags_code", _hash_of_nothing), ("Lanes.gather", _indexed_from_the_next)]
)
def test_a_dispatch_that_differs_between_the_builds_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, otherwise: object
) -> None:
    """An entry with another hash; a key that is put in one build only."""
    monkeypatch.setattr(f"commitlog.kernel.dispatching.{name}", otherwise)
    outcome = fuzz(TARGETS["builds_dispatch"], 500, seed=7)
    assert any("AssertionError" in cause for cause in outcome.findings)


# -- the loop itself -------------------------------------------------------------------------------


def _divides(data: bytes) -> object:
    return 100 // (len(data) - 5) if data[:2] == b"ab" else None


SAMPLE = Target("sample", _divides, lambda: [b"abc", b"x"], (IndexError,), tokens=(b"ab",))


def test_an_error_that_is_not_allowed_is_found_and_made_short() -> None:
    outcome = fuzz(SAMPLE, 20_000, seed=1)
    (finding,) = outcome.findings.values()
    assert finding.count >= 1
    assert shrunk(SAMPLE, finding)[:2] == b"ab"
    assert "ZeroDivisionError" in told(SAMPLE, finding)


def test_an_allowed_error_is_an_end_and_no_finding() -> None:
    target = Target("sample", lambda data: data[3], lambda: [b"abcd"], (IndexError,))
    outcome = fuzz(target, 2000, seed=1)
    assert not outcome.findings
    assert len(outcome.ends) > 10


def test_what_takes_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("any", len, lambda: [b"any"])
    assert not fuzz(target, 1, seed=1).findings
    monkeypatch.setattr(fuzz_module, "_SUSPECT_S", -1.0)
    monkeypatch.setattr(fuzz_module, "SLOW_S", -1.0)
    assert list(fuzz(target, 1, seed=1).findings) == ["slow"]


def test_shrinking_keeps_the_cause() -> None:
    def run(data: bytes) -> object:
        if b"\xff" in data:
            raise RuntimeError
        return 1 // (data.count(b"z") - 2)

    target = Target("two", run, lambda: [b""])
    try:
        target(b"qqzqz")
    except ZeroDivisionError as error:
        at = error.__traceback__
    assert at is not None
    while at.tb_next is not None:
        at = at.tb_next
    cause = str((ZeroDivisionError, (at.tb_frame.f_code.co_name, at.tb_lineno)))
    assert sorted(shrunk(target, Finding("two", cause, b"qqzqqqzq", ""))) == sorted(b"zz")


def test_the_same_seed_makes_the_same_inputs() -> None:
    corpus = [b"abc" * 30, b"\0\1\2" * 5000]
    first, second = (Mutator(random.Random(3), (b"tok",)) for _ in range(2))
    made = [first.make(corpus) for _ in range(3000)]
    assert made == [second.make(corpus) for _ in range(3000)]
    assert len(set(made)) > 2000
    assert max(map(len, made)) <= INPUT_BYTES_MAX
