"""Sessions and the throttle of log-ins, on a clock of the test's."""

from __future__ import annotations

import pytest

from haservice.client.options import Credentials
from haservice.console.doors import sessions, throttle, verification
from haservice.console.doors.sessions import Sessions
from haservice.console.doors.throttle import LoginThrottle
from haservice.console.settings import ConsoleSettings
from haservice.errors import AnswerError, RemotingError
from haservice.terminal.explain import ACL_REFUSAL

ONE, OTHER = Credentials("account-one", "a secret"), Credentials("account-two", "a secret")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_session_ends_when_nobody_uses_it(clock: Clock) -> None:
    found = Sessions(clock)
    secret = found.open(ONE)
    clock.now_s += sessions.IDLE_S - 1
    assert found.find(secret, used=True) is not None
    clock.now_s += sessions.IDLE_S - 1
    assert found.find(secret, used=False) is not None  # a page that looks again by itself
    clock.now_s += 1
    assert found.find(secret, used=True) is None
    assert found.accounts() == set()


def test_a_session_ends_after_some_hours_however_it_is_used(clock: Clock) -> None:
    found = Sessions(clock)
    secret = found.open(ONE)
    for _ in range(int(sessions.LIFE_S / 600) - 1):
        clock.now_s += 600
        assert found.find(secret, used=True) is not None
    clock.now_s += 600
    assert found.find(secret, used=True) is None


REFUSED = AnswerError("a:1", 1, f"{ACL_REFUSAL}: no acl config")
SILENT = RemotingError("b:1: no answer within 2 s")


@pytest.mark.parametrize(
    ("answers", "good"),
    [
        ([REFUSED, REFUSED], False),
        ([REFUSED, SILENT], True),  # the one that knows it may be down
        ([SILENT, SILENT], True),
        ([REFUSED, "a table"], True),
    ],
)
def test_an_account_is_gone_if_every_broker_says_so(
    monkeypatch: pytest.MonkeyPatch, answers: list[object], good: bool
) -> None:
    addrs = ["a:1", "b:1"]
    monkeypatch.setattr(verification, "_ask", lambda _, asked: list(zip(asked, answers, strict=True)))
    assert verification.is_still_good(ConsoleSettings(("n:1",)), ONE, addrs) is good


def test_brokers_that_let_an_account_in_are_kept_in_mind(clock: Clock) -> None:
    found = Sessions(clock)
    found.open(ONE, ["a:1"])
    found.open(ONE, ["a:1", "b:1"])
    found.open(OTHER, ["c:1"])
    assert found.known_at(ONE) == {"a:1", "b:1"}


def test_sessions_end_with_their_account(clock: Clock) -> None:
    found = Sessions(clock)
    secrets = [found.open(ONE), found.open(ONE)]
    other = found.open(OTHER)
    found.close_account(ONE)
    assert [found.find(secret, used=True) for secret in secrets] == [None, None]
    assert found.find(other, used=True) is not None


def test_a_secret_is_no_other_ones_and_ends_with_a_logout(clock: Clock) -> None:
    found = Sessions(clock)
    secret, second = found.open(ONE), found.open(OTHER)
    assert secret != second
    session = found.find(second, used=True)
    assert session is not None
    assert session.account == OTHER
    found.close(secret)
    assert found.find(secret, used=True) is None
    assert found.find("", used=True) is None
    assert found.accounts() == {OTHER}


def test_sessions_are_bounded_by_account_and_in_all(clock: Clock) -> None:
    found = Sessions(clock)
    own = [found.open(ONE) for _ in range(sessions.OF_ACCOUNT_MAX + 1)]
    assert [found.find(one, used=False) is not None for one in own] == [False] + [
        True
    ] * sessions.OF_ACCOUNT_MAX
    clock.now_s += 1
    others = [
        found.open(Credentials(f"account-{number}", "a secret")) for number in range(sessions.SESSIONS_MAX)
    ]
    assert all(found.find(one, used=False) is not None for one in others)
    assert all(found.find(one, used=False) is None for one in own)


def test_failures_from_one_address_make_it_wait_longer_each_time(clock: Clock) -> None:
    limits = LoginThrottle(clock)
    waits = []
    for _ in range(throttle.FREE_OF_ADDRESS + 4):
        clock.now_s += limits.wait_s("10.0.0.1", "a")
        limits.failed("10.0.0.1", "a")
        waits.append(limits.wait_s("10.0.0.1", "b"))  # whatever key it tries next
    assert waits == [0.0] * throttle.FREE_OF_ADDRESS + [2.0, 4.0, 8.0, 16.0]
    assert limits.wait_s("10.0.0.2", "b") == 0
    clock.now_s += throttle.FORGET_S
    limits.failed("10.0.0.1", "a")
    assert limits.wait_s("10.0.0.1", "a") == 0


def test_guesses_from_many_addresses_slow_down_their_key_and_keep_its_owner_out_for_seconds_only(
    clock: Clock,
) -> None:
    limits = LoginThrottle(clock)
    for number in range(1000):
        limits.failed(f"10.0.{number // 250}.{number % 250}", "a")
    assert limits.wait_s("10.1.0.1", "a") == throttle.KEY_WAIT_S
    assert limits.wait_s("10.1.0.1", "b") == 0


def test_addresses_of_one_network_of_ipv6_count_as_one(clock: Clock) -> None:
    limits = LoginThrottle(clock)
    for number in range(throttle.FREE_OF_ADDRESS + 1):
        limits.failed(f"2001:db8::{number:x}", f"key {number}")
    assert limits.wait_s("2001:db8::ffff", "new") > 0
    assert limits.wait_s("2001:db8:0:1::1", "new") == 0


def test_the_throttle_forgets_who_failed_longest_ago(clock: Clock) -> None:
    limits = LoginThrottle(clock)
    for _ in range(throttle.FREE_OF_ADDRESS + 1):
        limits.failed("10.0.0.1", "a")
    assert limits.wait_s("10.0.0.1", "z") > 0
    for number in range(throttle.ENTRIES_MAX):
        limits.failed(f"key-{number}", "b")
    assert limits.wait_s("10.0.0.1", "z") == 0
    assert len(limits._failures) == throttle.ENTRIES_MAX
