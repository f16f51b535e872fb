"""All topics, or all groups, asked for one by one as RocketMQ's tools do, but many at a time.

    105 routes ─▶ 315 each topic's puts, 300 its groups ─▶ 315 each group's gets, 208 its progress

For stock brokers, and for topics that no broker of ours knows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from haservice.admin.calls import MQAdmin, readable_addr
from haservice.admin.many import Call
from haservice.admin.overview import Overview
from haservice.broker.send.retries import retry_topic
from haservice.errors import AnswerError, RemotingError
from haservice.remoting.bodies.admin import (
    BrokerStatsData,
    ConsumerConnection,
    ConsumeStats,
    GroupList,
)
from haservice.remoting.bodies.clients import MASTER_ID, TopicRouteData
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.admin import BrokerStatsHeader, ConsumeStatsHeader
from haservice.remoting.headers.clients import ConsumerGroupHeader, TopicHeader
from haservice.remoting.headers.overview import GroupOverview, TrafficBody

# Statistics by topic, and by topic@group.
TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
# A stock broker reads the disk for each queue of a group.
PROGRESS_TIMEOUT_S = 15.0


def add_topics(admin: MQAdmin, names: Iterable[str], found: Overview, *, traffic: bool = True) -> None:
    """Adds the topics that have a route, with their groups; without `traffic` nothing else."""
    routes = admin.routes(names)
    for name, route in routes.items():
        found.topic(name).clusters.update(data.cluster for data in route.broker_datas)
    _add_groups(admin, routes, found)
    if traffic:
        _add_traffic(admin, routes, found)
        _add_progress(admin, list(routes), found)


def add_groups(admin: MQAdmin, groups: Sequence[str], found: Overview) -> None:
    """Adds each group's progress and its members, as far as brokers know them."""
    places = group_places(admin, groups)
    asked = [(group, addr) for group in groups for addr in places[group]]
    stats = _ask(admin, found, [_progress(addr, group) for group, addr in asked], PROGRESS_TIMEOUT_S)
    connections = _ask(admin, found, [_members(addr, group) for group, addr in asked])
    answers: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
    for (group, _), *pair in zip(asked, stats, connections, strict=True):
        answers[group].append((pair[0], pair[1]))
    for group in groups:
        found.groups[group] = _together(group, answers[group])


def _together(
    group: str, answers: Sequence[tuple[ConsumeStats | None, ConsumerConnection | None]]
) -> GroupOverview:
    known = [stats for stats, _ in answers if stats is not None]
    progress = {queue: one for stats in known for queue, one in stats.offset_table.items()}
    online = [one for _, one in answers if one is not None]
    members = {member.client_id: member for one in online for member in one.connection_set}
    return GroupOverview(
        group,
        len(members),
        min((member.version for member in members.values()), default=0),
        online[0].consume_type if online else None,
        online[0].message_model if online else None,
        sum(stats.consume_tps for stats in known),
        sum(one.lag for one in progress.values()),
    )


def _add_groups(admin: MQAdmin, routes: dict[str, TopicRouteData], found: Overview) -> None:
    asked = [(name, readable_addr(data)) for name, route in routes.items() for data in _up(route)]
    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    lists = _ask(admin, found, [Call(addr, code, TopicHeader(name), GroupList) for name, addr in asked])
    for (name, _), groups in zip(asked, lists, strict=True):
        for group in sorted(groups.group_list) if groups is not None else ():
            found.topic(name).group(group)


def _add_traffic(admin: MQAdmin, routes: dict[str, TopicRouteData], found: Overview) -> None:
    masters = {
        name: [data.broker_addrs[MASTER_ID] for data in _up(route) if MASTER_ID in data.broker_addrs]
        for name, route in routes.items()
    }
    puts = [(name, addr) for name in routes for addr in masters[name]]
    gets = [
        (name, group, addr) for name in routes for group in found.topic(name).groups for addr in masters[name]
    ]
    calls = [_stats(addr, TOPIC_PUT_NUMS, name) for name, addr in puts]
    calls += [_stats(addr, GROUP_GET_NUMS, f"{name}@{group}") for name, group, addr in gets]
    answers = iter(_ask(admin, found, calls))
    for name, _ in puts:
        found.topic(name).puts.add(_rates(next(answers)))
    for name, group, _ in gets:
        found.topic(name).group(group).gets.add(_rates(next(answers)))


def _add_progress(admin: MQAdmin, names: Sequence[str], found: Overview) -> None:
    groups = sorted({group for name in names for group in found.topic(name).groups})
    places = group_places(admin, groups)
    asked = [
        (name, group, addr) for name in names for group in found.topic(name).groups for addr in places[group]
    ]
    calls = [_progress(addr, group, name) for name, group, addr in asked]
    for (name, group, _), stats in zip(asked, _ask(admin, found, calls, PROGRESS_TIMEOUT_S), strict=True):
        if stats is not None:
            found.topic(name).group(group).behind += sum(one.lag for one in stats.offset_table.values())


def group_places(admin: MQAdmin, groups: Sequence[str]) -> dict[str, list[str]]:
    """The brokers to ask about each group: those with its retry topic, else all masters."""
    routes = admin.routes(retry_topic(group) for group in groups)
    masters = [broker.addr for broker in admin.brokers() if broker.is_master]
    places = {}
    for group in groups:
        route = routes.get(retry_topic(group))
        places[group] = ([readable_addr(data) for data in _up(route)] if route is not None else []) or masters
    return places


def _up(route: TopicRouteData) -> list[Any]:
    return [data for data in route.broker_datas if data.broker_addrs]


def _ask(admin: MQAdmin, found: Overview, calls: Sequence[Call], timeout_s: float | None = None) -> list[Any]:
    """The bodies; None where there is none.  Who does not answer at all is put among the failures."""
    results = admin.call_many(calls) if timeout_s is None else admin.call_many(calls, timeout_s)
    for call, result in zip(calls, results, strict=True):
        if isinstance(result, RemotingError) and not isinstance(result, AnswerError):
            found.fail(result, call.addr)
    return [None if isinstance(result, RemotingError) else result for result in results]


def _stats(addr: str, name: str, key: str) -> Call:
    return Call(addr, RequestCode.VIEW_BROKER_STATS_DATA, BrokerStatsHeader(name, key), BrokerStatsData)


def _progress(addr: str, group: str, topic: str | None = None) -> Call:
    return Call(addr, RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader(group, topic), ConsumeStats)


def _members(addr: str, group: str) -> Call:
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    return Call(addr, code, ConsumerGroupHeader(group), ConsumerConnection)


def _rates(data: BrokerStatsData | None) -> TrafficBody | None:
    """A stock broker has figures of a day only after an hour, and of an hour after ten minutes."""
    if data is None:
        return None
    messages = data.stats_day.sum or data.stats_hour.sum or data.stats_minute.sum
    return TrafficBody(data.stats_minute.tps, messages)
