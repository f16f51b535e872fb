"""Brokers and nameservers made of answers, for commands that look at several and tell them things."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from commitlog.log.log import CommitLog
from haservice.devtools.pair import free_port_block
from haservice.remoting.bodies.clients import BrokerData, ClusterInfo
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.lineage import (
    EpochBody,
    FollowHeader,
    ForgetHeader,
    LineageBody,
    MembersBody,
    NewestEpochBody,
    PromoteHeader,
    ReadLogHeader,
    ReadLogResponseHeader,
    SwitchoverBody,
)
from tests.admin.asking import Serve, body
from tests.admin.conftest import Answers
from tests.support.messages import SEGMENT_BYTES

A, B, C = "a" * 32, "b" * 32, "c" * 32
NAME = "broker-a"


class Fake:
    """A broker that does what it is told at once; `told` keeps the requests."""

    def __init__(
        self,
        serve: Serve,
        replica_id: str,
        role: str,
        end: int,
        *epochs: tuple[int, int, str],
        more: Answers | None = None,
        **said: Any,
    ) -> None:
        self.told: list[tuple[int, dict[str, str]]] = []
        self.log: CommitLog | None = None
        self.takes_epochs = True
        self.refuses: dict[int, str] = {}
        self.on_asked: Callable[[Fake], object] = lambda fake: None
        self.on_told: Callable[[Fake, RemotingCommand], None] = lambda fake, request: None
        handlers = {
            RequestCode.GET_LINEAGE: self.say_who,
            RequestCode.READ_LOG: self.read,
            RequestCode.PROMOTE: self.promote,
            RequestCode.FOLLOW: self.tell,
            RequestCode.SWITCHOVER: self.tell,
            RequestCode.REINIT: self.tell,
            RequestCode.FORGET: self.tell,
            **(more or {}),
        }
        self.addr = serve(handlers)
        # As A gives it to its one slave.
        self.own_list = MembersBody(1, 0, A, 1, 0, {A: "", replica_id: self.addr})
        self.said = LineageBody(
            cluster_name="C",
            broker_name=NAME,
            broker_addr=self.addr,
            ha_addr=f"{self.addr}0",
            broker_id=0 if role.endswith("MASTER") else 1,
            file_broker_id=0,
            role=role,
            replica_id=replica_id,
            segment_bytes=SEGMENT_BYTES,
            log_start=0,
            log_end=end,
            flushed=end,
            epochs=tuple(EpochBody(*one) for one in epochs),
            members=self.own_list,
        )
        self.say(**said)

    def say_who(self, request: RemotingCommand) -> RemotingCommand:
        self.on_asked(self)
        return request.answer(body=self.said.encode())

    def say(self, **said: Any) -> None:
        self.said = replace(self.said, **said)

    @property
    def codes(self) -> list[int]:
        return [code for code, _ in self.told]

    def ext(self, code: RequestCode) -> dict[str, str]:
        return next(ext for told, ext in self.told if told == code)

    def tell(self, request: RemotingCommand) -> RemotingCommand:
        self.told.append((request.code, dict(request.ext or {})))
        if request.code in self.refuses:
            return request.answer(ResponseCode.SYSTEM_ERROR, self.refuses[request.code])
        if request.code == RequestCode.FOLLOW:
            header = FollowHeader.decode(request.ext)
            self.say(master_addr=header.master_addr)
            if self.takes_epochs:
                kept = tuple(one for one in self.said.epochs if one.epoch < header.epoch)
                self.say(epochs=(*kept, EpochBody(header.epoch, self.said.log_end, "")))
        if request.code == RequestCode.FORGET and self.said.members is not None:
            gone = ForgetHeader.decode(request.ext).replica_id
            left = {one: addr for one, addr in self.said.members.replicas.items() if one != gone}
            number = self.said.members.number + 1
            self.say(members=replace(self.said.members, number=number, replicas=left))
        self.on_told(self, request)
        if request.code == RequestCode.SWITCHOVER:
            return request.answer(body=self.switched.encode())
        return request.answer(body=self.said.encode())

    def promote(self, request: RemotingCommand) -> RemotingCommand:
        header = PromoteHeader.decode(request.ext or {})
        if request.code not in self.refuses:
            epoch = EpochBody(header.min_epoch, self.said.log_end, self.said.replica_id, 1_700_000_000_000)
            kept = tuple(one for one in self.said.epochs if one.start < epoch.start)
            self.say(role=header.role or "SYNC_MASTER", role_from="command", epochs=(*kept, epoch), held="")
        return self.tell(request)

    def read(self, request: RemotingCommand) -> RemotingCommand:
        header = ReadLogHeader.decode(request.ext or {})
        assert self.log is not None
        data = self.log.read(header.offset, header.size)
        return request.answer(body=data, ext=ReadLogResponseHeader(self.log.end).encode())

    switched = SwitchoverBody("", 0, 0)


class Names:
    """A nameserver that lists as masters who says so, and besides whom it is told."""

    def __init__(
        self,
        serve: Serve,
        *fakes: Fake,
        listed: dict[int, str] | None = None,
        epoch: tuple[int, str] | None = None,
    ) -> None:
        self.fakes = fakes
        self.on_asked: Callable[[], object] = lambda: None
        self.listed = listed or {}
        # A's list, unless the test says what each knows.
        replicas = {A: self.listed.get(0, ""), **{one.said.replica_id: one.addr for one in fakes}}
        for fake in fakes:
            if fake.said.members == fake.own_list:
                fake.say(members=MembersBody(1, 1, A, 1, 0, replicas))
        handlers = {RequestCode.GET_BROKER_CLUSTER_INFO: self.table}
        if epoch is not None:  # a stock one knows no such request
            handlers[RequestCode.GET_LINEAGE] = body(NewestEpochBody(NAME, *epoch).encode())
        self.addr = serve(handlers)

    def table(self, request: RemotingCommand) -> RemotingCommand:
        self.on_asked()
        addrs = dict(self.listed)
        for number, fake in enumerate(self.fakes, 1):
            addrs[0 if fake.said.role.endswith("MASTER") else number] = fake.addr
        info = ClusterInfo({NAME: BrokerData(NAME, "C", addrs)}, {"C": [NAME]})
        return request.answer(body=info.encode())


def dead() -> str:
    return f"127.0.0.1:{free_port_block(1)}"
