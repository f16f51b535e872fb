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


@pytest.mark.parametrize(
    "secret", ["*p4ssw0rd", "!p4ssw0rd", "!it's-p4ssw0rd", "!p4!ssw0rd x", "!!int p4ssw0rd"]
)
def test_a_secret_that_is_not_quoted_is_not_told(tmp_path: Path, secret: str) -> None:
    path = tmp_path / "tools.yml"
    path.write_text(f"accessKey: some-key\nsecretKey: {secret}\n")
    with pytest.raises(ConfigError) as refused:
        YamlDocument(path)
    assert "p4" not in str(refused.value)
    assert "ssw0rd" not in str(refused.value)
    assert "quote a text that begins with * & or !" in str(refused.value)


def test_what_yaml_expected_is_told(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text("a: [1")
    with pytest.raises(ConfigError, match="expected ',' or ']', but got '<stream end>'"):
        YamlDocument(path)
