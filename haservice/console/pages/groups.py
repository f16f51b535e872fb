"""Consumer groups: a list with lag, one group's members and queues, and resetting its offsets."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import click
from starlette.responses import Response

from haservice.console.questions.groups import END, ResetPlan, group_facts, group_list, reset, reset_plan
from haservice.console.questions.messages import NothingThere
from haservice.console.questions.paging import whole
from haservice.console.times import given_ms
from haservice.console.visit import NavEntry, PageRefused, Visit, change, client_address, page
from haservice.printable import escaped

logger = logging.getLogger(__name__)

SECTION = NavEntry("Groups", "/groups")
# A broker goes through every queue of a group; members tell of themselves.
WITHIN_S = 25.0
NOW = "now"
# Of a form that agrees to a reset.  Members go on meanwhile, and messages come.
SHOWN_MAX_S = 120
NOT_DONE = "Nothing was done."


async def show_list(visit: Visit) -> Response:
    text = visit.asked("q")
    found, notes = await visit.ask(group_list, text, whole(visit.asked("page"), 1), within_s=WITHIN_S)
    return visit.page("groups.html", "Groups", found=found, notes=notes, q=text)


async def show_one(visit: Visit) -> Response:
    name, with_owners = visit.path["group"], bool(visit.asked("owners"))
    number = whole(visit.asked("page"), 1)
    try:
        found = await visit.ask(group_facts, name, number, with_owners, within_s=WITHIN_S)
    except NothingThere as error:
        raise PageRefused(404, "No such group", str(error)) from None
    return visit.page("group.html", name, found=found)


async def show_reset(visit: Visit) -> Response:
    """What it would do; the button is below."""
    topic, when_ms = _asked(visit.asked("topic"), visit.asked("time"))
    return _plan_page(visit, await _plan(visit, topic, when_ms, visit.asked("backonly") == ""))


async def do_reset(visit: Visit) -> Response:
    """Does what was shown; shows it again if it is not what was shown any more."""
    fields, group = await visit.form(), visit.path["group"]
    topic, when_ms = _asked(fields.get("topic", ""), fields.get("time", ""))
    force = fields.get("force") == "true"
    plan = await _plan(visit, topic, when_ms, force)
    if why := _not_agreed(plan, fields):
        return _plan_page(visit, plan, why)
    logger.info(
        "offsets are reset group=%s topic=%s time=%d force=%s account=%s peer=%s",
        *(escaped(group), escaped(topic), when_ms, force, escaped(visit.visitor.name or "-")),
        client_address(visit.request),
    )
    table = await visit.ask(reset, group, topic, when_ms, force, within_s=WITHIN_S)
    return visit.page("group_reset_done.html", f"Reset of {group}", table=table, group=group, topic=topic)


def _not_agreed(plan: ResetPlan, fields: Mapping[str, str]) -> str:
    """Why the form is not about this plan; "" if it is.  Pure."""
    position, shown_ms = whole(fields.get("position", ""), -1), whole(fields.get("shown", ""), -1)
    if position < 0 or shown_ms < 0:
        return f"{NOT_DONE} The form does not say what was shown."
    if fields.get("facts") != plan.facts or plan.position < position:
        return f"{NOT_DONE} The group, its members or the topic have changed since this was shown: look at it again."
    if not 0 <= plan.at_ms - shown_ms <= SHOWN_MAX_S * 1000:
        return f"{NOT_DONE} What was shown is more than {SHOWN_MAX_S} seconds old: look at it again."
    if plan.needs_name and fields.get("typed_name", "").strip() != plan.group:
        return f"{NOT_DONE} Type the group's name, {plan.group}, to go on."
    return ""


async def _plan(visit: Visit, topic: str, when_ms: int, force: bool) -> ResetPlan:
    return await visit.ask(reset_plan, visit.path["group"], topic, when_ms, force, within_s=WITHIN_S)


def _plan_page(visit: Visit, plan: ResetPlan, complaint: str = "") -> Response:
    status = 409 if complaint else 200
    return visit.page("group_reset.html", f"Reset of {plan.group}", status, plan=plan, complaint=complaint)


def _asked(topic: str, time: str) -> tuple[str, int]:
    """Raises PageRefused."""
    if not topic:
        raise PageRefused(400, "Reset", "Of which topic?  Give its name.")
    if time.strip() == NOW or time == str(END):
        return topic, END
    try:
        when_ms = given_ms(time)
    except click.BadParameter as error:
        raise PageRefused(400, "Reset", error.format_message()) from None
    if when_ms is None:
        raise PageRefused(400, "Reset", "To which time?  Give one, or `now` for the end of the queues.")
    return topic, when_ms


ROUTES = (
    page("/groups", show_list),
    page("/groups/{group}", show_one),
    page("/groups/{group}/reset", show_reset),
    change("/groups/{group}/reset", do_reset),
)
