"""The texts of the client's errors: whatever name they hold, each is one printable line."""

from __future__ import annotations

import pytest

from haservice.client.errors import ReplyTimeout, RouteUnknown, SendFailed, TopicUnknown, Try
from haservice.errors import AnswerError, RemotingTimeout

HOSTILE = "a\n2026-11-23 12:00:00,000 ERROR\x1b[2K\u202e\x9b2Jz"
REFUSED = AnswerError("127.0.0.1:9876", 17, f"no route of {HOSTILE}")


@pytest.mark.parametrize(
    "error",
    [
        RouteUnknown(HOSTILE, "has no queue"),
        TopicUnknown(HOSTILE, REFUSED),
        SendFailed(HOSTILE, [Try("broker-a", "127.0.0.1:10911", REFUSED)]),
        SendFailed(HOSTILE, [Try("broker-a", "127.0.0.1:10911", RemotingTimeout("127.0.0.1:10911", 310, 3))]),
        ReplyTimeout(HOSTILE, "id", 3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_hostile_name_makes_no_line_of_its_own(error: RouteUnknown | SendFailed | ReplyTimeout) -> None:
    assert str(error).isprintable()
    assert error.topic == HOSTILE
