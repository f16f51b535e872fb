"""Strangers on the console's port: they cost it nothing that others need, and brokers nothing at all."""

from __future__ import annotations

import re
import select
import signal
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from haservice.console.server import CONNECTIONS_MAX
from haservice.console.visit import FIELDS_MAX, FORM_BYTES_MAX
from haservice.devtools.pair import ScratchPair
from haservice.remoting.bodies.clients import ClusterInfo
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from tests.console.conftest import MakeConsole
from tests.console.support import ConsoleProcess
from tests.support.certificates import certificates, signed
from tests.support.remoting import serving
from tests.support.waiting import wait_until

# Three processes and a browser start; on a busy machine that takes its time.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def console(pair: ScratchPair, make_console: MakeConsole) -> ConsoleProcess:
    return make_console(pair.namesrv_addr, "--allow-changes")


def connected(console: ConsoleProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", console.port), timeout=20)


def one_has_given_way(connections: Sequence[socket.socket]) -> bool:
    """Whether one of these that nobody answers has ended."""
    ends = select.poll()
    for one in connections:
        ends.register(one, select.POLLIN)
    return bool(ends.poll(20_000))


def test_those_who_only_connect_keep_nobody_out(console: ConsoleProcess) -> None:
    idle = [connected(console) for _ in range(CONNECTIONS_MAX + 20)]
    try:
        assert console.get("/").status == 200
        assert one_has_given_way(idle)
    finally:
        for one in idle:
            one.close()


def test_those_who_send_half_a_form_keep_nobody_out(console: ConsoleProcess) -> None:
    head = (
        f"POST /pairs/broker-a/switchover HTTP/1.1\r\nHost: {console.address}\r\nOrigin: {console.url}\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 5000\r\n\r\ntarget="
    )
    halves = []
    try:
        for _ in range(CONNECTIONS_MAX + 20):
            halves.append(connected(console))
            halves[-1].sendall(head.encode())
        assert console.get("/").status == 200
        assert one_has_given_way(halves)
    finally:
        for one in halves:
            one.close()
    assert "Traceback" not in console.output()


def test_what_is_no_request_is_answered_and_forgotten(console: ConsoleProcess) -> None:
    for sent in (
        b"\0" * 1000,
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: " + b"y" * 100_000,
    ):
        with connected(console) as stranger:
            stranger.sendall(sent)
            assert stranger.recv(100).startswith(b"HTTP/1.1 400")
    assert console.get("/").status == 200
    assert "Traceback" not in console.output()


def test_a_chunk_that_is_none_costs_one_line_of_the_log(console: ConsoleProcess) -> None:
    head = f"POST /login HTTP/1.1\r\nHost: {console.address}\r\nOrigin: {console.url}\r\n"
    head += "Content-Type: application/x-www-form-urlencoded\r\nTransfer-Encoding: chunked\r\n\r\n"
    for _ in range(3):
        with connected(console) as stranger:
            stranger.sendall(f"{head}zz\r\nabc\r\n".encode())
            assert stranger.recv(100).startswith(b"HTTP/1.1 400")
            while stranger.recv(1000):
                pass
    assert console.get("/").status == 200
    assert "Traceback" not in console.output()
    assert len(re.findall("WARNING .* connection cut, what came is no HTTP", console.output())) == 1


def test_forms_are_bounded(console: ConsoleProcess) -> None:
    path = "/pairs/broker-a/switchover"
    assert console.post(path, {"target": "x" * FORM_BYTES_MAX}).status == 413
    assert console.post(path, {f"field{number}": "" for number in range(FIELDS_MAX + 1)}).status == 400
    assert console.post(path, {"target": "no address"}).status == 409
    assert console.post("/pairs/broker-a/failover", {}).status == 404
    assert console.post("/pairs/broker-a/anything", {"target": "127.0.0.1:1"}).status == 404
    assert console.get("/pairs/no-such-pair").status == 404


def test_only_brokers_of_the_name_are_asked(console: ConsoleProcess, pair: ScratchPair) -> None:
    """Else anybody learns from the console which ports are open where it can reach."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(0.5)
        addr = f"127.0.0.1:{elsewhere.getsockname()[1]}"
        for path in ("/pairs/broker-a", f"/pairs/{addr}"):
            for kind in ("failover", "switchover", "reinit"):
                answer = console.get(f"{path}/{kind}?target={addr}")
                assert answer.status == 404
                assert "nobody is asked" in answer.text
                assert console.post(f"{path}/{kind}", {"target": addr, "facts": "0"}).status == 404
        assert console.get(f"/pairs/{addr}/forget?target=some").status == 404
        with pytest.raises(TimeoutError):
            elsewhere.accept()
    for kind in ("switchover", "reinit", "forget"):
        assert console.get(f"/pairs/broker-a/{kind}?target={pair.slave_addr}").status == 200


def test_another_site_may_not_ask_for_a_plan(console: ConsoleProcess, pair: ScratchPair) -> None:
    path = f"/pairs/broker-a/switchover?target={pair.slave_addr}"
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert console.get(path, **{"Sec-Fetch-Site": site}).status == status


def test_names_of_strangers_are_shown_as_text(console: ConsoleProcess) -> None:
    answer = console.get("/pairs/%3Cscript%3Ealert(1)%3C%2Fscript%3E%E2%80%AE")
    assert answer.status == 404
    assert "<script>alert" not in answer.text
    assert "\u202e" not in answer.text


def test_many_viewers_ask_no_more_than_one(make_console: MakeConsole) -> None:
    asked: list[int] = []

    def table(_: Connection, request: RemotingCommand) -> RemotingCommand:
        asked.append(request.code)
        return request.answer(body=ClusterInfo({}, {}).encode())

    with serving({RequestCode.GET_BROKER_CLUSTER_INFO: table}) as server:
        console = make_console(f"127.0.0.1:{server.ports[0]}")
        console.get("/")
        before, looks = len(asked), 200
        with ThreadPoolExecutor(16) as pool:
            stamps = list(pool.map(lambda _: look_of(console), range(looks)))
        # One question a look, and one at the door every ten seconds, however many pages were shown.
        assert len(asked) - before <= 2 * len(set(stamps)) + 2
        assert len(asked) - before < looks / 4


def look_of(console: ConsoleProcess) -> str:
    """When the look was taken that a page shows."""
    found = re.search(r"As of ([\d: -]+)\.", console.get("/live/overview").text)
    assert found is not None
    return found[1]


def test_it_serves_https_and_reads_its_certificate_anew(
    pair: ScratchPair, make_console: MakeConsole, tmp_path: Path
) -> None:
    made = certificates()
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(made.server.read_bytes())
    key.write_bytes(made.server_key.read_bytes())
    console = make_console(pair.namesrv_addr, "--cert", str(cert), "--key", str(key))

    def shown() -> bytes:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with connected(console) as plain, context.wrap_socket(plain) as secure:
            secure.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert secure.recv(12) == b"HTTP/1.1 200"
            return secure.getpeercert(binary_form=True) or b""

    assert shown() == ssl.PEM_cert_to_DER_cert(made.server.read_text())
    cert.write_bytes(made.stranger.read_bytes())
    key.write_bytes(made.stranger_key.read_bytes())
    console.popen.send_signal(signal.SIGHUP)
    wait_until(lambda: shown() == ssl.PEM_cert_to_DER_cert(made.stranger.read_text()), "the new one is shown")
    key.write_text("broken")
    console.popen.send_signal(signal.SIGHUP)
    wait_until(
        lambda: "not_in_force=certificate of the console: mqconsole: --cert=" in console.output(),
        "the broken one is refused",
    )
    assert shown() == ssl.PEM_cert_to_DER_cert(made.stranger.read_text())
    over, over_key = signed("over", -1)
    cert.write_bytes(over.read_bytes())
    key.write_bytes(over_key.read_bytes())
    console.popen.send_signal(signal.SIGHUP)
    wait_until(lambda: "not valid now: since" in console.output(), "one that has expired is refused")
    assert shown() == ssl.PEM_cert_to_DER_cert(made.stranger.read_text())


def test_a_certificate_that_cannot_be_used_is_refused(pair: ScratchPair, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    said = ConsoleProcess.refused(pair, "127.0.0.1", "--cert", str(broken))
    assert f"--cert={broken}" in said


def test_it_stops_cleanly_with_pages_open(pair: ScratchPair, make_console: MakeConsole) -> None:
    console = make_console(pair.namesrv_addr)
    assert console.get("/").status == 200
    with connected(console):
        assert console.stop() == 0
    assert console.output().rstrip().endswith("stopped cleanly")


def test_without_access_control_other_machines_are_kept_out(
    pair: ScratchPair, make_console: MakeConsole
) -> None:
    refused = ConsoleProcess.refused(pair, "0.0.0.0")
    assert "--without-login" in refused
    assert "nobody" not in refused
    open_to_all = make_console(pair.namesrv_addr, "--without-login", host="0.0.0.0")
    assert open_to_all.get("/").status == 200
