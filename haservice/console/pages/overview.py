"""The first page: every broker name with its verdict, and the nameservers."""

from __future__ import annotations

from starlette.responses import Response

from haservice.console.visit import NavEntry, Visit, live, page

SECTION = NavEntry("Pairs", "/", "/pairs/")


async def overview(visit: Visit) -> Response:
    look = await visit.visitor.watch.latest()
    return visit.page("overview.html", "Pairs", look=look, namesrv=visit.console.settings.namesrv)


async def overview_part(visit: Visit) -> Response:
    look = await visit.visitor.watch.latest()
    return visit.page("part_overview.html", "Pairs", look=look, namesrv=visit.console.settings.namesrv)


ROUTES = (page("/", overview), live("/live/overview", overview_part))
