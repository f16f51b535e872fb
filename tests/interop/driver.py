"""Stock Java clients from Python: one JVM (java/Driver.java), as many clients in it as a test likes.

    producer = java.producer(namesrv, "my-producers")
    consumer = java.push(namesrv, "my-group", "Orders", "TagA || TagB")
    producer.send("Orders", b"hello", tag="TagA", queue_id=0)["status"]      "SEND_OK"
    wait_until(lambda: [one.body for one in consumer.received()] == [b"hello"], "it is consumed")

`options` of every client are its Java properties by their own names (sendMsgTimeout=1000, useTLS=True,
vipChannelEnabled=True, consumeThreadMax=1, …), and accessKey and secretKey for a broker with ACL.  Clients
here ask the nameserver every second, send heartbeats and rebalance every 2 s, unless told otherwise.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.interop.jars import java_command
from tests.interop.stock import Nameserver, write_home

CALL_SECONDS = 120.0
END_SECONDS = 10.0

# Java reads these once, for all clients of the process.
PROPERTIES = ("-Drocketmq.client.rebalance.waitInterval=2000", "-XX:+ExitOnOutOfMemoryError")


class JavaError(Exception):
    """What a client threw: `type` is the exception's class, `code` the broker's answer, 0 without one."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['type']}: {error['text']}")
        self.type: str = error["type"]
        self.text: str = error["text"]
        self.code: int = error["code"]


class Received(NamedTuple):
    """One delivery of one message, by a consumer or an answer to a question."""

    body: bytes
    topic: str
    tags: str | None
    keys: str | None
    msg_id: str
    broker_name: str | None
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    reconsume_times: int
    born_timestamp: int
    store_timestamp: int
    received_timestamp: int
    born_host: str
    store_host: str
    sys_flag: int
    flag: int
    properties: dict[str, str]
    # Of checks of a transaction only.
    transaction_id: str | None = None
    answer: str | None = None

    @classmethod
    def of(cls, seen: Mapping[str, Any]) -> Received:
        return cls(
            body=base64.b64decode(seen["body"] or ""),
            topic=seen["topic"],
            tags=seen.get("tags"),
            keys=seen.get("keys"),
            msg_id=seen["msgId"],
            broker_name=seen.get("brokerName"),
            queue_id=seen["queueId"],
            queue_offset=seen["queueOffset"],
            commit_log_offset=seen["commitLogOffset"],
            reconsume_times=seen["reconsumeTimes"],
            born_timestamp=seen["bornTimestamp"],
            store_timestamp=seen["storeTimestamp"],
            received_timestamp=seen["receivedTimestamp"],
            born_host=seen["bornHost"],
            store_host=seen["storeHost"],
            sys_flag=seen["sysFlag"],
            flag=seen["flag"],
            properties=dict(seen["properties"]),
            transaction_id=seen.get("transactionId"),
            answer=seen.get("answer"),
        )


class Brief(NamedTuple):
    """What is kept of a delivery when there are very many.

    `sequence` grows with each delivery to any consumer of the JVM; `head` is the body up to its first space.
    """

    queue_id: int
    queue_offset: int
    sequence: int
    head: str


class Queue(NamedTuple):
    """A message queue as clients name it."""

    topic: str
    broker_name: str
    queue_id: int

    def fields(self) -> dict[str, Any]:
        return {"topic": self.topic, "brokerName": self.broker_name, "queueId": self.queue_id}


def message(
    topic: str,
    body: bytes | str,
    *,
    tag: str | None = None,
    keys: str | None = None,
    properties: Mapping[str, str] | None = None,
    delay_level: int = 0,
    queue_id: int | None = None,
    flag: int = 0,
    wait: bool = True,
) -> dict[str, Any]:
    """For `burst` and `send_batch`; `wait` is waitStoreMsgOK, without queue_id the client chooses a queue."""
    raw = body.encode() if isinstance(body, str) else body
    return {
        "topic": topic,
        "body": base64.b64encode(raw).decode(),
        "tag": tag,
        "keys": keys,
        "properties": dict(properties or {}),
        "delay_level": delay_level,
        "queue_id": queue_id,
        "flag": flag,
        "wait": wait,
    }


