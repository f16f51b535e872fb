from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from haservice.broker.metadata.persistence import Persistence, by_version
from haservice.deadline import Deadline
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import DataVersion
from haservice.service import Service
from tests.support.waiting import wait_until


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    assert PersistedFile(tmp_path / "config" / "t.json").load(json.loads) is None
    assert PersistedFile(tmp_path / "config" / "t.json").save(lambda: b'{"a":1}')
    assert PersistedFile(tmp_path / "config" / "t.json").load(json.loads) == {"a": 1}


def test_the_backup_is_the_content_before(tmp_path: Path) -> None:
    file = PersistedFile(tmp_path / "t.json")
    file.save(lambda: b"[1]")
    file.save(lambda: b"[2]")
    assert (tmp_path / "t.json").read_bytes() == b"[2]"
    assert (tmp_path / "t.json.bak").read_bytes() == b"[1]"
    assert not (tmp_path / "t.json.tmp").exists()


def test_the_same_content_is_not_written_again(tmp_path: Path) -> None:
    file = PersistedFile(tmp_path / "t.json")
    assert file.save(lambda: b"[1]")
    assert not file.save(lambda: b"[1]")
    assert not (tmp_path / "t.json.bak").exists()


@pytest.mark.parametrize("name", ["t.json", "t.json.bak", "t.json.crc"])
def test_a_directory_in_its_place_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    file = PersistedFile(tmp_path / "t.json")
    for use in (
        lambda: file.load(json.loads),
        lambda: (file.save(lambda: b"[1]"), file.save(lambda: b"[2]")),
    ):
        with pytest.raises(IsADirectoryError) as refused:
            use()
        assert str(tmp_path / name) in str(refused.value)


@pytest.mark.parametrize("damage", [b"", b"  \n", b'{"a":', b"\xff\xfe"])
def test_a_damaged_file_falls_back_and_never_becomes_the_backup(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "t.json").write_bytes(damage)
    (tmp_path / "t.json.bak").write_bytes(b"[1]")
    file = PersistedFile(tmp_path / "t.json")
    assert file.load(json.loads) == [1]
    file.save(lambda: b"[2]")
    assert (tmp_path / "t.json.bak").read_bytes() == b"[1]"
    assert file.load(json.loads) == [2]


def test_a_missing_file_falls_back(tmp_path: Path) -> None:
    (tmp_path / "t.json.bak").write_bytes(b"[1]")
    assert PersistedFile(tmp_path / "t.json").load(json.loads) == [1]


def test_a_disk_that_refuses_leaves_the_old_file(tmp_path: Path) -> None:
    file = PersistedFile(tmp_path / "t.json")
    file.save(lambda: b"[1]")
    (tmp_path / "t.json.tmp").mkdir()
    with pytest.raises(OSError, match=r"t\.json\.tmp"):
        file.save(lambda: b"[2]")
    assert file.load(json.loads) == [1]
    (tmp_path / "t.json.tmp").rmdir()
    assert file.save(lambda: b"[2]")


def test_the_slower_of_two_savers_puts_no_older_table_over_a_newer_one(tmp_path: Path) -> None:
    file = PersistedFile(tmp_path / "t.json")
    looked, go_on = threading.Event(), threading.Event()

    def older() -> bytes:
        looked.set()
        assert go_on.wait(10)
        return b"[1]"

    with ThreadPoolExecutor(2) as pool:
        slower = pool.submit(file.save, older)
        assert looked.wait(10)
        newer = pool.submit(file.save, lambda: b"[2]")
        wait([newer], 0.05)  # time enough to come first, if that were possible
        go_on.set()
        assert slower.result(10)
        assert newer.result(10)
    assert file.load(json.loads) == [2]


def test_a_table_that_fails_does_not_keep_the_others_from_the_disk() -> None:
    written = threading.Event()

    def refuse() -> bool:
        raise OSError("no space")

    def write() -> bool:
        written.set()
        return True

    persistence = Persistence({"a": refuse, "b": write}, interval_s=3600)
    service = Service("broker-persist", persistence)
    service.start()
    try:
        persistence.soon()
        wait_until(written.is_set, "the second table was written")
    finally:
        assert service.stop(Deadline(5))
    assert service.failed is None


def test_a_mistake_in_one_table_keeps_no_other_from_its_file() -> None:
    written: list[str] = []

    def wrong() -> bool:
        raise KeyError("a mistake")

    def right() -> bool:
        written.append("right")
        return True

    Persistence({"wrong": wrong, "right": right}, 1.0).persist()
    assert written == ["right"]


def test_a_table_of_the_same_version_is_not_encoded_again() -> None:
    version, calls = DataVersion(1, 1), []

    def persist() -> bool:
        calls.append(version)
        if len(calls) == 2:
            raise OSError("no space")
        return True

    tried = by_version(persist, lambda: version)
    assert tried()
    assert not tried()
    version = DataVersion(2, 1)
    with pytest.raises(OSError, match="no space"):
        tried()
    assert tried()
    assert not tried()
    assert calls == [DataVersion(1, 1), DataVersion(2, 1), DataVersion(2, 1)]
