"""Logging: set up once per process, from a YAML file or from the default below.

The file is what logging.config.dictConfig takes; conf/logging.yml is one.  Log files it names are
created with their directories, `~` expanded.
"""

from __future__ import annotations

import logging.config
from pathlib import Path
from typing import Any

from haservice.binding import expanded
from haservice.config import read_yaml
from haservice.errors import ConfigError

LINE = "%(asctime)s %(levelname)s %(threadName)s %(name)s - %(message)s"

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
