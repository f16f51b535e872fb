"""What brokers hold back: delayed messages, and transactions that are still open."""

from __future__ import annotations

from starlette.responses import Response

from haservice.console.questions.waiting import names, waiting
from haservice.console.visit import NavEntry, PageRefused, Visit, page

SECTION = NavEntry("Delayed, transactions", "/waiting")
TITLE = "Delayed messages and open transactions"
WITHIN_S = 20.0


async def show_names(visit: Visit) -> Response:
    if visit.asked("broker"):
        return await _show(visit, visit.asked("broker"))
    known = await visit.ask(names)
    if len(known) == 1:
        return await _show(visit, known[0])
    return visit.page("waiting_names.html", TITLE, names=known)


async def show_one(visit: Visit) -> Response:
    return await _show(visit, visit.path["name"])


async def _show(visit: Visit, name: str) -> Response:
    found = await visit.ask(waiting, name, within_s=WITHIN_S)
    if found is None:
        raise PageRefused(404, TITLE, f"No broker {name} is registered.")
    return visit.page("waiting.html", TITLE, found=found)


ROUTES = (page("/waiting", show_names), page("/waiting/{name}", show_one))
