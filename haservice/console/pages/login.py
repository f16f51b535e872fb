"""Login and logout, with the brokers' accounts.  These pages ask for no session."""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from haservice.client.options import Credentials
from haservice.console.asking import TooBusy, TooSlow
from haservice.console.console import DOOR_S, Console
from haservice.console.doors.verification import DoorState, LoginRefused, verify
from haservice.console.rendering import render
from haservice.console.visit import (
    PageRefused,
    check_door,
    client_address,
    common_facts,
    cookie_name,
    form_of,
    is_secure,
)
from haservice.printable import escaped
from haservice.terminal.output import human_seconds

logger = logging.getLogger(__name__)

KEY_CHARACTERS_MAX = 256


async def show(request: Request) -> Response:
    console: Console = request.app.state.console
    door = await console.door()
    try:
        check_door(console, door)
    except PageRefused as refused:
        return _form(console, request, refused.text, refused.status)
    if door.state is not DoorState.LOGIN:
        return RedirectResponse("/", 303)
    return _form(console, request)


async def log_in(request: Request) -> Response:
    console: Console = request.app.state.console
    try:
        fields = await form_of(request)
    except PageRefused as refused:
        return _form(console, request, refused.text, refused.status)
    address, access_key = client_address(request), fields.get("access_key", "").strip()
    secret_key = fields.get("secret_key", "")
    if not access_key or not secret_key or max(len(access_key), len(secret_key)) > KEY_CHARACTERS_MAX:
        return _form(console, request, "Give the access key and the secret key of an account.", 400)
    wait_s = console.throttle.wait_s(address, access_key)
    if wait_s > 0:
        text = f"Too many attempts failed: try again in {human_seconds(wait_s)}."
        return _form(console, request, text, 429, {"Retry-After": str(int(wait_s) + 1)})
    door = await console.door()
    if door.state is DoorState.UNKNOWN:
        return _form(console, request, f"Not logged in: nobody can say who this is, for {door.why}.", 503)
    if door.state is DoorState.OPEN:
        return RedirectResponse("/", 303)
    account = Credentials(access_key, secret_key)
    # Counted before it is looked at: many attempts at once are many.
    console.throttle.failed(address, access_key)
    try:
        known_at = await console.doors.ask(DOOR_S, verify, console.settings, account, door.strict)
    except LoginRefused as refused:
        if not refused.counts:
            console.throttle.succeeded(address, access_key)
        logger.warning("login refused peer=%s accessKey=%s reason=%s", address, escaped(access_key), refused)
        return _form(console, request, f"Not logged in: {refused}.", 403)
    except (TooBusy, TooSlow) as error:
        return _form(console, request, f"Not logged in: {error}.", 503)
    console.throttle.succeeded(address, access_key)
    logger.info("logged in peer=%s accessKey=%s", address, escaped(access_key))
    console.sessions.close(request.cookies.get(cookie_name(console), ""))
    answer = RedirectResponse(_own_path(request.query_params.get("next", "/")), 303)
    answer.set_cookie(
        cookie_name(console),
        console.sessions.open(account, known_at),
        httponly=True,
        samesite="lax",
        secure=is_secure(console, request),
        path="/",
    )
    return answer


async def log_out(request: Request) -> Response:
    console: Console = request.app.state.console
    console.sessions.close(request.cookies.get(cookie_name(console), ""))
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(cookie_name(console), path="/")
    return answer


def _own_path(path: str) -> str:
    """Where to go on: a page of ours, never another site."""
    if not path.startswith("/") or path.startswith(("//", "/\\", "/login", "/logout")):
        return "/"
    return path


def _form(
    console: Console,
    request: Request,
    text: str = "",
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> Response:
    facts = common_facts(console, request, "Log in")
    after = _own_path(request.query_params.get("next", "/"))
    return HTMLResponse(render("login.html", {**facts, "text": text, "after": after}), status, headers)


ROUTES = (
    Route("/login", show, methods=["GET"]),
    Route("/login", log_in, methods=["POST"]),
    Route("/logout", log_out, methods=["POST"]),
)
