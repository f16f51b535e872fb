"""YAML files: whatever is in them, an error names the file and, where it is known, the line."""

from pathlib import Path

import pytest

from haservice.configuration.yaml_document import YamlDocument
from haservice.errors import ConfigError


@pytest.mark.parametrize(
    "text", ["!!int", "!!bool", "!!timestamp", "a: [1", "{[]: 1}", "2026-02-31", "a: !!python/none x"]
)
def test_what_is_no_yaml_that_can_be_used_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"plain_acl\.yml"):
        YamlDocument(path)
