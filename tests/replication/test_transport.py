"""Links, plain and over TLS: the same behaviour on both, and what TLS adds."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from haservice.replication.wire.protocol import TRANSFER_HEADER
from haservice.replication.wire.secure import HACertificates
from haservice.replication.wire.transport import HandshakeFailed, PlainTransport, TlsTransport, Transport
from tests.support.certificates import certificates, signed
from tests.support.waiting import PATIENCE_S, wait_until

Link = tuple[Transport, Transport]


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    return client, server


def broker_certificates(
    cert: Path | None = None, key: Path | None = None, trust: Path | None = None
) -> HACertificates:
    made = certificates()
    return HACertificates(cert or made.server, key or made.server_key, trust or made.root)


def transports(kind: str) -> Link:
    """The connecting end and the accepting one, with timeouts that only a hanging test meets."""
    client, server = tcp_pair()
    if kind == "plain":
        link: Link = (PlainTransport(client), PlainTransport(server))
    else:
        ours = broker_certificates()
        link = (ours.connected(client), ours.accepted(server))
    for end in link:
        end.set_receive_timeout(PATIENCE_S)
        end.set_send_timeout(PATIENCE_S)
    return link


@pytest.fixture(params=["plain", "tls"])
def link(request: pytest.FixtureRequest) -> Iterator[Link]:
    ends = transports(request.param)
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def aside() -> Iterator[Callable[..., Future[object]]]:
    """Runs something in a thread of its own."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


Aside = Callable[..., Future[object]]


def shake(link: Link, aside: Aside) -> None:
    other = aside(link[1].handshake)
    link[0].handshake()
    other.result(PATIENCE_S)


def take(end: Transport, size: int) -> bytes:
    """`size` bytes, or those up to the end."""
    data = bytearray(size)
    at = 0
    while at < size:
        count = end.recv_into(memoryview(data)[at:])
        if not count:
            break
        at += count
    return bytes(data[:at])


