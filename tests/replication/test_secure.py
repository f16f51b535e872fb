"""The secure door: what a start refuses, and how renewed certificates are taken."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from haservice.configuration.config import broker_from
from haservice.configuration.live_settings import KeyForbidden, LiveSettings
from haservice.configuration.properties import parse
from haservice.errors import ConfigError
from haservice.replication.lineage.epochs import Epoch, Lineage, LogSpan
from haservice.replication.lineage.file import LineageFile
from haservice.replication.master.greeter import Greets
from haservice.replication.wire.greeting import Facts, GreetingOutcome
from haservice.replication.wire.hello import MasterHello, SlaveHello
from haservice.replication.wire.protocol import slave_hello_block
from haservice.replication.wire.secure import HACertificates, SecureDoors, secure_doors
from haservice.replication.wire.transport import PlainTransport, TlsTransport
from tests.support.certificates import certificates, signed
from tests.support.replication import CONFIG, ScriptedSlave, master, open_log
from tests.support.waiting import PATIENCE_S


def paths(**others: Path) -> str:
    made = {"Cert": certificates().server, "Key": certificates().server_key, "TrustCert": certificates().root}
    return "".join(f"haSecure{name}Path={path}\n" for name, path in (made | others).items())


def doors(text: str) -> SecureDoors:
    return secure_doors(broker_from(parse(text, "broker-a.properties"), {}))


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        doors(text)
    return str(refused.value)


def test_by_default_there_is_the_plain_door_only() -> None:
    found = doors("")
    assert (found.plain, found.port, found.certificates) == (True, 0, None)
    assert found.address("10.0.0.1:10912") == "10.0.0.1:10912"
    near, far = socket.socketpair()
    with near, far:
        assert isinstance(found.connected(near), PlainTransport)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("haPlainPort=false", "haPlainPort=false: without haSecurePort no slave could ever come"),
        ("haSecurePort=10912", "haSecurePort=10912: the port is already"),
        ("haSecurePort=10911", "haSecurePort=10911: the port is already"),
        ("haSecurePort=10909", "haSecurePort=10909: the port is already"),
        ("haSecureMaster=true", "haSecureMaster=true: where?"),
        ("haSecurePort=10914", "haSecureCertPath: not set, and haSecurePort needs all of"),
        ("haSecurePort=10914\nhaSecureCertPath=/c.pem", "haSecureKeyPath: not set"),
        (
            "haSecureMaster=true\nhaMasterAddress=a:1\nhaSecureCertPath=/c.pem\nhaSecureKeyPath=/k.pem",
            "haSecureTrustCertPath: not set, and haSecureMaster needs all of",
        ),
    ],
)
def test_what_is_missing_or_contradicts_is_told_by_key(text: str, said: str) -> None:
    assert refusal(text).startswith(f"broker-a.properties: {said}")


FILES: dict[str, Callable[[Path], tuple[dict[str, Path], str]]] = {
    "no certificate": lambda at: (
        {"Cert": at / "no.pem"},
        "haSecureCertPath={Cert}: cannot be read: No such file",
    ),
    "no key": lambda at: ({"Key": at / "no.pem"}, "haSecureKeyPath={Key}: cannot be read: No such file"),
    "no roots": lambda at: (
        {"TrustCert": at / "no.pem"},
        "haSecureTrustCertPath={TrustCert}: cannot be read: No such file",
    ),
    "roots that are none": lambda _: (
        {"TrustCert": certificates().server_key},
        "haSecureTrustCertPath={TrustCert}: no certificates in it",
    ),
    "a key of another certificate": lambda _: (
        {"Key": certificates().client_key},
        "haSecureCertPath=",
    ),
    "a locked key": lambda _: ({"Key": certificates().locked_key}, "haSecureCertPath="),
    "another root's certificate": lambda _: (
        {"Cert": certificates().stranger, "Key": certificates().stranger_key},
        "haSecureCertPath={Cert}: not from a root of haSecureTrustCertPath=",
    ),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_no_good_is_told_by_key_and_path(what: str, tmp_path: Path) -> None:
    others, said = FILES[what](tmp_path)
    found = refusal(f"haSecurePort=10914\n{paths(**others)}")
    assert found.startswith(f"broker-a.properties: {said.format(**others)}")
    assert str(next(iter(others.values()))) in found


def test_a_certificate_whose_time_is_over_is_told_and_keeps_no_broker_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cert, key = signed("old", days=-1)
    assert doors(f"haSecurePort=10914\n{paths(Cert=cert, Key=key)}").certificates
    (record,) = caplog.records
    assert "in force all the same, for there is no other: " in record.getMessage()
    assert f"haSecureCertPath={cert}: not valid now: since " in record.getMessage()


def test_a_secure_slave_goes_to_the_secure_port_of_whoever_is_named() -> None:
    found = doors(f"haSecurePort=10914\nhaSecureMaster=true\nhaMasterAddress=10.0.0.9:7000\n{paths()}")
    assert found.address("10.0.0.1:10912") == "10.0.0.1:10914"
    assert found.address("10.0.0.9:7000") == "10.0.0.9:7000", "the one in its file is taken as it stands"
    near, far = socket.socketpair()
    with near, far:
        assert isinstance(found.connected(near), TlsTransport)


def test_no_request_changes_these_keys() -> None:
    settings = LiveSettings(broker_from(parse("", "broker-a.properties"), {}))
    for line in (
        "haSecurePort=1",
        "haSecureTrustCertPath=/x.pem",
        "haPlainPort=true",
        "haSecureMaster=false",
    ):
        with pytest.raises(KeyForbidden):
            settings.change(line)


@pytest.mark.parametrize(
    ("text", "plainly", "secured"),
    [
        ("", True, True),
        ("aclEnable=true", False, True),
        ("aclEnable=true\nhaAllowedSlaves=10.0.0.0/8", True, True),
    ],
)
def test_what_a_stranger_names_is_believed_only_where_requests_are_open_too(
    text: str, plainly: bool, secured: bool, caplog: pytest.LogCaptureFixture
) -> None:
    found = doors(text)
    assert (found.believes(False), found.believes(True)) == (plainly, secured)
    assert any("haListenPort serves everybody" in one.getMessage() for one in caplog.records) is not plainly


@pytest.mark.parametrize("guarded", [False, True])
def test_where_requests_are_guarded_no_stranger_names_whom_to_ask(tmp_path: Path, guarded: bool) -> None:
    """Else a master would call him with a signed request, and step down or take bytes by what he answers."""
    log, lineage = open_log(tmp_path), LineageFile(tmp_path)
    lineage.begin(Epoch(1, 0, lineage.state.replica_id))
    heard: list[tuple[str, GreetingOutcome]] = []
    facts = Facts("C", "broker-a", "10.0.0.1:10911")
    options = {
        "greets": Greets(
            lineage, facts, on_heard=lambda hello, outcome: heard.append((hello.broker_addr, outcome))
        ),
        "doors": SecureDoors(CONFIG, guarded=guarded),
    }
    named = "10.6.6.6:666"
    with master(log, options=options) as ha:
        for epochs in (Lineage(), Lineage((Epoch(1, 0, lineage.state.replica_id), Epoch(2**39, 5, "x")))):
            with ScriptedSlave(ha.port) as stranger:
                stranger.report(-1)
                nonce = MasterHello.decode(stranger.frame()[1]).nonce
                hello = SlaveHello(
                    replica_id="stranger",
                    broker_name=facts.broker_name,
                    broker_addr=named,
                    segment_bytes=log.segment_bytes,
                    log=LogSpan(0, 10 if epochs.epochs else 0),
                    position=10 if epochs.epochs else 0,
                    digest_bytes=0,
                    digest=sha256().hexdigest(),
                    flushes=False,
                    lineage=epochs,
                    nonce=nonce,
                )
                stranger.send(slave_hello_block(hello.encode()))
                stranger.frame()
    assert [addr for addr, _ in heard] == ["" if guarded else named] * 2
    assert [outcome for _, outcome in heard] == [GreetingOutcome.ACCEPTED, GreetingOutcome.OLD_MASTER]
    assert LineageFile(tmp_path).state.replicas["stranger"].broker_addr == ("" if guarded else named)


# ---- renewal


class Files:
    """Certificate, key and roots of a broker, in files of their own."""

    def __init__(self, directory: Path) -> None:
        self.cert, self.key, self.trust = (directory / name for name in ("cert.pem", "key.pem", "trust.pem"))
        self.put(certificates().server, certificates().server_key)
        shutil.copy(certificates().root, self.trust)

    def put(self, cert: Path, key: Path) -> None:
        shutil.copy(cert, self.cert)
        shutil.copy(key, self.key)

    def load(self) -> HACertificates:
        return HACertificates(self.cert, self.key, self.trust)


def link(master: HACertificates, slave: HACertificates) -> tuple[TlsTransport, TlsTransport]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = slave.connected(socket.create_connection(listener.getsockname()))
        far = master.accepted(listener.accept()[0])
    with ThreadPoolExecutor(1) as pool:
        shaken = pool.submit(far.handshake)
        near.handshake()
        shaken.result(PATIENCE_S)
    return near, far


def polled(loaded: HACertificates) -> None:
    """A change counts once it has kept still from one look to the next."""
    loaded.poll()
    loaded.poll()


def test_a_renewed_certificate_is_shown_to_new_links_and_old_ones_go_on(tmp_path: Path) -> None:
    files = Files(tmp_path)
    loaded = files.load()
    near, far = link(loaded, loaded)
    assert near.peer_name.endswith("(server)")
    files.put(*signed("renewed"))
    polled(loaded)
    later = link(loaded, loaded)
    assert later[0].peer_name.endswith("(renewed)")
    far.send(b"still here")
    assert near.recv(100) == b"still here"
    for one in (near, far, *later):
        one.close()


def test_renewed_files_that_are_no_good_leave_those_before_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files(tmp_path)
    loaded = files.load()
    shutil.copy(certificates().client_key, files.key)
    for _ in range(5):
        loaded.poll()
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1, "told once"
    assert "not renewed, the one before stays: : haSecureCertPath=" in errors[0]
    near, far = link(loaded, loaded)
    assert near.peer_name.endswith("(server)")
    near.close()
    far.close()
    shutil.copy(certificates().client, files.cert)
    polled(loaded)
    near, far = link(loaded, loaded)
    assert near.peer_name.endswith("(client)")
    near.close()
    far.close()


def test_links_are_of_the_newest_tls_only() -> None:
    loaded = HACertificates(certificates().server, certificates().server_key, certificates().root)
    near, far = link(loaded, loaded)
    assert near._tls.version() == far._tls.version() == "TLSv1.3"
    near.close()
    far.close()
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.load_cert_chain(certificates().client, certificates().client_key)
    one, other = socket.socketpair()
    near, far = TlsTransport(one, old, server_side=False), loaded.accepted(other)
    with ThreadPoolExecutor(1) as pool:
        tried = pool.submit(near.handshake)
        with pytest.raises(OSError, match="no TLS handshake: unsupported protocol"):
            far.handshake()
        far.shut_down()
        with pytest.raises(OSError, match="no TLS handshake"):
            tried.result(PATIENCE_S)
    near.close()
    far.close()
