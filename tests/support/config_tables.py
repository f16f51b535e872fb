"""The tables of docs/configuration.md, made from the dataclasses; a test compares them.

python -m tests.support.config_tables        writes them into the page
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from commitlog.options import LogOptions
from haservice.binding import option_text
from haservice.configuration.config import options_of
from haservice.configuration.security_settings import AclConfig, NameserverAclConfig, TlsConfig
from haservice.configuration.settings import BrokerConfig, NameserverConfig, RemotingConfig, ReplicationConfig

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
CLASSES: tuple[type[Any], ...] = (
    BrokerConfig,
    RemotingConfig,
    ReplicationConfig,
    LogOptions,
    AclConfig,
    TlsConfig,
    NameserverConfig,
    NameserverAclConfig,
)
# Defaults that depend on the machine, as a person would say them.
SPOKEN = {"brokerName": "host name", "brokerIP1": "local address", "brokerIP2": "local address"}


def default_text(key: str, field: dataclasses.Field[Any]) -> str:
    """The default as it would stand in a properties file, the home directory as ~."""
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        value = field.default
    if key in SPOKEN:
        return SPOKEN[key]
    text = option_text(key, value)
    return re.sub(rf"^{re.escape(str(Path.home()))}(?=/)", "~", text) if isinstance(value, Path) else text


def table(config_class: type[Any]) -> str:
    rows = ["| key | default | unit | meaning |", "| --- | --- | --- | --- |"]
    for key, _, field in options_of(config_class):
        default = default_text(key, field)
        shown = default if key in SPOKEN else f"`{default}`" if default else "–"
        rows.append(f"| `{key}` | {shown} | {field.metadata['unit']} | {field.metadata['doc']} |")
    return "\n".join(rows)


def with_tables(page: str) -> str:
    """The page with every table between its two markers made anew."""
    for config_class in CLASSES:
        name = config_class.__name__
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise AssertionError(f"docs/configuration.md lacks the markers {begin} and {end}")
        page = f"{before}{begin}\n{table(config_class)}\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