def give(end: Transport, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[end.send(bytes(left[: 1024 * 1024])) :]


def test_what_is_sent_arrives_on_the_other_side(link: Link, aside: Aside) -> None:
    near, far = link
    taken = aside(take, far, 5)
    assert near.send(b"hello") == 5
    assert taken.result(PATIENCE_S) == b"hello"
    assert far.send(b"back") == 4
    assert near.recv(100) == b"back"


def test_what_may_wait_goes_with_what_follows(link: Link, aside: Aside, tmp_path: Path) -> None:
    near, far = link
    body = os.urandom(200_000)
    (tmp_path / "segment").write_bytes(b"before" + body)
    taken = aside(take, far, 12 + len(body))
    with (tmp_path / "segment").open("rb") as file:
        assert near.send(b"h" * 12, socket.MSG_MORE) == 12
        position = 6
        while position < 6 + len(body):
            sent = near.send_file(file.fileno(), position, 6 + len(body) - position)
            assert sent > 0
            position += sent
        assert near.send_file(file.fileno(), position, 10) == 0, "the file's end"
    assert taken.result(PATIENCE_S) == b"h" * 12 + body


def test_a_frame_of_one_file_piece_is_not_more_than_asked_for(
    link: Link, aside: Aside, tmp_path: Path
) -> None:
    near, far = link
    (tmp_path / "segment").write_bytes(b"0123456789")
    taken = aside(take, far, 4)
    with (tmp_path / "segment").open("rb") as file:
        assert near.send_file(file.fileno(), 3, 4) == 4
    assert taken.result(PATIENCE_S) == b"3456"
    near.shut_down()
    assert far.recv(10) == b""


@pytest.mark.usefixtures("build")
def test_a_part_of_a_file_is_sent_as_frames(link: Link, aside: Aside, tmp_path: Path) -> None:
    near, far = link
    (tmp_path / "segment").write_bytes(b"0123456789")
    wire = b"".join(TRANSFER_HEADER.pack(at, len(body)) + body for at, body in ((90, b"3456"), (94, b"789")))
    taken = aside(take, far, len(wire))
    with (tmp_path / "segment").open("rb") as file:
        near.send_frames(file.fileno(), 3, 90, 7, 4)
        assert taken.result(PATIENCE_S) == wire
        aside(take, far, 1000)
        with pytest.raises(OSError, match="segment ended"):
            near.send_frames(file.fileno(), 6, 93, 5, 5)
    near.shut_down()


def test_two_threads_use_each_end_at_once(link: Link, aside: Aside) -> None:
    near, far = link
    shake(link, aside)
    there, back = os.urandom(8 * 1024 * 1024), os.urandom(8 * 1024 * 1024)
    receiving = [aside(take, far, len(there)), aside(take, near, len(back))]
    sending = [aside(give, near, there), aside(give, far, back)]
    for one in sending:
        one.result(PATIENCE_S)
    assert receiving[0].result(PATIENCE_S) == there
    assert receiving[1].result(PATIENCE_S) == back


def test_many_small_words_each_way_stay_in_order(link: Link, aside: Aside) -> None:
    shake(link, aside)
    words = [number.to_bytes(8, "big") for number in range(5000)]

    def say(end: Transport) -> None:
        for word in words:
            end.send(word)

    receiving = [aside(take, end, 8 * len(words)) for end in link]
    for sending in [aside(say, end) for end in link]:
        sending.result(PATIENCE_S)
    assert [one.result(PATIENCE_S) for one in receiving] == [b"".join(words)] * 2


def test_silence_is_a_blocking_io_error_and_the_link_goes_on(link: Link, aside: Aside) -> None:
    near, far = link
    shake(link, aside)
    far.set_receive_timeout(0.01)
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            far.recv(10)
    with pytest.raises(BlockingIOError):
        far.recv_into(memoryview(bytearray(10)))
    near.send(b"late")
    far.set_receive_timeout(PATIENCE_S)
    assert far.recv(10) == b"late"


def test_a_peer_that_takes_nothing_is_a_blocking_io_error(link: Link, aside: Aside) -> None:
    near, _ = link
    shake(link, aside)
    near.set_send_timeout(0.01)

    def fill() -> None:
        for _ in range(10_000):
            if near.send(b"x" * 65536) < 65536:
                raise BlockingIOError  # what a plain socket says of a part that it has taken

    with pytest.raises(BlockingIOError):
        fill()


def test_a_peer_that_closes_is_an_end(link: Link, aside: Aside) -> None:
    near, far = link
    shake(link, aside)
    near.send(b"last words")
    near.shut_down()
    near.close()
    assert take(far, 100) == b"last words"
    assert far.recv(10) == b""
    assert far.recv_into(memoryview(bytearray(10))) == 0


def test_a_link_that_is_shut_down_wakes_who_waits_on_it(link: Link, aside: Aside) -> None:
    near, far = link
    shake(link, aside)
    waiting = aside(far.recv, 10)
    far.shut_down()
    assert waiting.result(PATIENCE_S) == b""

    def broken() -> bool:
        try:
            near.send(b"x" * 100_000)
        except (BrokenPipeError, ConnectionResetError):
            return True
        return False

    wait_until(broken, "the other end finds it broken")


def test_a_writer_that_is_stuck_is_woken_too(link: Link, aside: Aside) -> None:
    near, _ = link
    shake(link, aside)

    def fill() -> None:
        with suppress(OSError):
            while True:
                near.send(b"x" * 65536)

    stuck = aside(fill)
    near.shut_down()
    stuck.result(PATIENCE_S)


def test_closing_and_shutting_down_may_be_done_twice(link: Link) -> None:
    near, _ = link
    near.shut_down()
    near.close()
    near.close()
    near.shut_down()


def test_a_link_says_who_is_at_the_other_end(link: Link, aside: Aside) -> None:
    near, far = link
    shake(link, aside)
    assert near.peer_name.startswith("127.0.0.1:")
    if isinstance(far, TlsTransport):
        assert far.peer_name.endswith(" (server)"), "the name in its certificate"


# ---- what TLS adds


def test_what_goes_over_the_wire_is_not_what_was_said() -> None:
    client, server = tcp_pair()
    ours = broker_certificates()
    near = ours.connected(client)
    middle, behind = tcp_pair()
    far = ours.accepted(behind)
    heard: list[bytes] = []

    def carry(source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(65536):
            heard.append(data)
            target.sendall(data)

    with ThreadPoolExecutor(3) as pool:
        pool.submit(carry, server, middle)
        pool.submit(carry, middle, server)
        taken = pool.submit(take, far, 6)
        near.send(b"secret")
        assert taken.result(PATIENCE_S) == b"secret"
        for one in (client, server, middle, behind):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
    assert b"secret" not in b"".join(heard)
    for one in (client, server, middle, behind):
        one.close()


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 8, b"\x16\x03\x01\xff\xff" + b"x" * 100, b"\0" * 5000]
)
def test_garbage_instead_of_tls_is_refused(garbage: bytes) -> None:
    client, server = tcp_pair()
    far = broker_certificates().accepted(server)
    client.sendall(garbage)
    client.shutdown(socket.SHUT_WR)
    with pytest.raises(HandshakeFailed, match="no TLS handshake"):
        far.recv(10)
    far.close()
    client.close()


