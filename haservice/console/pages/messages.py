"""Messages: found by id, key, time or place, and one message with its body and who has consumed it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar
from urllib.parse import urlencode

import click
from starlette.responses import Response

from haservice.admin.commands.messages.tracking import Track
from haservice.console.asking import TooSlow
from haservice.console.questions.many import Notes
from haservice.console.questions.messages import (
    MessageFacts,
    NothingThere,
    QueuePlace,
    at_offset,
    at_place,
    by_key,
    by_offset_id,
    in_range,
    tracks_of,
)
from haservice.console.questions.paging import QUEUE_MAX
from haservice.console.times import given_ms
from haservice.console.visit import NavEntry, PageRefused, Visit, page
from haservice.errors import RemotingError

T = TypeVar("T")

SECTION = NavEntry("Messages", "/messages")
# A broker may build an index again; reading a range ends by itself before.
WITHIN_S = 20.0
TRACKS_S = 8.0


async def show_forms(visit: Visit) -> Response:
    return visit.page("messages.html", "Messages", topic=visit.asked("topic"))


async def show_by_id(visit: Visit) -> Response:
    """An offset message id says where the message is; another id is looked for in the topic's index."""
    text, topic = visit.asked("id").strip(), visit.asked("topic").strip()
    stored = await visit.ask(by_offset_id, text)
    if stored is not None and stored.name:
        return visit.go(
            f"/messages/stored?{urlencode({'broker': stored.name, 'at': stored.physical_offset})}"
        )
    if stored is not None and not topic:
        return visit.page("message_elsewhere.html", "Messages", 404, stored=stored, text=text)
    if not topic:
        raise PageRefused(
            400,
            "Messages",
            f"{text!r} is no offset message id.  For a client's id (UNIQ_KEY) give the topic, too.",
        )
    return await _by_key(visit, topic, text, unique=True)


async def show_by_key(visit: Visit) -> Response:
    topic, key = visit.asked("topic").strip(), visit.asked("key").strip()
    if not topic or not key:
        raise PageRefused(400, "Messages", "Give a topic and a key.")
    return await _by_key(visit, topic, key, unique=False)


async def _by_key(visit: Visit, topic: str, key: str, *, unique: bool) -> Response:
    rows, notes = await visit.ask(by_key, topic, key, unique, within_s=WITHIN_S)
    facts: dict[str, Any] = {"topic": topic, "key": key, "rows": rows, "notes": notes}
    return visit.page("messages_by_key.html", "Messages", **facts)


async def show_by_time(visit: Visit) -> Response:
    topic = visit.asked("topic").strip()
    if not topic:
        raise PageRefused(400, "Messages", "Give a topic.")
    try:
        begin_ms, end_ms = given_ms(visit.asked("begin")), given_ms(visit.asked("end"))
    except click.BadParameter as error:
        raise PageRefused(400, "Messages", error.format_message()) from None
    queue = visit.number("queue", -1, QUEUE_MAX)
    found = await _found(
        visit.ask(
            *(in_range, topic, begin_ms, end_ms, visit.asked("broker") or None),
            *(None if queue < 0 else queue, visit.number("fromq", 0, QUEUE_MAX), visit.number("from", -1)),
            within_s=WITHIN_S,
        )
    )
    asked = {name: visit.asked(name) for name in ("topic", "begin", "end", "broker", "queue")}
    onward = urlencode({**asked, "fromq": found.next_queue, "from": found.next_offset})
    return visit.page("messages_by_time.html", "Messages", found=found, asked=asked, onward=onward)


async def show_at_place(visit: Visit) -> Response:
    topic, broker = visit.asked("topic").strip(), visit.asked("broker")
    if not topic or not broker:
        raise PageRefused(400, "Messages", "Give a topic and a broker name.")
    place = QueuePlace(broker, visit.number("queue", None, QUEUE_MAX), visit.number("offset", None))
    return await _one(visit, await _found(visit.ask(at_place, topic, place)))


async def show_stored(visit: Visit) -> Response:
    asking = visit.ask(at_offset, visit.asked("broker"), visit.number("at", None))
    return await _one(visit, await _found(asking))


async def _one(visit: Visit, found: MessageFacts) -> Response:
    """Who has it is asked of many, and one that is silent does not keep the message from being shown."""
    tracks: list[Track] | None = None
    try:
        tracks, notes = await visit.ask(tracks_of, found.message, within_s=TRACKS_S)
    except (RemotingError, TooSlow) as error:
        notes = Notes([f"Who has consumed it is unknown: {error}"])
    return visit.page("message.html", "Message", found=found, tracks=tracks, notes=notes)


async def _found(asking: Awaitable[T]) -> T:
    """Raises PageRefused for what is not there."""
    try:
        return await asking
    except NothingThere as error:
        raise PageRefused(404, "No message", str(error)) from None


ROUTES = (
    page("/messages", show_forms),
    page("/messages/id", show_by_id),
    page("/messages/key", show_by_key),
    page("/messages/time", show_by_time),
    page("/messages/at", show_at_place),
    page("/messages/stored", show_stored),
)
