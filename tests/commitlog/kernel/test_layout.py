"""The one table: what C has of it, and what RocketMQ 4.9.8 has instead."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from commitlog.kernel import layout
from commitlog.kernel.records import NewMessage, decode, encode, encode_host, stamp

HEADER = Path(layout.__file__).parent / "core" / "layout.h"
V4, V6 = encode_host("10.0.0.1", 1), encode_host("::1", 1)


def test_the_header_for_c_is_what_the_table_prints() -> None:
    assert HEADER.read_text() == layout.c_header(), "python -m commitlog.kernel.layout > " + str(HEADER)


def test_a_compiler_reads_the_same_numbers(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    names = re.findall(r"^#define (HS_\w+) ", HEADER.read_text(), re.MULTILINE)
    prints = "".join(f'printf("{name} %lld\\n", (long long){name});' for name in names)
    source = tmp_path / "say.c"
    source.write_text(f'#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{ {prints} return 0; }}\n')
    subprocess.run([compiler, "-o", tmp_path / "say", source], check=True)
    said = subprocess.run([tmp_path / "say"], capture_output=True, text=True, check=True).stdout
    values = {name: int(value) for name, value in (line.split() for line in said.splitlines())}
    assert {name: values[f"HS_AT_{name.upper()}"] for name in layout.AT} == layout.AT
    assert values["HS_RECORD_BYTES_MIN"] == layout.RECORD_BYTES_MIN
    assert values["HS_MAGIC"] == layout.MESSAGE_MAGIC & 0xFFFFFFFF


# CommitLog.calMsgLength and MessageDecoder of 4.9.8: 88 bytes before an IPv4 body, 91 with topic and properties
# sizes; each host of IPv6 is 12 longer.  Places: MessageDecoder's *_POSITION.
@pytest.mark.parametrize(
    ("kind", "before_the_body"),
    [
        (0, 88),
        (layout.SYS_BORN_HOST_V6, 100),
        (layout.SYS_STORE_HOST_V6, 100),
        (layout.SYS_HOSTS_V6, 112),
    ],
)
def test_heads_are_as_long_as_rocketmqs(kind: int, before_the_body: int) -> None:
    assert layout.BODY_AT[kind] == layout.FULL[kind].size == layout.HEADS[kind].size == before_the_body
    assert layout.offsets(kind)["body"] == before_the_body
    assert layout.FULL_BY_SIZES[layout.host_bytes(kind)] == (kind, layout.FULL[kind])


def test_fields_are_where_rocketmq_has_them() -> None:
    assert layout.RECORD_BYTES_MIN == 91
    assert {name: layout.AT[name] for name in ("magic", "flag", "sys_flag", "body_size")} == {
        "magic": 4,  # MESSAGE_MAGIC_CODE_POSITION
        "flag": 16,  # MESSAGE_FLAG_POSITION
        "sys_flag": 36,  # SYSFLAG_POSITION
        "body_size": 84,  # BODY_SIZE_POSITION
    }
    assert layout.AT["physical_offset"] == 28  # MESSAGE_PHYSIC_OFFSET_POSITION
    assert layout.AT["store_timestamp"] == 56  # MESSAGE_STORE_TIMESTAMP_POSITION
    assert layout.MESSAGE_MAGIC == -626843481
    assert layout.BLANK_MAGIC == -875286124  # 0xBBCCDDEE ^ 1880681586 + 8
    sizes = (
        layout.QUEUE_ENTRY.size,
        layout.INDEX_HEADER.size,
        layout.INDEX_SLOT.size,
        layout.INDEX_ENTRY.size,
    )
    assert sizes == (20, 40, 4, 20)


def test_numpys_description_is_the_table_of_ipv4() -> None:
    dtype = np.dtype(layout.HEAD_DTYPE)
    assert dtype.itemsize == layout.BODY_AT[0]
    assert dtype.fields is not None
    assert {name: at for name, (_, at, *_) in dtype.fields.items()} == {
        name: at for name, at in layout.AT.items() if name != "body"
    }


@pytest.mark.parametrize(("born", "store"), [(V4, V4), (V6, V4), (V4, V6), (V6, V6)])
def test_each_field_is_read_back_from_its_place(born: bytes, store: bytes) -> None:
    message = NewMessage("T", 5, b"body", b"p\x01v", 6, 0, 77, born, 3, 9)
    record = encode(message, store)
    stamp(record, 11, 22, 33)
    kind = decode(record).sys_flag & layout.SYS_HOSTS_V6
    at = layout.offsets(kind)
    names = [field.name for field in layout.HEAD_FIELDS]
    whole = dict(zip(names, layout.FULL[kind].unpack_from(record), strict=True))
    for field in layout.HEAD_FIELDS:
        code = field.code if field.code != "host" else f"{len(whole[field.name])}s"
        assert struct.unpack_from(f">{code}", record, at[field.name]) == (whole[field.name],), field.name
    assert (whole["queue_offset"], whole["physical_offset"], whole["store_timestamp"]) == (11, 22, 33)
    assert (whole["born_host"], whole["store_host"]) == (born, store)
    assert record[at["body"] :][:4] == b"body"


def test_the_letters_of_a_topic_are_the_same_in_c_and_python() -> None:
    (table,) = re.findall(r"hs_topic_letters\[256\] = \{(.*?)\}", HEADER.read_text(), re.DOTALL)
    letters = [int(one) for one in table.replace("\n", "").split(",")]
    assert [bool(layout.TOPIC.fullmatch(bytes((byte,)))) for byte in range(256)] == list(map(bool, letters))
