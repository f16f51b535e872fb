"""Questions to nameservers and brokers, each one request and its answer as a value.

A command opens one `Admin` and asks: `ask` for a body, `tell` where success is all there is to know, and a
method with a name for what several commands ask.  An answer of any code but those expected is an
AnswerError, and so reaches the person who typed the command.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import click

from haservice.admin.access import Access, access
from haservice.errors import AnswerError, RemotingTimeout, RemotingUnreachable
from haservice.remoting.bodies.clients import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    HARuntimeInfo,
    KVTable,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
)
from haservice.remoting.client import BlockingClient, expect
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import (
    ClusterHeader,
    CreateTopicHeader,
    ExtHeader,
    OffsetResponseHeader,
    PullMessageHeader,
    PullMessageResponseHeader,
    QueueHeader,
    RouteHeader,
    SearchOffsetHeader,
    TopicHeader,
    ViewMessageHeader,
)
from haservice.remoting.json_body import JSONBody

TIMEOUT_S = 5.0  # as stock mqadmin
TOOLS_GROUP = "TOOLS_CONSUMER"

# sysFlag of a pull: the subscription is in the request; nothing is held back, nothing is committed.
PULL_WITH_SUBSCRIPTION = 4

Body = TypeVar("Body", bound=JSONBody)


class Broker(NamedTuple):
    """One broker of a cluster, as the nameserver lists it."""

    cluster: str
    name: str
    broker_id: int
    addr: str

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID


class Pulled(NamedTuple):
    """What one pull brought: encoded records, and where to go on."""

    code: int
    records: bytes | memoryview
    next_offset: int
    max_offset: int


class Admin:
    """One connection per address, made when first used.  Used by one thread."""

    def __init__(self, namesrv: Sequence[str] = (), way: Access | None = None) -> None:
        """`way` stands for what the command line and the environment say of keys and TLS."""
        self._namesrv = tuple(namesrv)
        self._client = BlockingClient(**(way or access()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    # -- the nameserver ----------------------------------------------------------------------------

    @property
    def nameservers(self) -> tuple[str, ...]:
        """All of them, for what must be told to each; raises UsageError when none is known."""
        if not self._namesrv:
            raise click.UsageError("which nameserver?  Say -n host:port, or set NAMESRV_ADDR")
        return self._namesrv

    def brokers(self, cluster: str | None = None) -> list[Broker]:
        """Every broker, or those of one cluster: by name, the master first."""
        info = self._decode(ClusterInfo, *self._ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO))
        found = [
            Broker(data.cluster, data.broker_name, broker_id, addr)
            for data in info.broker_addr_table.values()
            for broker_id, addr in data.broker_addrs.items()
            if cluster is None or data.cluster == cluster
        ]
        if not found and cluster is not None:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none: no broker has registered yet"
            raise click.ClickException(
                f"no cluster {cluster!r} at {';'.join(self._namesrv)}; it knows {known}"
            )
        return sorted(found)

    def masters(self, cluster: str) -> list[Broker]:
        masters = [broker for broker in self.brokers(cluster) if broker.is_master]
        if not masters:
            raise click.ClickException(f"cluster {cluster!r} has no master now; mqadmin clusterList shows it")
        return masters

    def targets(self, broker: str | None, cluster: str | None, *, slaves: bool = False) -> list[Broker]:
        """One broker by its address, or a cluster's masters, with their slaves if `slaves`."""
        if broker is not None:
            return [Broker("", "", MASTER_ID, broker)]
        if cluster is None:
            raise click.UsageError("where?  Say -b host:port, or -c CLUSTER with -n")
        return self.brokers(cluster) if slaves else self.masters(cluster)

    def route(self, topic: str) -> TopicRouteData:
        """Where the topic's queues are; AnswerError 17 when it is unknown."""
        header = RouteHeader(topic, accept_standard_json_only=True)
        return self._decode(
            TopicRouteData, *self._ask_namesrv(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.encode())
        )

    def topics(self, cluster: str | None = None) -> list[str]:
        if cluster is None:
            answer = self._ask_namesrv(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        else:
            answer = self._ask_namesrv(RequestCode.GET_TOPICS_BY_CLUSTER, ClusterHeader(cluster).encode())
        return sorted(self._decode(TopicList, *answer).topic_list)

    # -- a broker ----------------------------------------------------------------------------------

    def runtime_info(self, addr: str) -> dict[str, str]:
        """28: names and values, all text."""
        answer = self.call(addr, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(self._decode(KVTable, addr, answer).table)

    def broker_config(self, addr: str) -> dict[str, str]:
        """26: every key the broker runs with."""
        answer = self.call(addr, RequestCode.GET_BROKER_CONFIG)
        lines = bytes(answer.body).decode(errors="replace").splitlines()
        return {key: value for key, _, value in (line.partition("=") for line in lines)}

    def ha_status(self, addr: str) -> HARuntimeInfo | None:
        """907; None from a broker that does not know the request, as no 4.9 broker does."""
        try:
            answer = self.call(addr, RequestCode.GET_BROKER_HA_STATUS)
        except AnswerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return None
            raise
        return self._decode(HARuntimeInfo, addr, answer)

    def topic_stats(self, addr: str, topic: str) -> TopicStatsTable:
        return self.ask(addr, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic), into=TopicStatsTable)

    def update_topic(self, addr: str, header: CreateTopicHeader) -> None:
        self.tell(addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    def offset(self, addr: str, code: RequestCode, header: QueueHeader | SearchOffsetHeader) -> int:
        """30, 31 or 29: a queue offset."""
        return OffsetResponseHeader.decode(self.call(addr, code, header.encode()).ext).offset

    def pull(
        self,
        addr: str,
        topic: str,
        queue_id: int,
        offset: int,
        count: int,
        group: str,
        expression: str = "*",
    ) -> Pulled:
        """11, without waiting for messages that are not there yet."""
        header = PullMessageHeader(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=PULL_WITH_SUBSCRIPTION,
            subscription=expression,
            expression_type="TAG",
        )
        answer = self.call(
            addr,
            RequestCode.PULL_MESSAGE,
            header.encode(),
            expected=(
                ResponseCode.SUCCESS,
                ResponseCode.PULL_NOT_FOUND,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                ResponseCode.PULL_OFFSET_MOVED,
            ),
        )
        found = PullMessageResponseHeader.decode(answer.ext)
        return Pulled(answer.code, answer.body, found.next_begin_offset, found.max_offset)

    def view(self, addr: str, physical_offset: int) -> bytes:
        """33: the record at a physical offset."""
        header = ViewMessageHeader(physical_offset)
        return bytes(self.call(addr, RequestCode.VIEW_MESSAGE_BY_ID, header.encode()).body)

    # -- calls -------------------------------------------------------------------------------------

    def ask(
        self,
        addr: str,
        code: RequestCode,
        header: ExtHeader | None = None,
        *,
        into: type[Body],
        timeout_s: float = TIMEOUT_S,
    ) -> Body:
        """The answer's body.  Raises AnswerError and the other RemotingErrors, or BodyUnreadable."""
        answer = self.call(addr, code, None if header is None else header.encode(), timeout_s=timeout_s)
        return into.decode(answer.body)

    def tell(
        self, addr: str, code: RequestCode, header: ExtHeader | None = None, body: JSONBody | bytes = b""
    ) -> None:
        """A request whose success says all.  Raises AnswerError and the other RemotingErrors."""
        data = body if isinstance(body, bytes) else body.encode()
        self.call(addr, code, None if header is None else header.encode(), body=data)

    def call(
        self,
        addr: str,
        code: RequestCode,
        ext: dict[str, str] | None = None,
        expected: Sequence[int] = (ResponseCode.SUCCESS,),
        *,
        body: bytes = b"",
        timeout_s: float = TIMEOUT_S,
        language: int | None = None,
    ) -> RemotingCommand:
        """The answer when its code is one of `expected`.  Raises AnswerError and the other RemotingErrors."""
        command = RemotingCommand.request(code, ext, body)
        if language is not None:
            command.language = language
        return expect(addr, self._client.call(addr, command, timeout_s), *expected, request=code)

    def call_namesrv(self, code: RequestCode, header: ExtHeader | None = None) -> RemotingCommand:
        """As `call`, of the first nameserver that answers."""
        return self._ask_namesrv(code, None if header is None else header.encode())[1]

    def _ask_namesrv(
        self, code: RequestCode, ext: dict[str, str] | None = None
    ) -> tuple[str, RemotingCommand]:
        """The first nameserver that answers; so one that is down or frozen does no harm."""
        failures: list[RemotingUnreachable | RemotingTimeout] = []
        for addr in self.nameservers:
            try:
                return addr, self.call(addr, code, ext)
            except (RemotingUnreachable, RemotingTimeout) as error:
                failures.append(error)
        raise failures[0]

    @staticmethod
    def _decode(body: type[Body], addr: str, answer: RemotingCommand) -> Body:
        return body.decode(answer.body)


def readable_addr(data: BrokerData) -> str:
    """Who of a broker's addresses to read from: the master, or the first slave while there is none."""
    return data.broker_addrs[min(data.broker_addrs)]
