"""Configuration of brokers: what is in force, and what their files say otherwise."""

from __future__ import annotations

from starlette.responses import Response

from haservice.console.questions.nodes import brokers, configuration
from haservice.console.questions.paging import whole
from haservice.console.visit import NavEntry, PageRefused, Visit, page

SECTION = NavEntry("Configuration", "/configuration")
TITLE = "Configuration"
ID_MAX = 2**31 - 1


async def show_brokers(visit: Visit) -> Response:
    return visit.page("configurations.html", TITLE, brokers=await visit.ask(brokers))


async def show_one(visit: Visit) -> Response:
    name, broker_id = visit.path["name"], whole(visit.path["id"], -1, ID_MAX)
    text = visit.asked("q")
    found = await visit.ask(configuration, name, broker_id, text)
    if found is None:
        raise PageRefused(404, TITLE, f"No broker {name} with id {visit.path['id']} is registered.")
    return visit.page("configuration.html", TITLE, found=found, q=text)


ROUTES = (page("/configuration", show_brokers), page("/configuration/{name}/{id}", show_one))
