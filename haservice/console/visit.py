"""Visit: one request of a browser, by somebody who was let in.  What a page is given.

    page("/topics", topics)                 a page; without a login the visitor is sent to log in
    live("/live/topics", topics_part)       a part of one, which the page fetches again and again by itself
    change("/topics/delete", delete)        a form is sent; only with --allow-changes

A handler is `async def topics(visit: Visit) -> Response`.  It asks brokers with `visit.ask(function, *args)`: the
function gets an MQAdmin first and runs in another thread.  Errors become pages here: handlers let them pass.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote

import click
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from commitlog.errors import CommitLogError
from haservice.client.errors import RouteUnknown
from haservice.console.asking import TooBusy, TooSlow
from haservice.console.console import Console
from haservice.console.doors.verification import DoorReport, DoorState
from haservice.console.questions.paging import OFFSET_MAX, whole
from haservice.console.rendering import render
from haservice.console.visitors import TooManyVisitors, Visitor
from haservice.errors import AnswerError, HAServiceError
from haservice.terminal.explain import ACL_REFUSAL

T = TypeVar("T")

ASK_S = 10.0
FORM_BYTES_MAX = 64 * 1024
FIELDS_MAX = 100


class NavEntry(NamedTuple):
    """An entry of the navigation; `below` is how the paths of its other pages begin, if not as its own."""

    title: str
    path: str
    below: str = ""

    def has(self, path: str) -> bool:
        return path == self.path or path.startswith(self.below or f"{self.path.rstrip('/')}/")


class PageRefused(HAServiceError):
    """What the visitor asked for is not to be had: `text` says why, in a page with this status."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.title = title
        self.text = text


class Visit:
    """Whoever asks, and for what; `path` are the parts of the path that the route names."""

    def __init__(self, request: Request, console: Console, visitor: Visitor, *, is_live: bool) -> None:
        self.request = request
        self.console = console
        self.visitor = visitor
        self.is_live = is_live

    @property
    def path(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.request.path_params.items()}

    def asked(self, name: str, default: str = "") -> str:
        """A value of the query, at most 1,000 characters of it."""
        return self.request.query_params.get(name, default)[:1000]

    def number(self, name: str, default: int | None, most: int = OFFSET_MAX) -> int:
        """A whole number of the query; `default` if it has none.  Raises PageRefused for what is no such number,
        and for none without a default."""
        text = self.asked(name).strip()
        if not text and default is not None:
            return default
        found = whole(text, -1, most)
        if found < 0:
            said = f"{text[:100]!r} is no {name}" if text else f"Which {name}?"
            raise PageRefused(400, "No such number", f"{said}: give a whole number from 0 to {most}.")
        return found

    @property
    def allows_changes(self) -> bool:
        return self.console.settings.allow_changes

    async def ask(self, function: Callable[..., T], *args: object, within_s: float = ASK_S) -> T:
        """What `function(admin, *args)` returns, which may block; it runs in another thread, and does not wait for a
        broker that is silent.

        Raises TooSlow, TooBusy, and what the function raises.
        """
        return await self.console.pages.ask(within_s, function, self.visitor.pages, *args)

    async def ask_as_mqadmin(self, within_s: float, function: Callable[..., T], *args: object) -> T:
        """As `ask`, but each question waits as long as in mqadmin."""
        return await self.console.pages.ask(within_s, function, self.visitor.admin, *args)

    async def form(self) -> dict[str, str]:
        """The fields of the form that was sent.  Raises PageRefused for one that is too large, or no form."""
        return await form_of(self.request)

    def page(self, template: str, title: str, status: int = 200, **facts: Any) -> HTMLResponse:
        """A page of its own, or, in `live`, the part that its template is."""
        return HTMLResponse(render(template, {**self._common(title), **facts}), status)

    def go(self, path: str) -> Response:
        """Sends the browser to another page of ours, after a form."""
        return RedirectResponse(path, 303)

    def _common(self, title: str) -> dict[str, Any]:
        return {
            **common_facts(self.console, self.request, title),
            "account": self.visitor.name,
        }


Handler = Callable[[Visit], Awaitable[Response]]


def common_facts(console: Console, request: Request, title: str) -> dict[str, Any]:
    """What the layout of every page shows."""
    return {
        "title": title,
        "here": own_link(request.url.path),
        "sections": request.app.state.sections,
        "account": "",
        "allows_changes": console.settings.allow_changes,
        "is_secure": is_secure(console, request),
    }


def own_link(path: str) -> str:
    """A link to this path here: browsers read //host/x, and /\\host/x as well, as a page of another host."""
    return f"/{quote(path.lstrip('/'))}"


