"""What `mqadmin check` makes of what brokers and nameservers answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from haservice.admin.calls import Broker
from haservice.admin.commands.ha.findings import (
    CheckLimits,
    NameVerdict,
    Severity,
    nagios_lines,
    result_object,
    worst,
)
from haservice.admin.commands.ha.ha_questions import Failure, Seen
from haservice.admin.commands.ha.verdict import verdicts_of
from haservice.errors import AnswerError, RemotingTimeout, RemotingUnreachable
from haservice.remoting.bodies.clients import (
    HAAbsentInfo,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)
from haservice.remoting.headers.lineage import EpochBody, LineageBody, MembersBody, ReplicaBody

NOW_MS = 1_700_000_000_000
GONE_MS = NOW_MS - 75_000
MASTER, SLAVE, OTHER = (f"10.0.0.{number}:10911" for number in (1, 2, 3))
A, B, C = "a" * 32, "b" * 32, "c" * 32
PAIR = MembersBody(3, 2, A, 1, 0, {A: MASTER, B: SLAVE})
THREE = replace(PAIR, replicas={A: MASTER, B: SLAVE, C: OTHER})
MIB = 1024 * 1024


def link(**said: Any) -> HAConnectionRuntimeInfo:
    whole = {
        "slave_ack_offset": 5000,
        "in_sync": True,
        "lag_seconds": 0.0,
        "replica_id": B,
        "broker_addr": SLAVE,
    }
    return HAConnectionRuntimeInfo("10.0.0.2:51000", **(whole | said))


def lineage(addr: str, replica_id: str, role: str, epoch: int = 3, **said: Any) -> LineageBody:
    whole = {
        "cluster_name": "C",
        "broker_name": "broker-a",
        "broker_addr": addr,
        "ha_addr": f"{addr}0",
        "broker_id": 0,
        "file_broker_id": 0,
        "role": role,
        "replica_id": replica_id,
        "segment_bytes": 1 << 30,
        "log_start": 0,
        "log_end": 5000,
        "flushed": 5000,
        "epochs": (EpochBody(epoch, 0, A),),
        "members": PAIR,
        "replicas": (ReplicaBody(B, SLAVE, 400, GONE_MS), ReplicaBody(C, OTHER, 400, GONE_MS)),
    }
    return LineageBody(**(whole | said))


def broker(addr: str, broker_id: int) -> Broker:
    return Broker("C", "broker-a", broker_id, addr)


def master(
    *links: HAConnectionRuntimeInfo,
    role: str = "SYNC_MASTER",
    addr: str = MASTER,
    replica_id: str = A,
    said: Mapping[str, Any] | None = None,
    absent: Sequence[HAAbsentInfo] = (),
    **seen: Any,
) -> Seen:
    in_sync = sum(one.in_sync for one in links)
    status = HARuntimeInfo(True, 5000, in_sync, links, absent_slaves=absent)
    told = lineage(addr, replica_id, role, **(said or {}))
    return Seen(broker(addr, 0), role, 5000, status, lineage=told, **seen)


def slave(
    addr: str = SLAVE,
    replica_id: str = B,
    client: Mapping[str, Any] | None = None,
    said: Any = None,
    **seen: Any,
) -> Seen:
    whole = {"master_addr": "10.0.0.1:10912", "state": "TRANSFER", "last_read_timestamp": NOW_MS - 400}
    info = HAClientRuntimeInfo(**(whole | dict(client or {})))
    told = lineage(addr, replica_id, "SLAVE", **({"master_heard_ms": GONE_MS} | (said or {})))
    status = HARuntimeInfo(False, 0, 0, (), info)
    return Seen(broker(addr, 1), "SLAVE", 5000, status, lineage=told, **seen)


def dead(addr: str = MASTER, broker_id: int = 0, error: Failure | None = None) -> Seen:
    failure = error or RemotingUnreachable(addr, "Connection refused")
    return Seen(broker(addr, broker_id), "SLAVE" if broker_id else "MASTER", failure=failure)


def stock(addr: str, role: str, end: int = 5000, **seen: Any) -> Seen:
    return Seen(broker(addr, 1 if role == "SLAVE" else 0), role, end, None, **seen)


def by(coordinator: str = "etcd://10.0.0.9:2379", **said: str) -> dict[str, str]:
    """What a broker with a coordinator tells of the lease."""
    whole = {
        "leaseCoordinator": coordinator,
        "leaseKeys": "/haservice/C/broker-a",
        "leaseIsRead": "true",
        "leaseTrouble": "",
        "leaseMaster": "10.0.0.1:10911 epoch 1000",
        "leaseSecondsLeft": "4.2",
    }
    return whole | said


WAITING = slave(client={"state": "READY", "last_error": "Connection refused"})
DENIED = AnswerError(MASTER, 1, "AclException: no account")
FAR = link(in_sync=False, diff=300 * MIB, lag_seconds=40.0, reason="further behind than 256 MiB")
DIVERGED = slave(client={"state": "READY", "last_error": "cannot be reconciled: no epoch is in both logs"})

CASES: dict[str, tuple[list[Seen], Severity, str]] = {
    "a whole pair": (
        [master(link()), slave()],
        Severity.OK,
        "OK, 10.0.0.1:10911 accepts writes, 1 slave in sync, 0 B",
    ),
    "a master that never had a slave": (
        [master(role="ASYNC_MASTER", said={"members": None})],
        Severity.OK,
        "accepts writes, it has no slave",
    ),
    "another number of replicas after a failover": (
        [
            master(link(), said={"promise": "inSyncReplicas=3, haReadMark=STRICT"}),
            slave(said={"promise": "inSyncReplicas=2, haReadMark=STRICT"}),
        ],
        Severity.WARNING,
        "BROKERS DIFFER, inSyncReplicas is 2 at 10.0.0.2:10911, 3 at 10.0.0.1:10911: a failover changes",
    ),
    "reads of another kind after a failover": (
        [
            master(link(), said={"promise": "inSyncReplicas=2, haReadMark=STRICT"}),
            slave(said={"promise": "inSyncReplicas=2, haReadMark=IN_SYNC"}),
        ],
        Severity.WARNING,
        "BROKERS DIFFER, haReadMark is IN_SYNC at 10.0.0.2:10911, STRICT at 10.0.0.1:10911: a failover",
    ),
    "a slave that an older version runs says less": (
        [
            master(link(), said={"promise": "inSyncReplicas=2, haReadMark=STRICT"}),
            slave(said={"promise": "inSyncReplicas=2"}),
        ],
        Severity.OK,
        "OK, 10.0.0.1:10911 accepts writes, 1 slave in sync, 0 B",
    ),
    "an ASYNC_MASTER promises nothing of the kind": (
        [
            master(link(), role="ASYNC_MASTER", said={"promise": "inSyncReplicas=2, haReadMark=STRICT"}),
            slave(said={"promise": "inSyncReplicas=3, haReadMark=OFF"}),
        ],
        Severity.OK,
        "OK, 10.0.0.1:10911 accepts writes",
    ),
    "no master": ([dead(), WAITING], Severity.CRITICAL, "NO MASTER, sends fail since "),
    "how long there is no master": (
        [dead(), WAITING],
        Severity.CRITICAL,
        "(1 min 15 s); 10.0.0.2:10911 can be read",
    ),
    "why the master does not answer": (
        [dead(), WAITING],
        Severity.CRITICAL,
        "10.0.0.1:10911: Connection refused",
    ),
    "a master that no list knows": ([WAITING], Severity.CRITICAL, "no other broker of this name is known"),
    "a master that only the tool cannot reach": (
        [dead(error=RemotingTimeout(MASTER, 28, 2.0)), slave()],
        Severity.UNKNOWN,
        "MASTER DOES NOT ANSWER HERE, but 10.0.0.2",
    ),
    "a frozen master that its slave has not heard for long": (
        [
            dead(error=RemotingTimeout(MASTER, 28, 2.0)),
            slave(client={"last_read_timestamp": NOW_MS - 11_000}),
        ],
        Severity.CRITICAL,
        "NO MASTER, sends fail since",
    ),
    "a master that wants an account": (
        [dead(error=DENIED), slave()],
        Severity.UNKNOWN,
        "DOES NOT SAY ITS ROLE, and may be the master: 10.0.0.1:10911",
    ),
    "nobody": (
        [dead(), dead(SLAVE, 1)],
        Severity.CRITICAL,
        "NO BROKER ANSWERS, sends fail, nobody can read; 10.0.0.1",
    ),
    "roles that change": (
        [dead(), slave(said={"changing": True})],
        Severity.WARNING,
        "ROLES CHANGE, sends fail until",
    ),
    "two masters, one older": (
        [master(link()), master(addr=OTHER, replica_id=C, said={"epoch": 1000})],
        Severity.CRITICAL,
        "TWO MASTERS, 10.0.0.1:10911 (epoch 3) and 10.0.0.3:10911 (epoch 1000): the older one gives way",
    ),
    "two masters that have no log in common": (
        [master(link(), said={"unproven": "b claims 1000"}), master(addr=OTHER, said={"epoch": 1000})],
        Severity.CRITICAL,
        "(epoch 1000): stop the one whose log is not to stay, move its store aside, and start it again",
    ),
    "two masters of one epoch": (
        [master(said={"epoch": 1000}), master(addr=OTHER, replica_id=C, said={"epoch": 1001})],
        Severity.CRITICAL,
        f"choose one: mqadmin failover -b broker-a --to {OTHER} takes the one whose log goes further",
    ),
    "two masters, one of them stock": (
        [master(link()), stock(OTHER, "SYNC_MASTER")],
        Severity.CRITICAL,
        "choose one: mqadmin failover -b broker-a --to 10.0.0.1:10911",
    ),
    "a master that waits for another's answer": (
        [master(link(), said={"held": "no answer yet of 10.0.0.2"}), slave()],
        Severity.CRITICAL,
        "REFUSES WRITES, 10.0.0.1:10911: no answer yet of 10.0.0.2",
    ),
    "a lease that is over": (
        [
            master(link(), info={"leaseSecondsLeft": "0.0", "leaseState": "its lease ended 1.2 s ago"}),
            slave(),
        ],
        Severity.CRITICAL,
        "REFUSES WRITES, 10.0.0.1:10911: its lease ended 1.2 s ago",
    ),
    "a lease that nobody takes": (
        [slave(info={"leaseWhyNot": "failover is paused: mqadmin resume"})],
        Severity.CRITICAL,
        "10.0.0.2:10911 does not take the lease: failover is paused: mqadmin resume",
    ),
    "a pair whose slave would take over": (
        [master(link(), info=by()), slave(info=by())],
        Severity.OK,
        "OK, ",
    ),
    "one coordinator with two addresses": (
        [master(link(), info=by()), slave(info=by("etcd://10.0.0.8:2379"))],
        Severity.OK,
        "OK, ",
    ),
    "a slave that would not take over": (
        [master(link(), info=by()), slave(info=by(leaseTrouble="no answer", leaseCouldNot="no answer"))],
        Severity.WARNING,
        "NOBODY COULD TAKE OVER, 10.0.0.2:10911: no answer",
    ),
    "one of two slaves that would not take over": (
        [
            master(link(), link(broker_addr=OTHER, replica_id=C), info=by()),
            slave(info=by(leaseCouldNot="no answer")),
            slave(OTHER, C, info=by()),
        ],
        Severity.WARNING,
        "SLAVE COULD NOT TAKE OVER, 10.0.0.2:10911: no answer",
    ),
    "a master that serves by failsafe": (
        [master(link(), info=by(leaseTrouble="no answer", leaseServesBy="failsafe")), slave(info=by())],
        Severity.WARNING,
        "MASTER SERVES BY FAILSAFE, 10.0.0.1:10911: no answer",
    ),
    "a coordinator that is full": (
        [master(link(), info=by(leaseTrouble="it is full", leaseServesBy="lease")), slave(info=by())],
        Severity.WARNING,
        "COORDINATOR NOT USABLE, 10.0.0.1:10911: it is full",
    ),
    "a slave with another coordinator": (
        [master(link(), info=by()), slave(info=by("etcd://10.0.0.8:2379", leaseMaster=""))],
        Severity.WARNING,
        "its coordinator, etcd://10.0.0.8:2379, names nobody as the master",
    ),
    "a slave with another cluster name": (
        [master(link(), info=by()), slave(info=by(leaseKeys="/haservice/D/broker-a", leaseMaster=""))],
        Severity.WARNING,
        "below /haservice/D/broker-a, its master's below /haservice/C/broker-a: give both files the same",
    ),
    "a slave that has not heard of a change of roles yet": (
        [master(link(), info=by()), slave(info=by(leaseMaster="10.0.0.2:10911 epoch 1000"))],
        Severity.OK,
        "OK, ",
    ),
    "a slave without the master's coordinator": (
        [master(link(), info=by()), slave()],
        Severity.WARNING,
        "NOBODY COULD TAKE OVER, 10.0.0.2:10911: it runs without haCoordinator",
    ),
    "a master without the slave's coordinator": (
        [master(link()), slave(info=by())],
        Severity.WARNING,
        "its master has none: give both the same",
    ),
    "a full disk": (
        [master(link(), info={"refusesSends": "disk is 91 % used", "commitLogDiskRatio": "0.91"}), slave()],
        Severity.CRITICAL,
        "REFUSES WRITES, 10.0.0.1:10911: disk is 91 % used",
    ),
    "a disk that fills": (
        [master(link(), info={"commitLogDiskRatio": "0.86"}), slave()],
        Severity.WARNING,
        "DISK NEARLY FULL, 10.0.0.1:10911: 86%",
    ),
    "a slave's full disk": (
        [master(link()), slave(info={"commitLogDiskRatio": "0.95"})],
        Severity.WARNING,
        "DISK NEARLY FULL, 10.0.0.2:10911",
    ),
    "a stock master's full disk": (
        [stock(MASTER, "ASYNC_MASTER", info={"commitLogDiskRatio": "0.95"})],
        Severity.CRITICAL,
        "DISK NEARLY FULL",
    ),
    "a damaged master": (
        [master(link(), damaged="100 to 200"), slave()],
        Severity.CRITICAL,
        "LOG DAMAGED, 10.0.0.1:10911: from 100 to 200",
    ),
    "a damaged slave": (
        [master(link()), slave(damaged="100 to 200")],
        Severity.WARNING,
        "LOG DAMAGED, 10.0.0.2:10911: from 100 to 200",
    ),
    "acknowledged messages that an old master cut": (
        [master(link()), slave(info={"acknowledgedCut": "it cut from 100 to 200"})],
        Severity.CRITICAL,
        "ACKNOWLEDGED MESSAGES WERE CUT, 10.0.0.2:10911: it cut from 100 to 200",
    ),
    "a thread that failed": (
        [master(link(), failed_threads="flush: OSError"), slave()],
        Severity.CRITICAL,
        "THREAD FAILED, 10.0.0.1:10911 lacks flush: OSError",
    ),
    "a thread that was started again": (
        [master(link(), info={"restartedThreads": "flush: OSError: x (1 in 10 min)"}), slave()],
        Severity.WARNING,
        "THREAD RESTARTED, 10.0.0.1:10911: flush: OSError: x (1 in 10 min)",
    ),
    "a file that is not in force": (
        [master(link()), slave(info={"filesNotInForce": "tools.yml: there is no secretKey"})],
        Severity.WARNING,
        "FILE NOT IN FORCE, 10.0.0.2:10911 goes on with the one before: tools.yml: there is no secretKey",
    ),
    "a certificate that ends this month": (
        [
            master(
                link(),
                info={"certificateEnds": f"a=9999999999,tls.server.certPath={NOW_MS // 1000 + 20 * 86400}"},
            ),
            slave(),
        ],
        Severity.WARNING,
        "CERTIFICATE ENDS, 10.0.0.1:10911: tls.server.certPath, 20 days left",
    ),
    "a certificate that ends today": (
        [master(link()), slave(info={"certificateEnds": f"haSecureCertPath={NOW_MS // 1000 + 12 * 3600}"})],
        Severity.CRITICAL,
        "CERTIFICATE ENDS, 10.0.0.2:10911: haSecureCertPath, 12 hours left",
    ),
    "a short-lived certificate that was not renewed in time": (
        [
            master(
                link(),
                info={
                    "certificateBegins": f"tls.server.certPath={NOW_MS // 1000 - 19 * 3600}",
                    "certificateEnds": f"tls.server.certPath={NOW_MS // 1000 + 5 * 3600}",
                },
            ),
            slave(),
        ],
        Severity.WARNING,
        "CERTIFICATE ENDS, 10.0.0.1:10911: tls.server.certPath, 5 hours left",
    ),
    "a certificate that has expired": (
        [master(link(), info={"certificateEnds": "tls.client.trustCertPath=5"}), slave()],
        Severity.CRITICAL,
        f"CERTIFICATE HAS EXPIRED, 10.0.0.1:10911: tls.client.trustCertPath, {NOW_MS / 86_400_000:.0f} days ago",
    ),
    "a certificate that is not valid yet": (
        [
            master(
                link(),
                info={
                    "certificateBegins": f"tls.server.certPath={NOW_MS // 1000 + 3 * 3600}",
                    "certificateEnds": f"tls.server.certPath={NOW_MS // 1000 + 90 * 86400}",
                },
            ),
            slave(),
        ],
        Severity.CRITICAL,
        "CERTIFICATE IS NOT VALID YET, 10.0.0.1:10911: tls.server.certPath, valid in 3 hours",
    ),
    "accounts that differ": (
        [master(link(), info={"accountsDigest": "11"}), slave(info={"accountsDigest": "22"})],
        Severity.WARNING,
        "BROKERS DIFFER, accounts and rules of access control are not the same at 10.0.0.1:10911 and 10.0.0.2:10911",
    ),
    "roots that differ": (
        [master(link(), info={"rootDigests": "t=1,u=2"}), slave(info={"rootDigests": "t=1,u=3"})],
        Severity.WARNING,
        "BROKERS DIFFER, u are not the same at",
    ),
    "a slave's thread that failed": (
        [master(link()), slave(failed_threads="ha-client: ValueError")],
        Severity.WARNING,
        "THREAD FAILED, 10.0.0.2",
    ),
    "no next segment": (
        [master(link(), next_segment_not_made="No space left"), slave()],
        Severity.WARNING,
        "NO ROOM FOR THE NEXT LOG",
    ),
    "an epoch without proof": (
        [master(link(), said={"unproven": "x claims 5000"}), slave()],
        Severity.WARNING,
        "EPOCH WITHOUT PROOF, x claims",
    ),
    "a master that leads since all lost power": (
        [master(link(), info={"leaseAlarm": "this log is the longest"}), slave()],
        Severity.WARNING,
        "MASTER AFTER A POWER CUT, 10.0.0.1:10911: this log is the longest",
    ),
    "a slave that gets no topics": (
        [master(link()), slave(said={"not_copied": "code 16"})],
        Severity.WARNING,
        "TOPICS AND OFFSETS NOT COPIED, 10.0.0.2",
    ),
    "a SYNC_MASTER whose slave is away": (
        [master(), dead(SLAVE, 1)],
        Severity.CRITICAL,
        "NO SLAVE IN SYNC, sends get SLAVE_NOT_AVAILABLE: 10.0.0.2:10911 is away, last seen 2023-11-1",
    ),
    "an ASYNC_MASTER whose slave is away": (
        [master(role="ASYNC_MASTER"), dead(SLAVE, 1)],
        Severity.WARNING,
        "SLAVE NOT IN SYNC, 10.0.0.2:10911 is away, last seen 2023-11-1",
    ),
    "a SYNC_MASTER that never had a slave": (
        [master(said={"members": None})],
        Severity.CRITICAL,
        "NO SLAVE IN SYNC, sends get SLAVE_NOT_AVAILABLE: none is known",
    ),
    "one of two slaves is away": (
        [master(link(), said={"members": THREE}), slave(said={"members": THREE}), dead(OTHER, 1 << 31)],
        Severity.WARNING,
        "SLAVE NOT IN SYNC, 10.0.0.3:10911 is away",
    ),
    "one of two slaves that are needed": (
        [master(link(), said={"members": THREE}, in_sync_replicas=3), slave(), dead(OTHER, 1 << 31)],
        Severity.CRITICAL,
        "1 OF 2 SLAVES IN SYNC, sends get SLAVE_NOT_AVAILABLE: 10.0.0.3:10911 is away",
    ),
    "a slave that is too far behind to count": (
        [master(FAR), slave()],
        Severity.CRITICAL,
        "10.0.0.2:10911: further behind than 256 MiB; SLAVE LAGS, 10.0.0.2",
    ),
    "a slave that lags": (
        [master(link(diff=MIB, lag_seconds=31.0)), slave()],
        Severity.WARNING,
        "SLAVE LAGS, 10.0.0.2:10911 is 31.0 s and 1.0 MiB",
    ),
    "a slave that lags for long": (
        [master(link(diff=9, lag_seconds=300.0)), slave()],
        Severity.CRITICAL,
        "SLAVE LAGS",
    ),
    "a slave with another log": (
        [master(role="ASYNC_MASTER"), DIVERGED],
        Severity.WARNING,
        "10.0.0.2:10911 runs and does not follow: cannot be reconciled: no epoch is in both logs",
    ),
    "a slave of the other master of one epoch": (
        [
            master(role="ASYNC_MASTER", said={"epochs": (EpochBody(1, 0, A), EpochBody(5000, 9, A))}),
            slave(
                client={"state": "READY", "last_error": "two masters"},
                said={"epochs": (EpochBody(1, 0, A), EpochBody(5000, 9, B))},
            ),
        ],
        Severity.WARNING,
        "does not follow: two masters; mqadmin failover -b broker-a --to 10.0.0.1:10911 begins one that it follows",
    ),
    "a slave of another master of that number, and of another log": (
        [
            master(role="ASYNC_MASTER", said={"epochs": (EpochBody(1, 0, A),)}),
            slave(
                client={"state": "READY", "last_error": "no epoch is in both logs"},
                said={"epochs": (EpochBody(1, 0, B),)},
            ),
        ],
        Severity.WARNING,
        "does not follow: no epoch is in both logs",
    ),
    "a slave that follows and does not answer": (
        [master(link()), dead(SLAVE, 1)],
        Severity.WARNING,
        "SLAVE DOES NOT ANSWER, 10.0.0.2:10911 follows",
    ),
    "a stock slave that follows our master": (
        [master(link(replica_id=None, broker_addr=None), said={"members": None}), stock(SLAVE, "SLAVE")],
        Severity.OK,
        "accepts writes, 1 slave in sync",
    ),
    "a stock slave that our master has refused": (
        [
            master(
                said={"members": None}, absent=[HAAbsentInfo("10.0.0.2:5100", "reports 9, log ends at 5")]
            ),
            stock(SLAVE, "SLAVE"),
        ],
        Severity.CRITICAL,
        "10.0.0.2:10911 is registered and not connected: reports 9, log ends at 5",
    ),
    "a stock pair": (
        [stock(MASTER, "SYNC_MASTER", 6000), stock(SLAVE, "SLAVE", 4976)],
        Severity.OK,
        "1 slave in sync, 1.0 KiB behind",
    ),
    "a stock slave far behind": (
        [stock(MASTER, "SYNC_MASTER", 300 * MIB), stock(SLAVE, "SLAVE", 0)],
        Severity.CRITICAL,
        "NO SLAVE IN SYNC",
    ),
    "a stock slave behind": (
        [stock(MASTER, "SYNC_MASTER", 100 * MIB), stock(SLAVE, "SLAVE", 0)],
        Severity.WARNING,
        "SLAVE LAGS, 10.0.0.2:10911 is 100.0",
    ),
    "a master of another kind than its file asks for": (
        [master(link(), role="ASYNC_MASTER", info={"brokerRoleInFile": "SYNC_MASTER"}), slave()],
        Severity.WARNING,
        "ROLE UNLIKE FILE, 10.0.0.1:10911 is an ASYNC_MASTER, and the file of 10.0.0.1:10911 says"
        " brokerRole=SYNC_MASTER: mqadmin switchover -b broker-a --role SYNC_MASTER",
    ),
    "a slave by command whose file asks for another kind than the master's": (
        [
            master(link(), role="ASYNC_MASTER", info={"brokerRoleInFile": "SLAVE"}),
            slave(info={"brokerRoleInFile": "SYNC_MASTER"}),
        ],
        Severity.WARNING,
        "the file of 10.0.0.2:10911 says brokerRole=SYNC_MASTER: mqadmin switchover -b broker-a --role SYNC_MASTER",
    ),
    "a master of the kind that its own file asks for, whatever its slave's asks for": (
        [
            master(link(), role="ASYNC_MASTER", info={"brokerRoleInFile": "ASYNC_MASTER"}),
            slave(info={"brokerRoleInFile": "SYNC_MASTER"}),
        ],
        Severity.OK,
        "OK, ",
    ),
    "a stock SYNC_MASTER without a slave": (
        [stock(MASTER, "SYNC_MASTER")],
        Severity.CRITICAL,
        "NO SLAVE IN SYNC, sends get no SEND_OK: none is known",
    ),
    "a stock ASYNC_MASTER without a slave": ([stock(MASTER, "ASYNC_MASTER")], Severity.OK, "it has no slave"),
    "a stock slave that is dead": (
        [stock(MASTER, "ASYNC_MASTER"), dead(SLAVE, 1)],
        Severity.WARNING,
        "10.0.0.2:10911 is registered and does not answer",
    ),
    "a stock slave without its master": (
        [stock(SLAVE, "SLAVE")],
        Severity.CRITICAL,
        "NO MASTER, sends fail; 10.0.0.2:10911 can be read",
    ),
}


def the(seen: Sequence[Seen], **how: Any) -> NameVerdict:
    (verdict,) = verdicts_of(seen, NOW_MS, **how)
    return verdict


@pytest.mark.parametrize("case", CASES)
def test_what_is_the_matter_with_a_broker_name(case: str) -> None:
    seen, state, text = CASES[case]
    verdict = the(seen)
    assert (verdict.state.name, text in verdict.text) == (state.name, True), verdict.text
    assert verdict.text.startswith("broker-a: ")


ALONE: dict[str, tuple[Seen, Severity, str]] = {
    "a slave that follows": (slave(), Severity.OK, "OK, 10.0.0.2:10911 follows 10.0.0.1:10912"),
    "a slave that does not": (
        WAITING,
        Severity.WARNING,
        "FOLLOWS NOBODY, 10.0.0.2:10911: Connection refused",
    ),
    "a slave that is far behind": (
        slave(client={"master_end": 5000 + 300 * MIB}),
        Severity.CRITICAL,
        "SLAVE LAGS, 10.0.0.2:10911 is 300.0 MiB",
    ),
    "a stock slave": (stock(SLAVE, "SLAVE"), Severity.OK, "OK, 10.0.0.2:10911 answers"),
    "a stock master": (
        stock(MASTER, "SYNC_MASTER"),
        Severity.OK,
        "OK, 10.0.0.1:10911 answers as SYNC_MASTER",
    ),
    "a master": (master(link()), Severity.OK, "1 slave in sync"),
}


@pytest.mark.parametrize("case", ALONE)
def test_a_broker_that_was_asked_alone_is_judged_by_what_it_knows(case: str) -> None:
    seen, state, text = ALONE[case]
    verdict = the([seen], alone=True)
    assert (verdict.state.name, text in verdict.text) == (state.name, True), verdict.text


def test_a_master_that_no_nameserver_lists_is_not_found_by_clients() -> None:
    seen = [master(link(), not_registered="10.0.0.9:9876: answered code 1"), slave()]
    nowhere = the(seen, listed={"ns1": frozenset({SLAVE}), "ns2": frozenset()})
    assert nowhere.state is Severity.CRITICAL
    assert "NOT REGISTERED, clients do not find the master, 10.0.0.1:10911: 10.0.0.9:9876" in nowhere.text
    partly = the([master(link()), slave()], listed={"h:1": frozenset({MASTER}), "h:2": frozenset()})
    assert partly.state is Severity.WARNING
    assert "NOT REGISTERED EVERYWHERE, 10.0.0.1:10911: not at h:2" in partly.text
    assert the([master(link()), slave()], listed={"h:1": frozenset({MASTER})}).state is Severity.OK


def test_the_user_says_which_lag_and_how_many_slaves() -> None:
    late = [master(link(diff=9, lag_seconds=5.0), role="ASYNC_MASTER"), slave()]
    for limits, state in (
        (CheckLimits(), Severity.OK),
        (CheckLimits(lag_warning_s=5), Severity.WARNING),
        (CheckLimits(5, 5), Severity.CRITICAL),
        (CheckLimits(slaves=1), Severity.OK),
        (CheckLimits(slaves=2), Severity.WARNING),
    ):
        assert the(late, limits=limits).state is state
    assert "1 OF 2 SLAVES IN SYNC, --slaves 2 wants more" in the(late, limits=CheckLimits(slaves=2)).text


def test_the_worst_comes_first_within_a_name_and_of_all_names() -> None:
    def named(one: Seen, name: str) -> Seen:
        return replace(one, broker=one.broker._replace(name=name))

    late = link(diff=9, lag_seconds=31.0)
    seen = [
        *(named(one, "a-good") for one in (master(link()), slave())),
        *(named(one, "b-late") for one in (master(late, damaged="1 to 2"), slave())),
        *(named(one, "c-late") for one in (master(late), slave())),
        *(named(one, "d-denied") for one in (dead(error=DENIED),)),
    ]
    found = verdicts_of(seen, NOW_MS)
    assert [(one.name, one.state.name) for one in found] == [
        ("b-late", "CRITICAL"),
        ("c-late", "WARNING"),
        ("d-denied", "UNKNOWN"),
        ("a-good", "OK"),
    ]
    assert [one.head for one in found[0].findings] == ["LOG DAMAGED", "SLAVE LAGS"]
    assert worst(one.state for one in found[1:]) is Severity.WARNING
    assert worst(one.state for one in found[2:]) is Severity.UNKNOWN
    assert worst([]) is Severity.OK


def test_figures_follow_the_first_line_as_nagios_reads_them() -> None:
    late = link(diff=1000, lag_seconds=0.25)
    odd = replace(master(late, info={"commitLogDiskRatio": "0.305"}), broker=Broker("C", "a|b c", 0, MASTER))
    lines = nagios_lines([*verdicts_of([odd], NOW_MS), the([dead()])], CheckLimits(10, 60))
    assert [line.count("|") for line in lines] == [1, 0]
    text, figures = lines[0].split(" | ")
    assert text.startswith("OK - a/b c: OK, ")
    assert figures.split() == [
        "a_b_c.slaves_in_sync=1;;;0;1",
        "a_b_c.lag_bytes=1000B;;;0",
        "a_b_c.lag_seconds=0.250s;10;60;0",
        "a_b_c.disk_used=30.50%;85;90;0;100",
    ]
    assert lines[1].startswith("CRITICAL - broker-a: NO BROKER ANSWERS")


def test_a_program_gets_the_same_as_an_object() -> None:
    found = result_object([the([dead(), WAITING])])
    assert (found["state"], found["exitCode"]) == ("CRITICAL", 2)
    (one,) = found["verdicts"]
    assert (one["clusterName"], one["brokerName"], one["state"]) == ("C", "broker-a", "CRITICAL")
    assert [finding["head"] for finding in one["findings"]] == ["NO MASTER"]
    assert one["slavesInSync"] is None


def test_what_is_advised_is_named_whole() -> None:
    """Whoever reads it types it as it stands."""
    assert the([dead(), WAITING]).text.endswith(
        "; start 10.0.0.1:10911, the last master, again, or mqadmin failover -b broker-a --to 10.0.0.2:10911 makes"
        " 10.0.0.2:10911 the master"
    )
    # Its store was put back, and knows another last master.
    alone = MembersBody(1, 0, B, 1, 0, {A: MASTER, B: SLAVE})
    old = slave(client={"state": "READY", "last_error": "x"}, said={"members": alone})
    assert "; start 10.0.0.1:10911 again, or mqadmin failover" in the([dead(), old]).text
    away = the([master(), dead(SLAVE, 1)]).text
    forget = "mqadmin forget -b broker-a --replica 10.0.0.2:10911 if it is lost for good"
    assert away.endswith(f"; start 10.0.0.2:10911, or {forget}")
    # It may have what this master lost.
    held = the([master(said={"held": "the machine went down"}), dead(SLAVE, 1)]).text
    assert held.endswith("; start 10.0.0.2:10911")
    leased = replace(WAITING, info={"leaseCoordinator": "etcd"})
    assert the([leased]).text.endswith("; mqadmin haList -b broker-a says who may become it")
    assert "; start 10.0.0.1:10911 again, mqadmin haList -b broker-a" in the([dead(), leased]).text


def test_a_master_is_no_slave_of_its_own() -> None:
    """The other one that began its number has it on its list as a slave."""
    members = MembersBody(5000, 9, B, 1, 0, {A: MASTER, B: SLAVE})
    one = master(role="ASYNC_MASTER")
    other = slave(client={"state": "READY", "last_error": "x"}, said={"members": members})
    assert "10.0.0.1:10911 is away" not in the([one, other]).text


@pytest.mark.parametrize(("lifetime_h", "left_h"), [(24, 8), (72, 24), (90 * 24, 29 * 24)])
def test_a_certificate_that_is_renewed_in_time_is_not_told_of(lifetime_h: int, left_h: int) -> None:
    until = NOW_MS // 1000 + left_h * 3600
    dates = {"certificateBegins": f"c={until - lifetime_h * 3600}", "certificateEnds": f"c={until}"}
    assert "CERTIFICATE" not in the([master(link(), info=dates), slave()]).text
