"""What the guard refuses and adds where browsers come over TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from haservice.console.doors.guard import Guard
from haservice.console.settings import ConsoleSettings


def ask(guard: Guard, method: str = "GET", **headers: str) -> tuple[int, dict[str, str]]:
    """Status and headers of the answer."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": "/", "headers": named, "query_string": b""}
    asyncio.run(guard(scope, receive, send))
    told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], told


def guarded(url: str = "https://console.example", cert: Path | None = None) -> Guard:
    return Guard(PlainTextResponse("page"), ConsoleSettings(("a:1",), public_url=url, cert=cert))


PLAIN = "http://console.example"
CERT = Path("cert.pem")


@pytest.mark.parametrize(
    ("guard", "host", "origin", "status"),
    [
        (guarded(), "console.example:8443", "https://console.example:8443", 200),
        (guarded(), "console.example:8443", "http://console.example:8443", 403),
        (guarded(PLAIN), "console.example:8443", "http://console.example:8443", 200),
        (guarded(), "console.example:8443", "https://other.example:8443", 403),
        # Through a tunnel, past the proxy that ends TLS.
        (guarded(), "127.0.0.1:8080", "http://127.0.0.1:8080", 200),
        (guarded(), "localhost:8080", "http://localhost:8080", 200),
        (guarded(cert=CERT), "127.0.0.1:8080", "http://127.0.0.1:8080", 403),
        (guarded(cert=CERT), "127.0.0.1:8080", "https://127.0.0.1:8080", 200),
    ],
)
def test_over_tls_a_change_comes_from_a_page_over_tls(
    guard: Guard, host: str, origin: str, status: int
) -> None:
    assert ask(guard, "POST", host=host, origin=origin)[0] == status


@pytest.mark.parametrize(
    ("guard", "host", "told"),
    [
        (guarded(), "console.example", True),
        (guarded("https://console.example:443"), "console.example", True),
        (guarded(PLAIN), "console.example", False),
        # It would count for whatever else listens there.
        (guarded("https://console.example:8443"), "console.example:8443", False),
        (guarded("https://localhost"), "localhost", False),
        (guarded(cert=CERT), "127.0.0.1:8443", False),
    ],
)
def test_a_browser_is_told_to_come_by_tls_only(guard: Guard, host: str, told: bool) -> None:
    status, headers = ask(guard, host=host)
    assert status == 200
    assert ("strict-transport-security" in headers) == told
