"""The secure door with real processes: who comes in, who does not and how it is told, renewal under way."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from haservice.admin.calls import MQAdmin
from haservice.devtools.pair import ProcessDied, ScratchPair
from haservice.replication.wire.protocol import REPORT
from tests.cluster.support import (
    Ask,
    MakePair,
    assert_equal_logs,
    log_end,
    numbered,
    read,
    send,
    send_ok,
    start_master_with_topic,
    wait_caught_up,
)
from tests.support.certificates import certificates, signed
from tests.support.replication import ScriptedMaster, ScriptedSlave
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def secure_port(pair: ScratchPair) -> int:
    """Of the master: the one of its block that is left."""
    return int(pair.master_addr.rpartition(":")[2]) - 1


def shows(cert: Path, key: Path, trust: Path) -> dict[str, str]:
    return {
        "haSecureCertPath": str(cert),
        "haSecureKeyPath": str(key),
        "haSecureTrustCertPath": str(trust),
    }


def of_the_cluster(name: str, days: int = 2) -> dict[str, str]:
    return shows(*signed(name, days), certificates().root)


def start_master(pair: ScratchPair, admin: MQAdmin, **settings: str) -> None:
    own = {**of_the_cluster("broker-a"), "haPlainPort": "false", "haSecurePort": str(secure_port(pair))}
    start_master_with_topic(pair, admin, **{**own, **settings})


def start_slave(pair: ScratchPair, **settings: str) -> None:
    """It hears from the nameserver where its master is, and goes to the secure port there."""
    own = {
        **of_the_cluster("broker-a-s"),
        "haSecureMaster": "true",
        "haSecurePort": str(secure_port(pair)),
    }
    pair.start_slave(**{**own, **settings})


def says(pair: ScratchPair, name: str, *words: str) -> bool:
    return any(all(word in line for word in words) for line in pair.processes[name].output().splitlines())


def test_a_pair_replicates_over_tls_alone(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_master(pair, ask)
    start_slave(pair)
    wait_caught_up(pair, ask)
    send_ok(pair.master_addr, numbered(0, 3000))  # more than one segment
    wait_caught_up(pair, ask)
    wait_until(lambda: read(ask, pair.slave_addr) == numbered(0, 3000), "all of it is there")
    assert_equal_logs(pair, ask, pair.slave_addr)
    assert says(pair, "broker-a", "(broker-a-s)"), "the master tells whose certificate it saw"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", pair.ha_port()))


@pytest.mark.parametrize(
    "words",
    [REPORT.pack(0), REPORT.pack(-1), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00" + b"\1" * 512],
)
def test_a_plain_peer_gets_nothing_from_the_secure_port(
    make_pair: MakePair, admin: Ask, words: bytes
) -> None:
    pair = make_pair("SYNC_MASTER", slaveTimeout="300")
    ask = admin(pair)
    start_master(pair, ask)
    assert {one.status for one in send(pair.master_addr, numbered(0, 20))} == {"SLAVE_NOT_AVAILABLE"}
    with ScriptedSlave(secure_port(pair)) as plain:
        plain.send(words)
        said = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := plain.socket.recv(4096):
                said += piece
        assert len(said) < 64, "an alert at most, and no byte of the log"
    wait_until(lambda: says(pair, "broker-a", "slave refused", "no TLS handshake"), "it is told")


REFUSED: dict[str, tuple[Callable[[], dict[str, str]], str, str]] = {
    "of another root": (
        lambda: shows(certificates().stranger, certificates().stranger_key, certificates().stranger),
        "the peer",
        "the peer's certificate is not trusted",
    ),
    "whose time is over": (
        lambda: of_the_cluster("late", days=-1),
        "the peer's certificate is not trusted: certificate has expired",
        "certificate expired",
    ),
}


@pytest.mark.parametrize("who", REFUSED)
def test_a_slave_with_a_certificate(make_pair: MakePair, admin: Ask, who: str) -> None:
    """It is refused, and both say why."""
    settings, master_says, slave_says = REFUSED[who]
    pair = make_pair("SYNC_MASTER", slaveTimeout="300")
    ask = admin(pair)
    start_master(pair, ask)
    start_slave(pair, **settings())
    wait_until(lambda: says(pair, "broker-a", "slave refused", master_says), "the master says why")
    wait_until(lambda: says(pair, "broker-a-s", "link to master lost", slave_says), "the slave says why")
    assert {one.status for one in send(pair.master_addr, numbered(0, 20))} == {"SLAVE_NOT_AVAILABLE"}
    assert log_end(ask, pair.slave_addr) == 0


def test_a_secure_slave_follows_nobody_in_the_clear(make_pair: MakePair, admin: Ask) -> None:
    """A stranger where its master should be: it says no word that a plain peer would understand."""
    pair = make_pair("SYNC_MASTER")
    pair.start_nameserver()
    with ScriptedMaster() as listener:
        start_slave(pair, haMasterAddress=f"127.0.0.1:{listener.port}")
        for _ in range(3):
            with listener.accept() as slave:
                assert slave.read(1) == b"\x16", "a TLS handshake"
                slave.frame(0, b"x" * 100)
                slave.ends()
    assert log_end(admin(pair), pair.slave_addr) == 0


def test_a_plain_slave_beside_secure_ones_is_as_ever(make_pair: MakePair, admin: Ask) -> None:
    """Both doors open: a stock slave uses the plain one."""
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_master(pair, ask, haPlainPort="true")
    pair.start_slave()
    wait_caught_up(pair, ask)
    send_ok(pair.master_addr, numbered(0, 50))


def test_certificates_are_renewed_under_a_running_link(
    make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(name: str) -> None:
        for source, target in zip(signed(name), (cert, key), strict=True):
            shutil.copy(source, target)

    put("spring")
    start_master(pair, ask)
    start_slave(pair, **shows(cert, key, certificates().root))
    wait_caught_up(pair, ask)
    put("autumn")
    wait_until(lambda: says(pair, "broker-a-s", "read again"), "the slave has found them")
    send_ok(pair.master_addr, numbered(0, 50))
    assert pair.processes["broker-a"].output().count("secure link") == 1, "the link goes on"
    assert says(pair, "broker-a", "secure link", "(spring)")
    # The master comes back: the slave shows its new certificate.
    pair.processes["broker-a"].kill()
    pair.start_master(**of_the_cluster("broker-a"), haPlainPort="false", haSecurePort=str(secure_port(pair)))
    wait_until(lambda: says(pair, "broker-a", "secure link", "(autumn)"), "the new one is shown")
    wait_caught_up(pair, ask)


def test_a_broker_that_could_not_replicate_does_not_start(make_pair: MakePair, tmp_path: Path) -> None:
    pair = make_pair("SYNC_MASTER")
    missing = tmp_path / "gone.pem"
    settings = {**of_the_cluster("broker-a"), "haSecureKeyPath": str(missing)}
    with pytest.raises(ProcessDied, match=rf"haSecureKeyPath={missing}: cannot be read: No such file"):
        pair.start_master(**settings, haSecurePort=str(secure_port(pair)))
    assert not pair.store("broker-a").exists(), "nothing was opened"
