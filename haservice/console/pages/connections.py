"""Connections: producers, and the members of consumer groups."""

from __future__ import annotations

from starlette.responses import Response

from haservice.console.questions.clients import consumers, producers
from haservice.console.questions.paging import whole
from haservice.console.visit import NavEntry, Visit, page

SECTION = NavEntry("Connections", "/connections")
TITLE = "Connections"
WITHIN_S = 20.0


async def show_producers(visit: Visit) -> Response:
    text = visit.asked("q")
    found, notes = await visit.ask(producers, text, whole(visit.asked("page"), 1), within_s=WITHIN_S)
    return visit.page("producers.html", TITLE, found=found, notes=notes, q=text)


async def show_consumers(visit: Visit) -> Response:
    text = visit.asked("q")
    found, notes = await visit.ask(consumers, text, whole(visit.asked("page"), 1), within_s=WITHIN_S)
    return visit.page("consumers.html", TITLE, found=found, notes=notes, q=text)


ROUTES = (page("/connections", show_producers), page("/connections/consumers", show_consumers))
