"""The application: all pages behind the guard.

A module of pages has ROUTES, and SECTION if the navigation names it; it is listed in MODULES.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from haservice.console.console import Console
from haservice.console.doors.guard import Guard
from haservice.console.pages import (
    accounts,
    configuration,
    connections,
    dead_letters,
    groups,
    login,
    messages,
    overview,
    pair,
    role_changes,
    topics,
    waiting,
)
from haservice.console.rendering import render
from haservice.console.visit import common_facts

STATIC = Path(__file__).with_name("static")

# In the order of the navigation.
MODULES = (
    overview,
    pair,
    role_changes,
    topics,
    groups,
    messages,
    dead_letters,
    waiting,
    connections,
    accounts,
    configuration,
)


def application(console: Console) -> ASGIApp:
    """Starts and stops the console as the server does with its lifespan."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        console.start()
        try:
            yield
        finally:
            await console.stop()

    async def not_found(request: Request, _: Exception) -> Response:
        facts = common_facts(console, request, "No such page")
        return HTMLResponse(render("trouble.html", {**facts, "text": "There is no such page."}), 404)

    async def our_fault(request: Request, _: Exception) -> Response:
        facts = common_facts(console, request, "A fault of the console")
        text = "The console has made a mistake; its log has the details."
        return HTMLResponse(render("trouble.html", {**facts, "text": text}), 500)

    routes = [
        Mount("/static", StaticFiles(directory=STATIC)),
        *login.ROUTES,
        *(route for module in MODULES for route in module.ROUTES),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: not_found, 500: our_fault})
    app.state.console = console
    app.state.sections = [module.SECTION for module in MODULES if hasattr(module, "SECTION")]
    return Guard(app, console.settings)
