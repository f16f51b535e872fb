"""A pair: its replicas, charts, epochs, and the changes that concern it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from haservice.admin.commands.dledger.members import group_look
from haservice.console.changes.running import RoleChange
from haservice.console.questions.lease import coordinator_named, look_at_lease
from haservice.console.replica_rows import charts_of, epochs_of, notes, rows_of
from haservice.console.visit import PageRefused, Visit, live, page

CHANGES_SHOWN, REFUSED_SHOWN = 5, 2


async def pair(visit: Visit) -> Response:
    return visit.page("pair.html", visit.path["name"], **await _facts(visit))


async def pair_part(visit: Visit) -> Response:
    return visit.page("part_pair.html", visit.path["name"], **await _facts(visit))


async def _facts(visit: Visit) -> dict[str, Any]:
    name, watch = visit.path["name"], visit.visitor.watch
    look = await watch.latest()
    seen = look.of(name)
    if not seen and look.trouble:
        raise PageRefused(502, name, look.trouble)
    if not seen:
        raise PageRefused(404, name, f"No broker of that name is known to {', '.join(look.nameservers)}.")
    epochs, table = epochs_of(seen, look.at_ms)
    lease = None
    if coordinator_named(seen):
        key = (visit.visitor.credentials, name)
        lease = await visit.console.leases.of(key, lambda: visit.ask(look_at_lease, name, seen))
    changes = shown_changes(list(visit.console.changes.of(name, visit.visitor.credentials)))
    return {
        "name": name,
        "look": look,
        "verdict": look.verdict(name),
        "rows": rows_of(seen, look.at_ms),
        "notes": notes(seen),
        "charts": charts_of(watch.samples(name), look.at_ms / 1000),
        "timeline": epochs,
        "epochs": table,
        "group": group_look(seen),
        "changes": changes,
        "lease": lease,
    }


def shown_changes(changes: Sequence[RoleChange]) -> list[RoleChange]:
    """Of those of one name, the newest first: the last that did something, and a few that were refused.  Pure."""
    shown = [one for one in changes if not one.is_refused][:CHANGES_SHOWN]
    shown += [one for one in changes if one.is_refused][:REFUSED_SHOWN]
    return [one for one in changes if one in shown]


ROUTES = (page("/pairs/{name}", pair), live("/live/pairs/{name}", pair_part))
