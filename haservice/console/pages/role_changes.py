"""Switchover, failover, reinit, forget: the plan with what it would lose, the button, and how it goes.

A plan asks the address in its query: it has to be one that is known to be of the broker name, and no other site
may have a browser ask for a plan.
"""

from __future__ import annotations

from urllib.parse import quote, urlencode

from starlette.responses import Response

from haservice.console.changes.kinds import KINDS, ChangeAsked, asked_by
from haservice.console.changes.plan import ChangePlan, plan_of
from haservice.console.changes.running import ChangeUnderWay, RoleChange
from haservice.console.visit import PageRefused, Visit, change, client_address, live, page
from haservice.console.watch import WatchLook
from haservice.printable import escaped
from haservice.terminal.output import shown_addr

# Counting what would be lost takes 10 s at most, and asking all brokers some seconds.
PLAN_S = 25.0
# What browsers say of a page of ours, and of an address that somebody typed; others say nothing.
OWN_SITES = ("same-origin", "none")


async def show_plan(visit: Visit) -> Response:
    if visit.request.headers.get("sec-fetch-site", "none") not in OWN_SITES:
        text = "Another site leads here.  Open the page of the broker name, and choose the change there."
        raise PageRefused(403, "From another site", text)
    return await _plan_page(visit, await _asked(visit, dict(visit.request.query_params)))


async def begin(visit: Visit) -> Response:
    fields = await visit.form()
    asked = await _asked(visit, fields)
    if asked.needs_name and fields.get("typed_name", "").strip() != asked.name:
        return await _plan_page(visit, asked, f"Type the broker name, {asked.name}, to go on.")
    peer = client_address(visit.request)
    try:
        begun = visit.console.changes.begin(asked, fields.get("facts", ""), visit.visitor.credentials, peer)
    except ChangeUnderWay as error:
        return await _plan_page(visit, asked, str(error))
    return visit.go(f"/changes/{begun.change_id}")


async def show_change(visit: Visit) -> Response:
    found = _change(visit)
    return visit.page("change.html", found.title, change=found, again=_path_of(found.asked))


async def change_part(visit: Visit) -> Response:
    found = _change(visit)
    return visit.page("part_change.html", found.title, change=found, again=_path_of(found.asked))


async def _asked(visit: Visit, fields: dict[str, str]) -> ChangeAsked:
    asked = asked_by(visit.path["kind"], visit.path["name"], fields)
    if asked is None:
        raise PageRefused(404, "No such page", "There is no such change, or it does not say of which broker.")
    await _check_known(visit, asked)
    return asked


async def _check_known(visit: Visit, asked: ChangeAsked) -> None:
    """Raises PageRefused unless the last look has the broker name, and the address as one of it."""
    if why := _unknown(await visit.visitor.watch.latest(), asked):
        raise PageRefused(404, "Not known", why)


def _unknown(look: WatchLook, asked: ChangeAsked) -> str:
    """Why nobody is asked; "" if the name and the address are known."""
    addrs = {shown_addr(one.broker.addr) for one in look.of(asked.name)}
    if not addrs:
        return f"No broker of the name {escaped(asked.name)} is known: nobody is asked."
    # The replica to forget is only named to the others.
    if asked.kind == "forget" or not asked.target or shown_addr(asked.target) in addrs:
        return ""
    at, known = escaped(shown_addr(asked.target)), escaped(", ".join(sorted(addrs)))
    return (
        f"No broker of {escaped(asked.name)} is known at {at}: nobody is asked.  Known are {known}."
        "  One that has just begun is known some seconds later."
    )


async def _plan_page(visit: Visit, asked: ChangeAsked, complaint: str = "") -> Response:
    namesrv = visit.console.settings.namesrv
    plan: ChangePlan = await visit.ask_as_mqadmin(PLAN_S, plan_of, namesrv, asked)
    kind = KINDS[asked.kind]
    title = f"{kind.title} of {asked.name}"
    status = 409 if complaint else 200
    return visit.page("plan.html", title, status, plan=plan, kind=kind, complaint=complaint)


def _change(visit: Visit) -> RoleChange:
    found = visit.console.changes.find(visit.path["id"], visit.visitor.credentials)
    if found is None:
        raise PageRefused(404, "No such change", "This console does not know it: it may be long over.")
    return found


def _path_of(asked: ChangeAsked) -> str:
    return f"/pairs/{quote(asked.name, safe='')}/{asked.kind}?{urlencode(asked.query())}"


ROUTES = (
    page("/pairs/{name}/{kind}", show_plan),
    change("/pairs/{name}/{kind}", begin),
    page("/changes/{id}", show_change),
    live("/live/changes/{id}", change_part),
)
