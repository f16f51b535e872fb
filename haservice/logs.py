"""Logging: set up once per process, from a YAML file or from the default below.

The file has the form of logging.config.dictConfig; conf/logging.yml is one.  `configure` expands `~` in
the names of log files and creates their directories.

Code logs text from outside (names, remarks, properties, texts of exceptions) as it came.  PrintableFormatter
escapes it, whatever formatters the file names: a record is one line; further lines begin with CONTINUED.
"""

from __future__ import annotations

import copy
import logging.config
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from haservice.configuration.config import read_yaml
from haservice.configuration.texts import expanded
from haservice.errors import ConfigError
from haservice.printable import escaped

LINE = "%(asctime)s %(levelname)s %(threadName)s %(name)s - %(message)s"

# None of our formatters begins a record so.
CONTINUED = "    | "

# Standard error, so that standard output carries only what scripts read.
DEFAULT: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": LINE}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"level": "INFO", "handlers": ["stderr"]},
}


def configure(path: str | Path | None = None) -> None:
    """Applies the file at `path`, or the default.  Raises ConfigError naming the file."""
    _configure(path)
    for handler in _handlers():
        if not isinstance(handler.formatter, PrintableFormatter):
            handler.setFormatter(PrintableFormatter(handler.formatter))


class PrintableFormatter(logging.Formatter):
    """Another formatter's text, in which nothing that came from outside passes for a record."""

    def __init__(self, inner: logging.Formatter | None) -> None:
        super().__init__()
        self.inner = inner if inner is not None else logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        shown = copy.copy(record)
        shown.msg, shown.args = escaped(record.getMessage()), None
        shown.threadName = escaped(record.threadName or "")
        shown.exc_text = None  # another handler's, perhaps
        first, *rest = self.inner.format(shown).split("\n")
        return "\n".join((escaped(first), *(f"{CONTINUED}{escaped(line)}" for line in rest)))


def _handlers() -> Iterator[logging.Handler]:
    """Of all loggers, and those behind other handlers."""
    loggers = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    for logger in loggers:
        for handler in logger.handlers if isinstance(logger, logging.Logger) else ():
            yield handler
            if isinstance(target := getattr(handler, "target", None), logging.Handler):
                yield target


def _configure(path: str | Path | None) -> None:
    if path is None:
        logging.config.dictConfig(DEFAULT)
        return
    settings = read_yaml(path)
    if not isinstance(settings, dict):
        raise ConfigError(str(path), 0, "", "not a mapping: see conf/logging.yml for an example")
    _place_files(settings)
    try:
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, **settings})
    except (ValueError, TypeError, AttributeError, ImportError, KeyError, OSError) as error:
        cause = error.__cause__ or error
        raise ConfigError(
            str(path), 0, "", f"{error}: {cause}" if cause is not error else str(error)
        ) from error


def _place_files(settings: dict[str, Any]) -> None:
    """Expands `~` in every handler's filename and makes the directory it lies in."""
    handlers = settings.get("handlers")
    for handler in handlers.values() if isinstance(handlers, dict) else ():
        if isinstance(handler, dict) and isinstance(handler.get("filename"), str):
            file = Path(handler["filename"])
            try:
                file = expanded(file)
                file.parent.mkdir(parents=True, exist_ok=True)
            except (ValueError, OSError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                raise ConfigError(str(file), 0, "", f"cannot be logged to: {reason}") from None
            handler["filename"] = str(file)
