"""Who is connected: producers of all brokers, and the members of consumer groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from haservice.admin.asked_apart import group_places
from haservice.admin.calls import MQAdmin
from haservice.admin.commands.groups.consumers import group_names
from haservice.admin.many import Call
from haservice.console.questions.many import Notes, ask_many
from haservice.console.questions.paging import ListPage, cut, matching
from haservice.remoting.bodies.admin import ConsumerConnection, ProducerTableInfo
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.clients import ConsumerGroupHeader

GROUPS_MAX = 50


class ConnectedClient(NamedTuple):
    """A member of a producer group or a consumer group, as all brokers together know it."""

    group: str
    client_id: str
    addr: str
    language: str
    version: int
    last_ms: int
    brokers: tuple[str, ...]


class MembersOf(NamedTuple):
    """`kind` and `model` are what the members agreed on; None if nobody is online.

    Not `known`: a broker that may have members did not tell.
    """

    group: str
    members: tuple[ConnectedClient, ...]
    known: bool
    kind: str | None
    model: str | None


def producers(admin: MQAdmin, text: str, number: int) -> tuple[ListPage[ConnectedClient], Notes]:
    """Those with `text` in their group, id or address."""
    notes = Notes()
    brokers = [one for one in admin.brokers() if one.is_master]
    code = RequestCode.GET_ALL_PRODUCER_INFO
    tables = ask_many(admin, [Call(one.addr, code, into=ProducerTableInfo) for one in brokers], notes)
    found: dict[tuple[str, str], list[ConnectedClient]] = defaultdict(list)
    for broker, table in zip(brokers, tables, strict=True):
        for group, members in table.data.items() if table is not None else ():
            for one in members:
                addr = one.remote_ip.lstrip("/")
                client = ConnectedClient(
                    *(group, one.client_id, addr, one.language, one.version),
                    *(one.last_update_timestamp, (broker.name,)),
                )
                if text.lower() in f"{group} {one.client_id} {addr}".lower():
                    found[group, one.client_id].append(client)
    return cut([together(of) for _, of in sorted(found.items())], number), notes


def consumers(admin: MQAdmin, text: str, number: int) -> tuple[ListPage[MembersOf], Notes]:
    """The groups with `text` in their names, each with its members."""
    notes = Notes()
    page = cut(matching(group_names(admin), text), number, GROUPS_MAX)
    names = {one.addr: one.name for one in admin.brokers()}
    places = group_places(admin, page.rows)
    asked = [(group, addr) for group in page.rows for addr in places[group]]
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    calls = [Call(addr, code, ConsumerGroupHeader(group), ConsumerConnection) for group, addr in asked]
    answers = ask_many(admin, calls, notes, fine=[ResponseCode.CONSUMER_NOT_ONLINE])
    found: dict[str, list[tuple[str, ConsumerConnection]]] = defaultdict(list)
    for (group, addr), one in zip(asked, answers, strict=True):
        if one is not None:
            found[group].append((names.get(addr, addr), one))
    rows = [
        _members(group, found.get(group, []), notes.unheard.isdisjoint(places[group])) for group in page.rows
    ]
    return ListPage(rows, page.total, page.number, page.size), notes


def _members(group: str, known: list[tuple[str, ConsumerConnection]], is_all: bool) -> MembersOf:
    by_id: dict[str, list[ConnectedClient]] = defaultdict(list)
    for broker, connection in known:
        for one in connection.connection_set:
            client = ConnectedClient(
                *(group, one.client_id, one.client_addr, one.language, one.version, 0, (broker,))
            )
            by_id[one.client_id].append(client)
    members = tuple(together(of) for _, of in sorted(by_id.items()))
    first = known[0][1] if members else None
    return MembersOf(
        group,
        members,
        is_all,
        None if first is None else first.consume_type,
        None if first is None else first.message_model,
    )


def together(known: Iterable[ConnectedClient]) -> ConnectedClient:
    """One client as several brokers know it: the newest counts.  Pure."""
    of = sorted(known, key=lambda one: one.last_ms)
    return of[-1]._replace(brokers=tuple(sorted({name for one in of for name in one.brokers})))