def test_a_handshake_that_dribbles_in_ends_at_its_deadline() -> None:
    """Single bytes do not extend it."""
    client, server = tcp_pair()
    far = TlsTransport(server, ssl_context(), server_side=True, handshake_s=0.2)
    over = threading.Event()

    def dribble() -> None:
        with suppress(OSError):
            for byte in b"\x16\x03\x01\x02\x00" + b"\x01" * 512:
                if over.wait(0.005):
                    return
                client.send(bytes([byte]))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(dribble)
        try:
            with pytest.raises(OSError, match="no TLS handshake"):
                far.handshake()
        finally:
            over.set()
    far.close()
    client.close()


def ssl_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates().server, certificates().server_key)
    return context


def test_a_silent_peer_ends_the_handshake_at_its_deadline() -> None:
    client, server = tcp_pair()
    far = TlsTransport(server, ssl_context(), server_side=True, handshake_s=0.05)
    with pytest.raises(HandshakeFailed, match=r"no TLS handshake within 0\.05 s"):
        far.handshake()
    far.close()
    client.close()


def test_records_that_dribble_in_do_not_extend_a_receive(aside: Aside) -> None:
    near, far = transports("tls")
    shake((near, far), aside)
    far.set_receive_timeout(0.05)
    assert isinstance(near, TlsTransport)
    over = threading.Event()

    def dribble() -> None:
        with suppress(OSError):
            for byte in b"\x17\x03\x03\x40\x00" + b"x" * 10_000:  # one record, never whole
                if over.wait(0.002):
                    return
                near._socket.send(bytes([byte]))

    sending = aside(dribble)
    try:
        with pytest.raises(BlockingIOError):
            far.recv(10)
    finally:
        over.set()
    sending.result(PATIENCE_S)
    near.close()
    far.close()


def test_a_record_that_was_tampered_with_breaks_the_link(aside: Aside) -> None:
    near, far = transports("tls")
    shake((near, far), aside)
    assert isinstance(near, TlsTransport)
    near._socket.sendall(b"\x17\x03\x03\x00\x20" + b"x" * 32)
    with pytest.raises(OSError, match="the TLS link broke"):
        far.recv(10)
    near.close()
    far.close()


def test_a_peer_that_dies_amid_a_record_is_an_end(aside: Aside) -> None:
    near, far = transports("tls")
    shake((near, far), aside)
    assert isinstance(near, TlsTransport)
    near._socket.sendall(b"\x17\x03\x03\x00\x20" + b"x" * 10)
    near.shut_down()
    assert far.recv(10) == b""
    near.close()
    far.close()


# -- calls that do not wait --------------------------------------------------------------------------


@pytest.mark.usefixtures("build")
def test_a_pushed_frame_is_its_header_and_its_body_or_what_there_is_room_for() -> None:
    client, server = tcp_pair()
    near, far = PlainTransport(client), PlainTransport(server)
    assert near.send_frame_now(2**40, memoryview(b"records")) == 19
    assert take(far, 19) == bytes.fromhex("00000100000000000000000" + "7") + b"records"
    body = bytes(1 << 20)
    sent = [near.send_frame_now(5, body)]
    while sent[-1] == 12 + len(body):
        sent.append(near.send_frame_now(5, body))
    while near.send_frame_now(5, body):
        pass
    assert near.send_frame_now(5, body) == 0, "nobody waits"
    far.shut_down()
    far.close()
    with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
        near.send_frame_now(5, body)
    near.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        near.send_frame_now(5, body)


REFUSED = {
    "a certificate of another root": lambda: (certificates().stranger, certificates().stranger_key),
    "a certificate whose time is over": lambda: signed("old", days=-1),
}


@pytest.mark.parametrize("who", REFUSED)
@pytest.mark.parametrize("side", ["master", "slave"])
def test_both_sides_check_the_other_ones_certificate(side: str, who: str, aside: Aside) -> None:
    cert, key = REFUSED[who]()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if side == "slave" else ssl.PROTOCOL_TLS_SERVER)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(cert, key)
    client, server = tcp_pair()
    ours = broker_certificates()
    if side == "slave":
        bad, good = TlsTransport(client, context, server_side=False), ours.accepted(server)
    else:
        bad, good = TlsTransport(server, context, server_side=True), ours.connected(client)
    refused = aside(bad.recv, 10)
    with pytest.raises(HandshakeFailed, match="the peer's certificate is not trusted"):
        good.handshake()
    good.shut_down()
    with suppress(OSError):
        assert refused.result(PATIENCE_S) == b""
    bad.close()
    good.close()


def test_a_slave_without_a_certificate_is_refused(aside: Aside) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(certificates().root)
    client, server = tcp_pair()
    bad, good = TlsTransport(client, context, server_side=False), broker_certificates().accepted(server)
    refused = aside(bad.recv, 10)
    with pytest.raises(HandshakeFailed, match="peer did not return a certificate"):
        good.handshake()
    with pytest.raises(OSError, match=r"the peer says: .*certificate required"):
        refused.result(PATIENCE_S)
    bad.close()
    good.close()