class Client:
    """A started client; `close` shuts it down as its user would."""

    def __init__(self, driver: JavaDriver, name: str) -> None:
        self._driver = driver
        self.name = name

    def call(self, op: str, *, seconds: float = CALL_SECONDS, **request: Any) -> Any:
        """Any operation of the Java side; raises JavaError for what the client threw."""
        return self._driver.call(op, client=self.name, seconds=seconds, **request)

    def close(self) -> None:
        self._driver.close_client(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def queues(self, topic: str = "") -> list[Queue]:
        """Of a producer, lite pull or pull consumer: those of the topic."""
        return [
            Queue(one["topic"], one["brokerName"], one["queueId"]) for one in self.call("queues", topic=topic)
        ]

    def max_offset(self, queue: Queue) -> int:
        return int(self.call("max_offset", queue=queue.fields()))

    def min_offset(self, queue: Queue) -> int:
        return int(self.call("min_offset", queue=queue.fields()))

    def search_offset(self, queue: Queue, timestamp_ms: int) -> int:
        return int(self.call("search_offset", queue=queue.fields(), timestamp=timestamp_ms))

    def view(self, topic: str, message_id: str) -> Received:
        """viewMessage: by offset id or by unique id, as the client sees fit."""
        return Received.of(self.call("view", topic=topic, msg_id=message_id))


class Producer(Client):
    """Answers are dicts: status, msgId, offsetMsgId, transactionId, queueOffset, brokerName, queueId."""

    def send(self, topic: str, body: bytes | str, **fields: Any) -> dict[str, Any]:
        """One message, synchronously; `fields` are those of `message`, and oneway=True."""
        oneway = fields.pop("oneway", False)
        answer: dict[str, Any] = self.call("send", **message(topic, body, **fields), oneway=oneway)
        return answer

    def send_batch(self, messages: Iterable[Mapping[str, Any]], queue: Queue | None = None) -> dict[str, Any]:
        """One frame; msgId and offsetMsgId of the answer are comma lists."""
        fields = None if queue is None else queue.fields()
        answer: dict[str, Any] = self.call("send_batch", messages=list(messages), queue=fields)
        return answer

    def burst(self, messages: Iterable[Mapping[str, Any]], in_flight: int = 64) -> list[dict[str, Any]]:
        """Asynchronous sends; an answer per message, in order, {"error": …} for one that failed."""
        answers: list[dict[str, Any]] = self.call("burst", messages=list(messages), in_flight=in_flight)
        return answers

    def request(self, topic: str, body: bytes | str, timeout_ms: int = 5000, **fields: Any) -> bytes:
        """Request and reply: the body that a consumer with `reply` answered."""
        answer = self.call("request", **message(topic, body, **fields), timeout_ms=timeout_ms)
        return base64.b64decode(answer)

    def query(
        self, topic: str, key: str, maximum: int = 64, begin_ms: int = 0, end_ms: int = 2**62
    ) -> list[Received]:
        """queryMessage: by key, at every broker of the topic."""
        found = self.call("query", topic=topic, key=key, max=maximum, begin=begin_ms, end=end_ms)
        return [Received.of(one) for one in found]

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """As a client's createTopic does: from the route of TBW102, at every master."""
        self.call("create_topic", key="TBW102", topic=topic, queues=queues)

    def start_load(
        self,
        topic: str,
        *,
        count: int,
        queues: int,
        size: int = 128,
        first_queue: int = 0,
        prefix: str = "",
        pace_ms: int = 0,
    ) -> None:
        """A thread per queue sends "PREFIXQUEUE-NUMBER xxx" until `count` in all are acknowledged,
        with `pace_ms` between two.

        A send that is not answered SEND_OK is not repeated: its number is given up, and the next one follows.
        """
        self.call(
            "load",
            topic=topic,
            count=count,
            queues=queues,
            bytes=size,
            first_queue=first_queue,
            prefix=prefix,
            pace_ms=pace_ms,
        )

    def load_state(self) -> dict[str, Any]:
        """{"ok": acknowledged, "running": threads, "outcomes": {"SEND_OK": …, "MQBrokerException": …}}"""
        state: dict[str, Any] = self.call("load_state")
        return state

    def stop_load(self) -> dict[str, Any]:
        state: dict[str, Any] = self.call("load_stop")
        return state

    def load_acknowledged(self, queue_id: int) -> list[int]:
        """The numbers that were answered SEND_OK."""
        numbers: list[int] = self.call("load_acked", queue_id=queue_id)
        return numbers


class TransactionProducer(Producer):
    def send_transaction(self, topic: str, body: bytes | str, **fields: Any) -> dict[str, Any]:
        """As `send`, with "state": what the local transaction said."""
        answer: dict[str, Any] = self.call("send_transaction", **message(topic, body, **fields))
        return answer

    def checks(self) -> list[Received]:
        """Every question of a broker so far, with the `answer` that it was given."""
        return [Received.of(one) for one in self.call("checks")]


class PushConsumer(Client):
    def queues(self, topic: str = "") -> list[Queue]:
        """Those that are this member's now, of one topic or all but that of its group's retries."""
        return [
            queue
            for queue in super().queues()
            if topic == queue.topic or not (topic or queue.topic.startswith("%RETRY%"))
        ]

    def received(self, since: int = 0) -> list[Received]:
        """Every delivery so far from the `since`th on, failed ones included."""
        return [Received.of(one) for one in self.call("received", since=since)]

    def take_briefs(self) -> list[Brief]:
        """Of a consumer with brief=True: the deliveries since the last call, which are then forgotten."""
        return [Brief(*one) for one in self.call("take_briefs")]

    def bodies(self) -> list[bytes]:
        return [one.body for one in self.received()]

    def count(self) -> int:
        return int(self.call("count"))

    def subscribe(self, topic: str, expression: str = "*", *, sql: bool = False) -> None:
        self.call("subscribe", topic=topic, expression=expression, sql=sql)

    def unsubscribe(self, topic: str) -> None:
        self.call("unsubscribe", topic=topic)

    def suspend(self) -> None:
        self.call("suspend")

    def resume(self) -> None:
        self.call("resume")


class LiteConsumer(Client):
    def poll(self, timeout_ms: int = 1000) -> list[Received]:
        return [Received.of(one) for one in self.call("poll", timeout_ms=timeout_ms)]

    def commit(self) -> None:
        self.call("commit")

    def committed(self, queue: Queue) -> int:
        return int(self.call("committed", queue=queue.fields()))

    def assign(self, queues: Iterable[Queue]) -> None:
        self.call("assign", queues=[queue.fields() for queue in queues])

    def seek(self, queue: Queue, offset: int) -> None:
        self.call("seek", queue=queue.fields(), offset=offset)

    def seek_to_begin(self, queue: Queue) -> None:
        self.call("seek_to_begin", queue=queue.fields())

    def seek_to_end(self, queue: Queue) -> None:
        self.call("seek_to_end", queue=queue.fields())

    def offset_for_timestamp(self, queue: Queue, timestamp_ms: int) -> int:
        return int(self.call("offset_for_timestamp", queue=queue.fields(), timestamp=timestamp_ms))


class Pulled(NamedTuple):
    """`status` is FOUND, NO_NEW_MSG, NO_MATCHED_MSG or OFFSET_ILLEGAL."""

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[Received]


class PullConsumer(Client):
    def pull(
        self,
        queue: Queue,
        offset: int,
        *,
        expression: str = "*",
        maximum: int = 32,
        sql: bool = False,
        block: bool = False,
    ) -> Pulled:
        """`block` waits at the broker for a message (long polling)."""
        found = self.call(
            "pull_messages", queue=queue.fields(), offset=offset, expression=expression, max=maximum,
            sql=sql, block=block,
        )  # fmt: skip
        return Pulled(
            found["status"],
            found["nextBeginOffset"],
            found["minOffset"],
            found["maxOffset"],
            [Received.of(one) for one in found["messages"]],
        )

    def balanced(self, topic: str) -> list[Queue]:
        """The queues that are this member's, by rebalance."""
        return [
            Queue(one["topic"], one["brokerName"], one["queueId"])
            for one in self.call("balanced", topic=topic)
        ]

    def offset(self, queue: Queue, *, from_store: bool = True) -> int:
        return int(self.call("offset", queue=queue.fields(), from_store=from_store))

    def update_offset(self, queue: Queue, offset: int) -> None:
        """And persists it at the broker."""
        self.call("update_offset", queue=queue.fields(), offset=offset)

    def send_back(self, topic: str, message_id: str, delay_level: int, broker_name: str) -> None:
        self.call(
            "send_back", topic=topic, msg_id=message_id, delay_level=delay_level, broker_name=broker_name
        )


class JavaDriver:
    """The JVM.  One thread reads its answers; calls may come from any thread."""

    def __init__(self, directory: Path, properties: Mapping[str, str] | None = None) -> None:
        """`properties` are further ones of the JVM."""
        self.directory = directory
        self._properties = [f"-D{key}={value}" for key, value in (properties or {}).items()]
        # What clients log themselves is in home/logs/rocketmqlogs/rocketmq_client.log.
        self.log = directory / "driver.log"
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._clients: set[str] = set()
        self._start()

    def _start(self) -> None:
        home = self.directory / "home"
        write_home(home)
        command = java_command("Driver", home=home, heap_mb=512)
        command[1:1] = [
            *PROPERTIES,
            *self._properties,
            f"-Dlogback.configurationFile={home}/conf/logback_tools.xml",
        ]
        with self.log.open("ab") as errors:
            self._popen = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=self.directory,
                env={**os.environ, "ROCKETMQ_HOME": str(home)},
            )  # fmt: skip
        self._clients.clear()
        threading.Thread(target=self._read, args=(self._popen,), daemon=True, name="java-answers").start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End of input ends the JVM, without farewells to brokers."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        try:
            self._popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait(END_SECONDS)

    def ensure(self) -> None:
        """Starts the JVM again, should it have died."""
        if self._popen.poll() is not None:
            self._start()

    def call(self, op: str, *, seconds: float = CALL_SECONDS, **request: Any) -> Any:
        """One request; raises JavaError for what it threw, TimeoutError when no answer came in time."""
        number = next(self._ids)
        answer: Future[Any] = Future()
        line = json.dumps({"id": number, "op": op, **request}).encode() + b"\n"
        with self._lock:
            self._waiting[number] = answer
            assert self._popen.stdin is not None
            self._popen.stdin.write(line)
            self._popen.stdin.flush()
        try:
            return answer.result(seconds)
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def _read(self, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdout is not None
        for line in popen.stdout:
            answer = json.loads(line)
            with self._lock:
                future = self._waiting.pop(answer["id"], None)
            if future is None:
                continue
            if "error" in answer:
                future.set_exception(JavaError(answer["error"]))
            else:
                future.set_result(answer.get("result"))
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        for future in waiting:
            future.set_exception(RuntimeError(f"the JVM is gone; see {self.log}"))

    @property
    def clients(self) -> set[str]:
        return set(self._clients)

    def close_client(self, name: str) -> None:
        """Quiet when it is closed already."""
        if name in self._clients:
            self._clients.discard(name)
            self.call("shutdown", client=name)

    def close_clients(self, *, but: Iterable[str] = ()) -> None:
        for name in self.clients - set(but):
            self.close_client(name)

    def mqadmin(
        self, namesrv: Nameserver | str | None, *arguments: str, seconds: float = CALL_SECONDS, **acl: str
    ) -> str:
        """What stock mqadmin prints, in this warm JVM; accessKey= and secretKey= sign its requests."""
        named = [] if namesrv is None else ["-n", _addr(namesrv)]
        printed: str = self.call("mqadmin", args=[*arguments, *named], options=acl, seconds=seconds)
        return printed

    def producer(
        self, namesrv: Nameserver | str, group: str = "producers", *, name: str | None = None, **options: Any
    ) -> Producer:
        name = self._named(name, "producer")
        self._begin("producer", name, namesrv, group, options)
        return Producer(self, name)

    def transaction_producer(
        self,
        namesrv: Nameserver | str,
        group: str,
        script: Mapping[str, Sequence[str]],
        *,
        name: str | None = None,
        **options: Any,
    ) -> TransactionProducer:
        """`script`: a message's keys (or "*") → states, COMMIT, ROLLBACK, UNKNOW or THROW, given in turn.

        The first is the local transaction's, the others are those of the checks, the last one for ever.
        """
        name = self._named(name, "transactions")
        given = {key: list(states) for key, states in {"*": ["COMMIT"], **script}.items()}
        self._begin("transactions", name, namesrv, group, options, script=given)
        return TransactionProducer(self, name)

    def push(
        self,
        namesrv: Nameserver | str,
        group: str,
        topic: str | None = None,
        expression: str = "*",
        *,
        sql: bool = False,
        orderly: bool = False,
        broadcast: bool = False,
        from_where: str = "FIRST_OFFSET",
        timestamp: str | None = None,
        fail_times: int = 0,
        fail_prefix: str = "",
        fail_how: str = "LATER",
        delay_level: int = 0,
        reply: str | None = None,
        pause_ms: int = 0,
        brief: bool = False,
        name: str | None = None,
        **options: Any,
    ) -> PushConsumer:
        """A push consumer that is consuming.

        `from_where` is FIRST_OFFSET, LAST_OFFSET or TIMESTAMP with `timestamp` as "20261121120000" (local
        time).  Messages whose body begins with `fail_prefix` fail their first `fail_times` times, by asking
        for another time ("LATER"), by an exception ("THROW") or by returning nothing ("NULL"); `delay_level`
        goes with it.  `reply`: answers requests with this and their body.  `pause_ms` per call of the
        listener.  `brief`: see take_briefs; `received` is empty then.
        """
        name = self._named(name, "push")
        options = {"consumeFromWhere": f"CONSUME_FROM_{from_where}", **options}
        if broadcast:
            options["messageModel"] = "BROADCASTING"
        if timestamp is not None:
            options["consumeTimestamp"] = timestamp
        self._begin(
            "push", name, namesrv, group, options,
            subscriptions=_subscriptions(topic, expression, sql), orderly=orderly,
            fail_times=fail_times, fail_prefix=fail_prefix, fail_how=fail_how, delay_level=delay_level,
            reply=reply, pause_ms=pause_ms, brief=brief,
        )  # fmt: skip
        return PushConsumer(self, name)

    def lite_pull(
        self,
        namesrv: Nameserver | str,
        group: str,
        topic: str | None = None,
        expression: str = "*",
        *,
        sql: bool = False,
        from_where: str = "FIRST_OFFSET",
        name: str | None = None,
        **options: Any,
    ) -> LiteConsumer:
        """Subscribed to the topic; without one, ready for `assign`."""
        name = self._named(name, "lite")
        options = {"consumeFromWhere": f"CONSUME_FROM_{from_where}", **options}
        subscriptions = _subscriptions(topic, expression, sql)
        self._begin("lite", name, namesrv, group, options, subscriptions=subscriptions)
        return LiteConsumer(self, name)

    def pull(
        self,
        namesrv: Nameserver | str,
        group: str,
        topic: str | None = None,
        *,
        name: str | None = None,
        **options: Any,
    ) -> PullConsumer:
        """Registered for the topic, when there is one, so that it takes part in rebalances."""
        name = self._named(name, "pull")
        subscriptions = _subscriptions(topic, "*", False)
        self._begin("pull", name, namesrv, group, options, subscriptions=subscriptions)
        return PullConsumer(self, name)

    def _named(self, name: str | None, kind: str) -> str:
        return name or f"{kind}-{next(self._ids)}"

    def _begin(
        self,
        op: str,
        name: str,
        namesrv: Nameserver | str,
        group: str,
        options: Mapping[str, Any],
        **request: Any,
    ) -> None:
        self.call(op, client=name, namesrv=_addr(namesrv), group=group, options=dict(options), **request)
        self._clients.add(name)


def _addr(namesrv: Nameserver | str) -> str:
    return namesrv if isinstance(namesrv, str) else namesrv.addr


def _subscriptions(topic: str | None, expression: str, sql: bool) -> list[dict[str, Any]]:
    return [] if topic is None else [{"topic": topic, "expression": expression, "sql": sql}]
