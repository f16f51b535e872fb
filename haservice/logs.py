"""Logging: set up once per process, from a YAML file or from the default below.

The file has the form of logging.config.dictConfig; conf/logging.yml is one.  `configure` expands `~` in
the names of log files and creates their directories.

Code logs text from outside (names, remarks, properties, texts of exceptions) as it came.  PrintableFormatter
escapes it, whatever formatters the file names: a record is one line; further lines begin with CONTINUED.  It cuts
a value of more than VALUE_CHARACTERS, and a line of more than LINE_CHARACTERS.

Standard error that is a file, as under nohup, is rotated.  `configure` may be called again: it opens all files
anew, so that those that were moved meanwhile are let go.
"""

from __future__ import annotations

import copy
import functools
import logging.config
import os
import stat
from collections.abc import Mapping
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from haservice.configuration.config import read_yaml
from haservice.configuration.texts import expanded
from haservice.errors import ConfigError
from haservice.printable import escaped

LINE = "%(asctime)s %(levelname)s %(threadName)s %(name)s - %(message)s"

# None of our formatters begins a record so.
CONTINUED = "    | "

# Of one value in a record: a name and its list fit, a body does not.  And of a line, whatever it is made of.
VALUE_CHARACTERS = 1024
LINE_CHARACTERS = 16 * 1024

# As conf/logging.yml advises for a file of its own.
FILE_BYTES = 64 * 1024 * 1024
FILES_KEPT = 9

# Standard error, so that standard output carries only what scripts read.
DEFAULT: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": LINE}},
    "handlers": {"stderr": {"()": "haservice.logs.standard_error", "formatter": "line"}},
    "root": {"level": "INFO", "handlers": ["stderr"]},
}


def configure(path: str | Path | None = None) -> None:
    """Applies the file at `path`, or the default.  Raises ConfigError naming the file; what was in force stays."""
    if path is None:
        Configurator(copy.deepcopy(DEFAULT)).configure()
        return
    settings = read_yaml(path)
    if not isinstance(settings, dict):
        raise ConfigError(str(path), 0, "", "not a mapping: see conf/logging.yml for an example")
    _place_files(settings)
    try:
        Configurator({"version": 1, "disable_existing_loggers": False, **settings}).configure()
    except (ValueError, TypeError, AttributeError, ImportError, KeyError, OSError) as error:
        cause = error.__cause__ or error
        raise ConfigError(
            str(path), 0, "", f"{error}: {cause}" if cause is not error else str(error)
        ) from error


def standard_error() -> logging.Handler:
    """Writes to standard error; rotates it if it is a file."""
    path = _stderr_file()
    return logging.StreamHandler() if path is None else StandardErrorFile(path)


class StandardErrorFile(RotatingFileHandler):
    """The file that standard error was redirected to.  What else writes there follows to the new file."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path, backupCount=FILES_KEPT, encoding="utf-8", errors="backslashreplace", delay=True
        )
        self.maxBytes = FILE_BYTES
        self.stream = self._open()

    def doRollover(self) -> None:  # noqa: N802
        """Another process that writes here may have moved the file already."""
        if _is_at(Path(self.baseFilename), 2):
            try:
                super().doRollover()
                self.maxBytes = FILE_BYTES
            except (
                OSError
            ) as error:  # one file more that is open, a disk that is full just now: tried again later
                self.maxBytes += FILE_BYTES
                logging.getLogger(__name__).warning("the log cannot be rotated yet reason=%s", error)
        elif self.stream is not None:
            self.stream.close()
            self.stream = self._open()

    def _open(self) -> TextIOWrapper:
        opened = super()._open()
        both = os.path.samestat(os.fstat(1), os.fstat(2))
        for fd in (1, 2) if both else (2,):
            os.dup2(opened.fileno(), fd)
        return opened


@functools.cache
def _stderr_file() -> Path | None:
    """As it was at the start: after a move the system gives the new name."""
    try:
        path = Path("/proc/self/fd/2").readlink()
        return path if stat.S_ISREG(os.fstat(2).st_mode) and _is_at(path, 2) else None
    except OSError:
        return None


def _is_at(path: Path, fd: int) -> bool:
    """Whether `path` still names the file that is open as `fd`."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except OSError:
        return False


class Configurator(logging.config.DictConfigurator):
    """Gives each handler its PrintableFormatter before the handler has a logger."""

    def configure_handler(self, config: dict[str, Any]) -> logging.Handler:
        handler = super().configure_handler(config)
        if not isinstance(handler, logging.Handler) or isinstance(handler.formatter, PrintableFormatter):
            return handler
        handler.setFormatter(PrintableFormatter(handler.formatter))
        return handler


class PrintableFormatter(logging.Formatter):
    """Another formatter's text, in which nothing that came from outside passes for a record, or fills the disk."""

    def __init__(self, inner: logging.Formatter | None) -> None:
        super().__init__()
        self.inner = inner if inner is not None else logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        shown = copy.copy(record)
        shown.args = _cut_values(record.args)
        shown.msg, shown.args = _one_line(shown.getMessage()), None
        shown.threadName = escaped(record.threadName or "")
        shown.exc_text = None  # another handler's, perhaps
        first, *rest = self.inner.format(shown).split("\n")
        return "\n".join((_one_line(first), *(f"{CONTINUED}{_one_line(line)}" for line in rest)))


def _one_line(text: str) -> str:
    return escaped(_cut(text, LINE_CHARACTERS))


def _cut_values(args: Any) -> Any:
    """The values of a record, those that are too long as texts that are not."""
    if isinstance(args, tuple):
        return tuple(map(_cut_value, args))
    return {name: _cut_value(value) for name, value in args.items()} if isinstance(args, Mapping) else args


def _cut_value(value: object) -> object:
    if isinstance(value, int | float):
        return value
    text = value if isinstance(value, str) else str(value)
    return value if len(text) <= VALUE_CHARACTERS else _cut(text, VALUE_CHARACTERS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} characters more)"


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
