"""Traces of consuming, which consumers write to the trace topic as Java's do.  Pure.

    SubBefore   time region group request msgId tries keys                     who got it, and when
    SubAfter    request msgId cost success keys code time group                what came of it

One request is one call of the callback.  Both entries are made when its outcome is known.
haservice.client.traces defines the form of an entry, and writes it.
"""

from __future__ import annotations

from haservice.client.consumer.callback.handler import ConsumeOutcome, ConsumeTimeout, RetryLater
from haservice.client.message import Received
from haservice.client.traces import ENTRY_END, FIELD_END, REGION

# The ordinals of Java's ConsumeReturnType.
_SUCCESS, _TIME_OUT, _EXCEPTION, _FAILED = 0, 1, 2, 4


def encode(group: str, request_id: str, ended_ms: int, outcome: ConsumeOutcome[Received]) -> str:
    """The entries of both kinds; empty if no message of the call is to be traced."""
    traced = [one for one in outcome.messages if one.properties.get("TRACE_ON") != "false"]
    took_ms = int(outcome.seconds * 1000)
    region = traced[0].properties.get("MSG_REGION", REGION) if traced else ""
    before = [
        FIELD_END.join(
            (
                *("SubBefore", str(ended_ms - took_ms), region, group, request_id),
                *(one.msg_id, str(one.reconsume_times), " ".join(one.keys)),
            )
        )
        for one in traced
    ]
    success = "true" if not outcome.failed else "false"
    after = [
        FIELD_END.join(
            (
                *("SubAfter", request_id, one.msg_id, str(took_ms // len(outcome.messages)), success),
                *(" ".join(one.keys), str(_code(outcome.error)), str(ended_ms), group),
            )
        )
        for one in traced
    ]
    return "".join(line + ENTRY_END for line in (*before, *after))


def _code(error: BaseException | None) -> int:
    if error is None:
        return _SUCCESS
    if isinstance(error, ConsumeTimeout):
        return _TIME_OUT
    return _FAILED if isinstance(error, RetryLater) else _EXCEPTION
