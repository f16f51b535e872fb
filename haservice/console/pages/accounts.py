"""Accounts of the brokers' access control, without their secret keys."""

from __future__ import annotations

from starlette.responses import Response

from haservice.console.questions.nodes import accounts
from haservice.console.questions.paging import cut, whole
from haservice.console.visit import NavEntry, Visit, page

SECTION = NavEntry("Accounts", "/accounts")
WITHIN_S = 20.0


async def show(visit: Visit) -> Response:
    text = visit.asked("q")
    found = await visit.ask(accounts, text, within_s=WITHIN_S)
    rows = cut(found.accounts, whole(visit.asked("page"), 1))
    return visit.page("accounts.html", "Accounts", found=found, rows=rows, q=text)


ROUTES = (page("/accounts", show),)
