"""YAML files that people write and programs change: read with line numbers, written whole.

RocketMQ keeps its access control in YAML 1.1, read by SnakeYAML; PyYAML reads and writes the same.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from haservice.configuration.config import read_text
from haservice.errors import ConfigError

# What a problem quotes from the file; a single character and the name of a token are no secrets.
_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
_HARMLESS = re.compile(r"""(['"])(?:\\?.|<[a-z -]+>)\1""")


class YamlDocument:
    """One file as it was when it was read: `data` in plain Python values, None when there is none."""

    def __init__(self, path: str | Path, text: str | None = None) -> None:
        """Raises ConfigError, naming the line, when the file cannot be read or is not YAML.

        With `text` the file is not read: `text` is, or will be, its content.
        """
        self.path = Path(path)
        text = read_text(path) if text is None else text
        try:
            self._tree = yaml.compose(text, Loader=yaml.SafeLoader)
            self.data: Any = yaml.safe_load(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = _without_words(getattr(error, "problem", None) or "not YAML")
            raise self._error(mark.line + 1 if mark else 0, problem) from None
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            # An impossible date, a key that cannot be hashed, a tag without its value, …
            raise self._error(
                0, f"not YAML that can be used: {type(error).__name__}: {_without_words(str(error))}"
            ) from None

    def line_of(self, *keys: str | int) -> int:
        """The line, counted from 1, that `keys` lead to: names in mappings, numbers in lists.

        If they lead nowhere, the line where they end: a line near by is better than none.
        """
        node = self._tree
        line = 0 if node is None else node.start_mark.line + 1
        for key in keys:
            if node is None:
                break
            line = node.start_mark.line + 1
            found = None
            if isinstance(node, yaml.MappingNode):
                for name, value in node.value:
                    if name.value == key:
                        line, found = name.start_mark.line + 1, value
            elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
                found = node.value[key]
                line = found.start_mark.line + 1
            node = found
        return line

    def error(self, reason: str, *keys: str | int) -> ConfigError:
        """An error to raise or to report: `reason`, at the place that `keys` lead to."""
        return self._error(self.line_of(*keys), reason)

    def _error(self, line: int, reason: str) -> ConfigError:
        return ConfigError(str(self.path), line, "", reason)


def _without_words(problem: str) -> str:
    """What is wrong, without the file's own words: any of them may be a secret."""
    cut = _QUOTED.sub(lambda found: found[0] if _HARMLESS.fullmatch(found[0]) else "…", problem)
    return cut if cut == problem else f"{cut}: quote a text that begins with * & or !"


def yaml_text(data: Any) -> str:
    """`data`, plain Python values, in block style and in its own order."""
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text
