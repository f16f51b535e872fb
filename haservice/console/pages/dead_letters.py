"""Dead letters: groups that have some, the letters, and sending some of them again."""

from __future__ import annotations

import logging
import secrets
from typing import Any

from starlette.responses import Response

from haservice.console.questions.dead_letters import (
    LETTERS_MAX,
    Letter,
    Where,
    dead_groups,
    letters,
    send_again,
    to_send,
)
from haservice.console.questions.messages import NothingThere, QueuePlace
from haservice.console.questions.paging import QUEUE_MAX, whole
from haservice.console.visit import NavEntry, PageRefused, Visit, change, client_address, page
from haservice.printable import escaped

logger = logging.getLogger(__name__)

SECTION = NavEntry("Dead letters", "/dead-letters")
WITHIN_S = 25.0
TITLE = "Dead letters"


async def show_list(visit: Visit) -> Response:
    text = visit.asked("q")
    found, notes = await visit.ask(dead_groups, text, whole(visit.asked("page"), 1))
    return visit.page("dead_groups.html", TITLE, found=found, notes=notes, q=text)


async def show_letters(visit: Visit) -> Response:
    group = visit.path["group"]
    broker, queue = visit.asked("broker"), visit.number("queue", 0, QUEUE_MAX)
    before = visit.number("before", -1)
    try:
        found = await visit.ask(letters, group, broker, queue, before, within_s=WITHIN_S)
    except NothingThere as error:
        raise PageRefused(404, TITLE, str(error)) from None
    return visit.page("dead_letters.html", f"Dead letters of {group}", found=found)


async def show_sending(visit: Visit) -> Response:
    """What would be sent, and where to; the button is below."""
    group, where = visit.path["group"], _where(visit.asked("to"))
    places = [_place(text) for text in visit.request.query_params.getlist("m")]
    found = await _ready(visit, group, places, where)
    facts: dict[str, Any] = {
        "group": group,
        "where": where,
        "letters": found,
        "once": secrets.token_urlsafe(12),
    }
    return visit.page("dead_letters_send.html", f"Dead letters of {group}", **facts)


async def send(visit: Visit) -> Response:
    fields, group = await visit.form(), visit.path["group"]
    where = _where(fields.get("to", ""))
    places = [_place(text) for name, text in fields.items() if name.startswith("m")]
    ready = await _ready(visit, group, places, where)
    if not visit.console.once.first(fields.get("once", "")):
        raise PageRefused(
            409, TITLE, "These were sent already: a form sends them once.  Begin anew to send them again."
        )
    outcomes = await visit.ask(send_again, ready, within_s=WITHIN_S)
    logger.info(
        "dead letters sent again group=%s to=%s stored=%d of=%d account=%s peer=%s",
        *(escaped(group), where.value, sum(one.is_stored for one in outcomes), len(outcomes)),
        *(escaped(visit.visitor.name or "-"), client_address(visit.request)),
    )
    return visit.page(
        "dead_letters_sent.html", f"Dead letters of {group}", group=group, where=where, outcomes=outcomes
    )


async def _ready(visit: Visit, group: str, places: list[QueuePlace], where: Where) -> list[Letter]:
    if not places:
        raise PageRefused(400, TITLE, "None was chosen: tick the messages that are to be sent again.")
    if len(places) > LETTERS_MAX:
        raise PageRefused(400, TITLE, f"At most {LETTERS_MAX} are sent at a time.")
    try:
        return await visit.ask(to_send, group, places, where, within_s=WITHIN_S)
    except NothingThere as error:
        raise PageRefused(404, TITLE, str(error)) from None


def _where(text: str) -> Where:
    found = next((one for one in Where if one.value == text), None)
    if found is None:
        raise PageRefused(400, TITLE, "Where to?  Choose the group's retry topic or the original topic.")
    return found


def _place(text: str) -> QueuePlace:
    """BROKER:QUEUE:OFFSET, as the boxes have it."""
    rest, _, offset = text.rpartition(":")
    broker, _, queue = rest.rpartition(":")
    place = QueuePlace(broker, whole(queue, -1, QUEUE_MAX), whole(offset, -1))
    if not broker or place.queue_id < 0 or place.offset < 0:
        raise PageRefused(400, TITLE, f"{text[:100]!r} names no message.")
    return place


ROUTES = (
    page("/dead-letters", show_list),
    page("/dead-letters/{group}", show_letters),
    page("/dead-letters/{group}/send", show_sending),
    change("/dead-letters/{group}/send", send),
)
