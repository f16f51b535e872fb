"""What clients with msgTraceEnable record about messages: text ⇄ entries.

A trace message's body is a list of entries, each ended by U+0002, with fields separated by U+0001, as
RocketMQ's TraceDataEncoder writes them:

    Pub       time region group topic msgId tags keys storeHost bodyLength cost msgType offsetMsgId success
              clientHost
    SubAfter  requestId msgId cost success keys contextCode time group

Clients before 4.9 leave the last ones out, and some an offsetMsgId.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from commitlog.log.log import wall_clock_ms
from haservice.client.raw_sends import GROUP, SEND_OK, RawMessage, Sent
from haservice.client.traces import ENTRY_END, FIELD_END, NORMAL_MESSAGE, REGION, Pub


class TraceEntry(NamedTuple):
    """`kind` is Pub (sent) or Sub (consumed); times in ms, None where the client did not write them."""

    kind: str
    group: str | None
    client_host: str
    timestamp_ms: int | None
    cost_ms: int
    status: str


def entries_of(text: str, message_id: str, client_host: str) -> Iterator[TraceEntry]:
    """The entries for one message in a trace message's body; skips entries that cannot be read."""
    for entry in text.split(ENTRY_END):
        fields = entry.split(FIELD_END)
        with suppress(IndexError, ValueError):
            if fields[0] == "Pub" and fields[5] == message_id:
                ok = fields[13 if len(fields) >= 14 else 12] == "true"
                yield TraceEntry("Pub", fields[3], client_host, int(fields[1]), int(fields[10]), _status(ok))
            elif fields[0] == "SubAfter" and fields[2] == message_id:
                known = len(fields) >= 9
                yield TraceEntry(
                    "Sub",
                    fields[8] if known else None,
                    client_host,
                    int(fields[7]) if known else None,
                    int(fields[3]),
                    _status(fields[4] == "true"),
                )


def _status(ok: bool) -> str:
    return "success" if ok else "failed"


def sent_entry(topic: str, message: RawMessage, sent: Sent, seconds: float) -> str:
    """The entry of a message that was just sent."""
    cost_ms = int(seconds * 1000)
    return Pub(
        wall_clock_ms() - cost_ms,
        REGION,
        GROUP,
        topic,
        message.properties["UNIQ_KEY"],
        message.properties.get("TAGS", ""),
        message.properties.get("KEYS", ""),
        sent.queue.addr,
        len(message.body),
        cost_ms,
        NORMAL_MESSAGE,
        sent.message_id or "",
        sent.status == SEND_OK,
        "127.0.0.1",
    ).encode()
