"""KvConfig: namespace → key → value, kept in one JSON file that is replaced whole on every change.

    {"configTable":{"ORDER_TOPIC_CONFIG":{"TopicA":"broker-a:4;broker-b:4"}}}

The form and the place are RocketMQ's.  The previous content stays as `.bak`; it is read when the file itself
is missing or empty.  Only a person can mend a file that cannot be understood.
"""

from __future__ import annotations

import threading
from pathlib import Path

import orjson

from haservice.errors import ConfigError, RequestError
from haservice.persisted_file import PersistedFile
from haservice.remoting.codes import ResponseCode

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"

# Anybody may put, and each put writes the whole file: it has to stay small.
FILE_BYTES_MAX = 4 * 1024 * 1024
TEXT_BYTES_MAX = 64 * 1024

Table = dict[str, dict[str, str]]


class KvConfig:
    """Any thread may read.  Changes wait for the disk: call them from a thread that may block."""

    def __init__(self, path: Path) -> None:
        """Loads the file.  Raises ConfigError when it is there and unreadable, or not such a table."""
        self._stored = PersistedFile(path)
        # Guards a change of table and file together.  A change replaces the table, so readers see whole ones.
        self._lock = threading.Lock()
        self._table: Table = self._load()

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """A copy of the whole namespace; None if it does not exist."""
        values = self._table.get(namespace)
        return dict(values) if values is not None else None

    def put(self, namespace: str, key: str, value: str) -> None:
        """Raises RequestError when the file gets too large or the disk refuses; nothing has changed then."""
        for what, text in (("namespace", namespace), ("key", key), ("value", value)):
            size = len(text.encode("utf-8", "surrogatepass"))
            if size > TEXT_BYTES_MAX:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR, f"{what} has {size} bytes, at most {TEXT_BYTES_MAX} are kept"
                )
        with self._lock:
            values = {**self._table.get(namespace, {}), key: value}
            self._replace({**self._table, namespace: values})

    def delete(self, namespace: str, key: str) -> None:
        """Does nothing when the key is not there.  An empty namespace stays, as in RocketMQ."""
        with self._lock:
            values = dict(self._table.get(namespace, {}))
            if values.pop(key, None) is not None:
                self._replace({**self._table, namespace: values})

    def _replace(self, table: Table) -> None:
        assert self._lock.locked()
        try:
            content = orjson.dumps({"configTable": table}, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"cannot be written as JSON: {error}") from None
        if len(content) > FILE_BYTES_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the key-value configuration would have {len(content)} bytes, the limit is {FILE_BYTES_MAX}",
            )
        try:
            self._stored.save(lambda: content)
        except OSError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{self._stored.path} cannot be written: {error.strerror or error}"
            ) from error
        self._table = table

    def _load(self) -> Table:
        try:
            return self._stored.load(lambda content: _parse(content, str(self._stored.path))) or {}
        except OSError as error:
            raise ConfigError(
                str(self._stored.path), 0, "", f"cannot be read: {error.strerror or error}"
            ) from None


def _parse(content: bytes, source: str) -> Table:
    try:
        table = orjson.loads(content).get("configTable") or {}
        return {
            str(namespace): {str(key): str(value) for key, value in values.items()}
            for namespace, values in table.items()
        }
    except (orjson.JSONDecodeError, AttributeError) as error:
        raise ConfigError(source, 0, "", f"not a key-value configuration: {error}") from None
