"""What a running broker refuses, for its next start would fail with it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from haservice.broker.metadata.next_start import check_store
from haservice.configuration.properties import parse
from haservice.configuration.settings import NodeConfig
from haservice.errors import ConfigError
from tests.support.brokers import node_config


def following(running: NodeConfig, **log: Any) -> NodeConfig:
    return dataclasses.replace(running, source="b.properties", log=dataclasses.replace(running.log, **log))


def test_another_store_may_have_other_sizes(tmp_path: Path) -> None:
    running = node_config(tmp_path / "store")
    other = following(running, root=tmp_path / "new", segment_bytes=4096, index_slots=7)
    check_store(running, other, parse("mappedFileSizeCommitLog=4096\nmaxHashSlotNum=7\n", "request"))


def test_back_at_the_running_store_the_sizes_in_the_file_count_again(tmp_path: Path) -> None:
    running = node_config(tmp_path / "store")
    back = following(running, segment_bytes=4096)
    with pytest.raises(ConfigError, match=r"b\.properties: mappedFileSizeCommitLog=4096: .*has 65536"):
        check_store(running, back, parse(f"storePathRootDir={tmp_path / 'store'}\n", "request"))


def test_what_was_not_asked_for_is_a_persons_at_the_file(tmp_path: Path) -> None:
    running = node_config(tmp_path / "store")
    check_store(running, following(running, segment_bytes=4096), parse("traceOn=false\n", "request"))


@pytest.mark.parametrize("key", ["storePathRootDir", "storePathCommitLog"])
def test_a_store_is_not_put_where_a_file_is(tmp_path: Path, key: str) -> None:
    running, file = node_config(tmp_path / "store"), tmp_path / "file"
    file.write_text("")
    for path in (file, file / "below"):
        log = {"root": path} if key == "storePathRootDir" else {"commit_log_path": path}
        with pytest.raises(ConfigError, match=re.escape(f"{key}={path}: {file} is a file, and no directory")):
            check_store(running, following(running, **log), parse(f"{key}={path}\n", "request"))
    log = {"root": tmp_path / "new"} if key == "storePathRootDir" else {"commit_log_path": tmp_path / "new"}
    check_store(running, following(running, **log), parse(f"{key}={tmp_path / 'new'}\n", "request"))
