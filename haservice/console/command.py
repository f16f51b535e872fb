"""The entry point `mqconsole`: says what to install where the extra is missing."""

from __future__ import annotations

import importlib
import sys

from haservice import __version__

EXTRA = ("jinja2", "markupsafe", "starlette", "uvicorn")


def main() -> None:
    try:
        cli = importlib.import_module("haservice.console.cli")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in EXTRA:
            raise
        if sys.argv[1:] == ["--version"]:
            print(f"haservice {__version__}")
            return
        sys.exit(f"mqconsole needs {error.name}: pip install 'haservice[console]'")
    cli.mqconsole()
