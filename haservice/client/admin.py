"""Admin: questions and commands to nameservers and brokers.

`topics`, `create_topic`, `progress` and their like are for applications.  Tools use the calls by code below
them: `ask` for a body, `tell` if only success matters, `call` for the answer itself.  An answer with another
code than those expected is an AnswerError.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from commitlog.kernel.records import parse_message_id
from haservice.client.errors import (
    ClientClosed,
    ClientError,
    ClientForked,
    GroupUnknown,
    RouteUnknown,
    TopicKept,
    TopicUnknown,
)
from haservice.client.message import PulledRecords, Received, decode_all
from haservice.client.options import ClientOptions
from haservice.client.routes import Broker, Knows, TopicRoute, first_that_knows, names_brokers, readable_addr
from haservice.errors import AnswerError, RemotingTimeout, RemotingUnreachable
from haservice.remoting.bodies.admin import ConsumeStats, QueueProgress
from haservice.remoting.bodies.clients import (
    BrokerData,
    ClusterInfo,
    HARuntimeInfo,
    KVTable,
    MessageQueue,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
)
from haservice.remoting.client import BlockingClient, Sign, expect
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.admin import (
    ConsumeStatsHeader,
    DeleteSubscriptionGroupHeader,
    ResetOffsetHeader,
)
from haservice.remoting.headers.clients import (
    ClusterHeader,
    CreateTopicHeader,
    DeleteTopicInNamesrvHeader,
    ExtHeader,
    OffsetResponseHeader,
    PullMessageHeader,
    PullMessageResponseHeader,
    QueryMessageHeader,
    QueueHeader,
    RouteHeader,
    SearchOffsetHeader,
    TopicHeader,
    UpdateConsumerOffsetHeader,
    ViewMessageHeader,
)
from haservice.remoting.json_body import JSONBody
from haservice.remoting.loop_thread import LoopForked

TIMEOUT_S = 5.0  # as RocketMQ's tools
TOOLS_GROUP = "TOOLS_CONSUMER"

QUERY_TIMEOUT_S = 18.0  # as RocketMQ's clients wait for the index
STATS_TIMEOUT_S = 15.0
# For reset_offsets: the end of each queue.
END = -1
_FOREVER_MS = (1 << 63) - 1

# sysFlag of a pull: the request has the subscription; the broker holds and commits nothing.
PULL_WITH_SUBSCRIPTION = 4

Body = TypeVar("Body", bound=JSONBody)


class Admin:
    """For any number of threads.  Makes one connection per address, at its first use."""

    def __init__(self, options: ClientOptions | None = None, *, sign: Sign | None = None) -> None:
        """`sign` adds other credentials to requests than those of the options."""
        self._options = options or ClientOptions()
        self._closed = False
        credentials = self._options.credentials
        self._client = BlockingClient(
            connect_timeout_s=self._options.connect_timeout_s,
            tls=self._options.tls,
            sign=sign or (None if credentials is None else credentials.signer()),
        )

    def close(self) -> None:
        """Ends the connections.  May be called twice."""
        self._closed = True
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- topics ------------------------------------------------------------------------------------

    def create_topic(
        self, topic: str, queues: int = 8, *, cluster: str | None = None, perm: int = 6, order: bool = False
    ) -> None:
        """Makes or changes the topic at every master of the cluster, or of all.  Raises ValueError for 0 queues."""
        if queues < 1:
            raise ValueError(
                f"topic {topic}: queues={queues}, but a topic has at least 1 queue on each broker"
            )
        header = CreateTopicHeader(topic, "TBW102", queues, queues, perm, order=order)
        for broker in self.masters(cluster):
            self.update_topic(broker.addr, header)

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Deletes the topic and its messages at every master, and at every nameserver.

        Raises RouteUnknown if neither masters nor nameserver know the topic; brokers would answer success.
        Raises TopicKept, after all that, if a broker name without a master may have it.
        """
        kept = self._kept_without_master(topic, cluster)
        addrs = [broker.addr for broker in self.masters(cluster)]
        if not any(self._has_topic(addr, topic) for addr in addrs):
            clusters = sorted({data.cluster for data in self.route(topic).broker_datas})
            if cluster is not None and cluster not in clusters:
                raise RouteUnknown(topic, f"is not in cluster {cluster}, but in {', '.join(clusters)}")
        for addr in addrs:
            self.tell(addr, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic))
        for addr in self.nameservers:
            self.tell(addr, RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNamesrvHeader(topic, cluster))
        if kept:
            raise TopicKept(topic, kept)

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that may be read.  RouteUnknown if the topic is unknown."""
        return TopicRoute.of(topic, self.route(topic)).read_queues

    def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the first message that the queue still holds."""
        header = QueueHeader(queue.topic, queue.queue_id)
        return self.offset(self._addr_of(queue), RequestCode.GET_MIN_OFFSET, header)

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will have."""
        header = QueueHeader(queue.topic, queue.queue_id)
        return self.offset(self._addr_of(queue), RequestCode.GET_MAX_OFFSET, header)

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at this time or later; the queue's end if all are older."""
        header = SearchOffsetHeader(queue.topic, queue.queue_id, timestamp_ms, SearchOffsetHeader.LOWER)
        return self.offset(self._addr_of(queue), RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    # -- messages ----------------------------------------------------------------------------------

    def message(self, topic: str, offset_msg_id: str) -> Received:
        """The message stored there.  AnswerError if there is none, ClientError for an invalid id."""
        try:
            ip, port, offset = parse_message_id(offset_msg_id)
        except ValueError:
            port = 0
        if not 0 < port < 65536 or offset < 0:
            raise ClientError(
                f"{offset_msg_id!r} is no offset_msg_id, which names a broker's host, port and offset in 32 or "
                f"56 hex digits.  Is it a UNIQ_KEY (msg_id)?  A UNIQ_KEY is found by `find`: find({topic!r}, …)"
            )
        addr = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        (record,) = decode_all(self.view(addr, offset))
        return Received.of(record, self._broker_name(topic, addr))

    def find(self, topic: str, key: str, *, count: int = 64) -> list[Received]:
        """The messages that have `key` among their keys, or as their msg_id; the oldest first."""
        found: dict[str, Received] = {}
        for unique in (True, False):
            header = QueryMessageHeader(topic, key, count, 0, _FOREVER_MS)
            ext = header.encode() | {"_UNIQUE_KEY_QUERY": str(unique).lower()}
            for data in self.route(topic).broker_datas:
                answer = self.call(
                    readable_addr(data),
                    RequestCode.QUERY_MESSAGE,
                    ext,
                    (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
                    timeout_s=QUERY_TIMEOUT_S,
                )
                for record in decode_all(answer.body):
                    message = Received.of(record, data.broker_name)
                    # The index holds hashes, so the answer may have other messages, too.
                    if record.topic == topic and key in (message.msg_id, *message.keys):
                        found[message.offset_msg_id] = message
        return sorted(found.values(), key=lambda one: one.store_timestamp_ms)

    # -- consumer groups ---------------------------------------------------------------------------

    def create_group(self, group: str, *, retry_max_times: int = 16, cluster: str | None = None) -> None:
        """Makes or changes the consumer group at every master."""
        body = SubscriptionGroupConfig(group, retry_max_times=retry_max_times)
        for broker in self.masters(cluster):
            self.tell(broker.addr, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    def delete_group(self, group: str, *, cluster: str | None = None) -> None:
        """Deletes the group and its offsets at every master.

        Raises GroupUnknown if no master has the group; brokers would answer success.
        """
        addrs = [broker.addr for broker in self.masters(cluster)]
        self._check_group(group, addrs)
        for addr in addrs:
            self.tell(addr, RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupHeader(group, True))

    def progress(self, group: str, topic: str) -> dict[MessageQueue, QueueProgress]:
        """How far the group has come in each queue of the topic, and where the queue ends."""
        found: dict[MessageQueue, QueueProgress] = {}
        for data in self.route(topic).broker_datas:
            header = ConsumeStatsHeader(group, topic)
            stats = self.ask(
                readable_addr(data),
                RequestCode.GET_CONSUME_STATS,
                header,
                into=ConsumeStats,
                timeout_s=STATS_TIMEOUT_S,
            )
            found.update(stats.offset_table)
        return found

    def lag(self, group: str, topic: str) -> int:
        """How many messages of the topic the group has not consumed yet."""
        known = self.progress(group, topic)
        return sum(max(0, one.broker_offset - max(0, one.consumer_offset)) for one in known.values())

    def reset_offsets(self, group: str, topic: str, timestamp_ms: int = END) -> None:
        """Sends the group to the messages that were stored at this time or later; END skips all there are.

        Brokers tell members that are online; for a group that is offline this changes the stored offsets.
        Raises RouteUnknown, or GroupUnknown if none of the topic's brokers has the group.
        """
        datas = self.route(topic).broker_datas
        for data in datas:
            header = ResetOffsetHeader(topic, group, timestamp_ms, True)
            addr = readable_addr(data)
            try:
                self.tell(addr, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            except AnswerError as error:
                # Brokers also answer this if the group has no offset yet in some queue, or does not exist.
                if error.code not in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR):
                    raise
                if error.code == ResponseCode.SYSTEM_ERROR:
                    self._check_group(group, [readable_addr(one) for one in datas])
                self._reset_offline(data, group, topic, timestamp_ms)
                if error.code == ResponseCode.SYSTEM_ERROR:
                    self._tell_members(addr, header)

    def _has_topic(self, addr: str, topic: str) -> bool:
        try:
            self.topic_stats(addr, topic)
        except AnswerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return False
        return True

    def _kept_without_master(self, topic: str, cluster: str | None) -> list[str]:
        """Broker names without a master whose slaves have the topic, or do not say."""
        brokers = self.brokers(cluster)
        led = {one.name for one in brokers if one.is_master}
        kept = set()
        for one in brokers:
            if one.name not in led:
                with suppress(RemotingUnreachable, RemotingTimeout):
                    if not self._has_topic(one.addr, topic):
                        continue
                kept.add(one.name)
        return sorted(kept)

    def _check_group(self, group: str, addrs: Sequence[str]) -> None:
        """Raises GroupUnknown unless one of these brokers has the group."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        for addr in addrs:
            if group in self.ask(addr, code, into=SubscriptionGroupWrapper).subscription_group_table:
                return
        raise GroupUnknown(group, addrs)

    def _tell_members(self, addr: str, header: ResetOffsetHeader) -> None:
        try:
            self.tell(addr, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        except AnswerError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise

    def _reset_offline(self, data: BrokerData, group: str, topic: str, timestamp_ms: int) -> None:
        for queue in self.queues(topic):
            if queue.broker_name == data.broker_name:
                at_end = timestamp_ms == END
                offset = self.max_offset(queue) if at_end else self.search_offset(queue, timestamp_ms)
                header = UpdateConsumerOffsetHeader(group, topic, queue.queue_id, offset)
                self.tell(readable_addr(data), RequestCode.UPDATE_CONSUMER_OFFSET, header)

    # -- the nameserver ----------------------------------------------------------------------------

    @property
    def nameservers(self) -> tuple[str, ...]:
        """All nameservers, for what each must be told; raises NameserverUnknown if none is known."""
        return self._options.nameservers

    def brokers(self, cluster: str | None = None) -> list[Broker]:
        """Every broker, or those of one cluster: by name, the master first."""
        info = self._decode(
            ClusterInfo, *self._ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO, knows=names_brokers)
        )
        found = [
            Broker(data.cluster, data.broker_name, broker_id, addr)
            for data in info.broker_addr_table.values()
            for broker_id, addr in data.broker_addrs.items()
            if cluster is None or data.cluster == cluster
        ]
        if not found and cluster is not None:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none: no broker has registered yet"
            raise ClientError(f"no cluster {cluster!r} at {';'.join(self.nameservers)}; it knows {known}")
        return sorted(found)

    def masters(self, cluster: str | None = None) -> list[Broker]:
        """The masters.  Raises ClientError if there is none."""
        masters = [broker for broker in self.brokers(cluster) if broker.is_master]
        if not masters:
            where = (
                "no broker is a master now" if cluster is None else f"cluster {cluster!r} has no master now"
            )
            raise ClientError(f"{where}; mqadmin clusterList shows it")
        return masters

    def route(self, topic: str) -> TopicRouteData:
        """Where the topic's queues are.  RouteUnknown, which is an AnswerError 17, if the topic is unknown."""
        ext = RouteHeader(topic, accept_standard_json_only=True).encode()
        try:
            return self._decode(TopicRouteData, *self._ask_namesrv(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext))
        except AnswerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            raise TopicUnknown(topic, error) from None

    def topics(self, cluster: str | None = None) -> list[str]:
        if cluster is None:
            answer = self._ask_namesrv(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        else:
            answer = self._ask_namesrv(RequestCode.GET_TOPICS_BY_CLUSTER, ClusterHeader(cluster).encode())
        return sorted(self._decode(TopicList, *answer).topic_list)

    # -- a broker ----------------------------------------------------------------------------------

    def runtime_info(self, addr: str) -> dict[str, str]:
        """Request 28: names and values, all text."""
        answer = self.call(addr, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(self._decode(KVTable, addr, answer).table)

    def broker_config(self, addr: str, timeout_s: float = TIMEOUT_S) -> dict[str, str]:
        """Request 26: every key that the broker runs with."""
        answer = self.call(addr, RequestCode.GET_BROKER_CONFIG, timeout_s=timeout_s)
        lines = bytes(answer.body).decode(errors="replace").splitlines()
        return {key: value for key, _, value in (line.partition("=") for line in lines)}

    def ha_status(self, addr: str, timeout_s: float = TIMEOUT_S) -> HARuntimeInfo | None:
        """Request 907; None from a broker that does not know the request, as no 4.9 broker does."""
        try:
            answer = self.call(addr, RequestCode.GET_BROKER_HA_STATUS, timeout_s=timeout_s)
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
        """Request 30, 31 or 29: a queue offset."""
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
    ) -> PulledRecords:
        """Request 11, without waiting for messages that are not there yet."""
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
        return PulledRecords(answer.code, answer.body, found.next_begin_offset, found.max_offset)

    def view(self, addr: str, physical_offset: int) -> bytes:
        """Request 33: the record at a physical offset."""
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
        """A request of which only success matters.  Raises AnswerError and the other RemotingErrors."""
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
        """The answer if its code is in `expected`.  Raises AnswerError, other RemotingErrors, ClientClosed."""
        if self._closed:
            raise ClientClosed("this Admin")
        command = RemotingCommand.request(code, ext, body)
        if language is not None:
            command.language = language
        return expect(addr, self._invoke(addr, command, timeout_s), *expected, request=code)

    def _invoke(self, addr: str, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        try:
            return self._client.call(addr, command, timeout_s)
        except LoopForked:
            raise ClientForked("Admin") from None

    def call_namesrv(self, code: RequestCode, header: ExtHeader | None = None) -> RemotingCommand:
        """As `call`, to the first nameserver that answers."""
        return self._ask_namesrv(code, None if header is None else header.encode())[1]

    def _ask_namesrv(
        self, code: RequestCode, ext: dict[str, str] | None = None, knows: Knows = lambda answer: True
    ) -> tuple[str, RemotingCommand]:
        return first_that_knows(self.nameservers, lambda addr: self.call(addr, code, ext), knows)

    @staticmethod
    def _decode(body: type[Body], addr: str, answer: RemotingCommand) -> Body:
        return body.decode(answer.body)

    def _addr_of(self, queue: MessageQueue) -> str:
        """The address that has the queue: its master, or the first slave while there is no master."""
        addr = TopicRoute.of(queue.topic, self.route(queue.topic)).readable_addr(queue.broker_name)
        if addr is None:
            raise ClientError(f"topic {queue.topic} has no broker {queue.broker_name} that is up")
        return addr

    def _broker_name(self, topic: str, addr: str) -> str:
        datas = self.route(topic).broker_datas
        return next((data.broker_name for data in datas if addr in data.broker_addrs.values()), "")