def page(path: str, handler: Handler) -> Route:
    return Route(path, _serve(handler), methods=["GET"])


def live(path: str, handler: Handler) -> Route:
    return Route(path, _serve(handler, is_live=True), methods=["GET"])


def change(path: str, handler: Handler) -> Route:
    async def checked(visit: Visit) -> Response:
        if not visit.allows_changes:
            raise PageRefused(
                403, "Read-only", "This console changes nothing: it was started without --allow-changes."
            )
        return await handler(visit)

    return Route(path, _serve(checked), methods=["POST"])


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form.  Raises PageRefused."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES_MAX:
                raise PageRefused(413, "Too large", f"A form has at most {FORM_BYTES_MAX} bytes here.")
    except ClientDisconnect:
        raise PageRefused(400, "No form", "The form did not come whole.") from None
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise PageRefused(400, "No form", "What was sent is no form of these pages.") from None
    return dict(pairs)


def cookie_name(console: Console) -> str:
    """Cookies of one host are shared by its ports: consoles beside each other must not share it."""
    return f"mqconsole-{console.settings.port}"


def is_secure(console: Console, request: Request) -> bool:
    """Whether the browser came over TLS."""
    return console.settings.is_secure(request.headers.get("host", ""))


def client_address(request: Request) -> str:
    return "" if request.client is None else request.client.host


def _serve(handler: Handler, *, is_live: bool = False) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        console: Console = request.app.state.console
        visit = None
        try:
            visitor = await _let_in(console, request, is_live=is_live)
            if visitor is None:
                return _to_login(request, is_live=is_live)
            visit = Visit(request, console, visitor, is_live=is_live)
            return await handler(visit)
        except PageRefused as refused:
            return _trouble(console, request, visit, refused)
        except (HAServiceError, click.ClickException, CommitLogError, OSError) as error:
            return _trouble(console, request, visit, _refusal_of(error, visit))
        except ClientDisconnect:
            return Response(status_code=400)

    return serve


async def _let_in(console: Console, request: Request, *, is_live: bool) -> Visitor | None:
    """The visitor's account; None if a login is needed.  Raises PageRefused."""
    session = console.sessions.find(request.cookies.get(cookie_name(console), ""), used=not is_live)
    if session is not None:
        return console.visitor(session.account)
    door = await console.door()
    check_door(console, door)
    return None if door.state is DoorState.LOGIN else console.visitor(None)


def check_door(console: Console, door: DoorReport) -> None:
    """Raises PageRefused where neither a login nor the way without one is open."""
    if console.settings.is_local or console.settings.without_login or door.state is DoorState.LOGIN:
        return
    if door.state is DoorState.UNKNOWN:
        raise PageRefused(
            503,
            "No login yet",
            f"Nobody can say who may come in, for {door.why}.  Try again once one answers.",
        )
    raise PageRefused(
        403,
        "Closed",
        "The brokers have no access control, or let this machine in by its address: everybody who reaches this page"
        " could do what an operator can.  Set aclEnable=true there, let this console listen on 127.0.0.1, or start it"
        " with --without-login.",
    )


def _to_login(request: Request, *, is_live: bool) -> Response:
    if is_live:  # console.js then goes there with the whole page
        return Response(status_code=401)
    path = request.url.path if request.method == "GET" else "/"
    return RedirectResponse("/login" if path == "/" else f"/login?next={quote(path)}", 303)


def _refusal_of(error: Exception, visit: Visit | None) -> PageRefused:
    if isinstance(error, click.ClickException):
        return PageRefused(409, "Refused", error.format_message())
    if isinstance(error, RouteUnknown):
        return PageRefused(404, "Not there", str(error))
    if isinstance(error, TooBusy | TooManyVisitors):
        return PageRefused(503, "Busy", str(error))
    if isinstance(error, TooSlow):
        return PageRefused(504, "No answer", str(error))
    if isinstance(error, AnswerError) and ACL_REFUSAL in (error.remark or ""):
        who = visit.visitor.name if visit is not None else ""
        return PageRefused(403, "Not allowed", f"The account {who or 'nobody'} may not ask this: {error}")
    return PageRefused(502, "No good answer", str(error) or type(error).__name__)


def _trouble(console: Console, request: Request, visit: Visit | None, refused: PageRefused) -> Response:
    template = "part_trouble.html" if visit is not None and visit.is_live else "trouble.html"
    facts = common_facts(console, request, refused.title) if visit is None else visit._common(refused.title)
    # A part is shown in its place: console.js shows only what was answered with success.
    status = 200 if template.startswith("part_") else refused.status
    return HTMLResponse(render(template, {**facts, "text": refused.text}), status)
