"""Guard: what every request passes, and what every answer says to browsers.  ASGI, around all pages.

    Host          an IP address, localhost, or the name of --public-url: another name was made to lead here by a
                  stranger's page (DNS rebinding)
    Origin        of all but GET and HEAD: this console itself, else another site's page sent it; over TLS https
    over TLS      a browser is told to come by TLS only, where name and port of --public-url are the console's alone
    answers       no scripts, styles or frames but our own, nothing kept in caches, no address told to other sites

Pages have no websocket; one that is asked for is refused.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from haservice.console.settings import ConsoleSettings, name_of

SAFE = ("GET", "HEAD")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # Without the address of a page, other sites learn nothing; our own forms still say where they come from.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
STRICT_TRANSPORT = "max-age=31536000"
NO_STORE = "no-store"
# Files that browsers may keep, and ask about each time.
STATIC, ASK_AGAIN = "/static/", "no-cache"


class Guard:
    def __init__(self, app: ASGIApp, settings: ConsoleSettings) -> None:
        self._app = app
        self._settings = settings
        self._names = {"localhost", settings.public_name} - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if self._settings.wants_tls_only(Headers(scope=scope).get("host", "")):
                    headers["Strict-Transport-Security"] = STRICT_TRANSPORT
                headers["Cache-Control"] = ASK_AGAIN if scope["path"].startswith(STATIC) else NO_STORE
            await send(message)

        why = self._refusal(scope["method"], Headers(scope=scope))
        answer = self._app if not why else PlainTextResponse(f"{why}\n", 403)
        await answer(scope, receive, guarded)

    def _refusal(self, method: str, headers: Headers) -> str:
        """Why the request is not looked at; "" if it is."""
        host = headers.get("host", "")
        if not self._is_own(host):
            return (
                f"this console has no name {host[:100]!r}: use its IP address, or start it with --public-url"
            )
        if method in SAFE:
            return ""
        origin = headers.get("origin", "")
        scheme, netloc = urlsplit(origin)[:2]
        is_plain = scheme != "https" and self._settings.is_secure(host)
        if not origin or netloc.lower() != host.lower() or is_plain:
            return "a change is taken from the console's own pages only (Origin)"
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return "a change is taken from the console's own pages only (Sec-Fetch-Site)"
        return ""

    def _is_own(self, host: str) -> bool:
        name = name_of(host)
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
