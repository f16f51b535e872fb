"""Sound records as rows: each column of a schema, in Arrow.  Pure; builds only the columns asked for."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from commitlog.kernel.layout import SYS_COMPRESSED
from haservice.pipeline.decode.bulk import Records
from haservice.pipeline.decode.counting import BODY_BYTES, STORE_BYTES
from haservice.pipeline.decode.schema import CORRUPT
from haservice.pipeline.decode.texts import Ints, slices

# SQL and Python have timestamps only for the years 1 to 9999.
_MS_MIN, _MS_MAX = -62_135_596_800_000, 253_402_300_799_999
# A body that unpacks to more than this stays packed, and is reported as damaged.
UNPACKED_BYTES_MAX = 64 << 20


def _timestamps(ms: Ints) -> pa.Array:
    """Null where the stored time is outside of the calendar."""
    impossible = (ms < _MS_MIN) | (ms > _MS_MAX)
    return pa.array(np.where(impossible, 0, ms) * 1000, pa.int64(), mask=impossible).cast(
        pa.timestamp("us", tz="UTC")
    )


_Builder = Callable[[Records], Any]
BUILDERS: dict[str, _Builder] = {
    "topic": lambda records: records.topics.strings(),
    "queueId": lambda records: records.queue_ids,
    "queueOffset": lambda records: records.queue_offsets,
    "physicalOffset": lambda records: records.physical_offsets,
    "storeSize": lambda records: records.sizes.astype(np.int32),
    "msgId": lambda records: records.message_ids(),
    "uniqKey": lambda records: records.properties.last(b"UNIQ_KEY"),
    "keys": lambda records: records.properties.last(b"KEYS"),
    "tags": lambda records: records.properties.last(b"TAGS"),
    "body": lambda records: slices(records.window.data, records.body_at, records.body_end),
    "properties": lambda records: records.properties.maps(),
    "flag": lambda records: records.field("flag"),
    "sysFlag": lambda records: records.field("sys_flag"),
    "bornTimestamp": lambda records: _timestamps(records.field("born_timestamp")),
    "storeTimestamp": lambda records: _timestamps(records.store_ms),
    "bornHost": lambda records: records.born_hosts(),
    "storeHost": lambda records: records.store_hosts(),
    "reconsumeTimes": lambda records: records.field("reconsume_times"),
    "preparedTransactionOffset": lambda records: records.field("prepared_offset"),
    "bodyCrcOk": lambda records: records.sums_match,
    BODY_BYTES: lambda records: records.body_end - records.body_at,
    STORE_BYTES: lambda records: records.sizes,
}


def record_batch(
    records: Records, schema: pa.Schema, broker_name: str = "", *, decompress: bool = False
) -> pa.RecordBatch:
    """The rows of sound records, with only the columns of `schema`."""
    count = len(records)
    unpacked = _Unpacked(records) if decompress and _UNPACKED & set(schema.names) else None
    arrays = []
    for field in schema:
        if field.name == "brokerName":
            array = pa.repeat(pa.scalar(broker_name), count)
        elif field.name == CORRUPT:
            array = unpacked.reasons() if unpacked else pa.nulls(count, pa.string())
        elif field.name == "body" and unpacked:
            array = unpacked.bodies()
        elif field.name == "sysFlag" and unpacked:
            array = unpacked.sys_flags()
        elif field.name == "topic" and pa.types.is_dictionary(field.type):
            array = records.topics.dictionary()
        else:
            array = BUILDERS[field.name](records)
        arrays.append(_typed(array, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _typed(array: Any, wanted: pa.DataType) -> pa.Array:
    """Turns arrays into dictionaries where the schema wants that, too."""
    if not pa.types.is_dictionary(wanted):
        return array if isinstance(array, pa.Array) else pa.array(array, wanted)
    if not isinstance(array, pa.DictionaryArray):
        array = _typed(array, wanted.value_type).dictionary_encode()
    return array


# The columns that unpacking changes.
_UNPACKED = {"body", "sysFlag", CORRUPT}


class _Unpacked:
    """Bodies, unpacked if compressed by producers; one that cannot be unpacked stays, with a reason."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._reasons: dict[int, str] = {}
        self._bodies: dict[int, bytes] = {}
        view = records.window.view
        for number in np.flatnonzero(records.field("sys_flag") & SYS_COMPRESSED).tolist():
            body = view[records.body_at[number] : records.body_end[number]]
            unpack = zlib.decompressobj()
            try:
                self._bodies[number] = unpack.decompress(body, UNPACKED_BYTES_MAX)
                if not unpack.eof:
                    raise zlib.error(f"no end within {UNPACKED_BYTES_MAX} bytes")
            except zlib.error as error:
                self._bodies[number] = bytes(body)
                place = int(records.physical_offsets[number])
                self._reasons[number] = f"body of the record at {place}, {len(body)} bytes: {error}"

    def bodies(self) -> pa.Array:
        stored = BUILDERS["body"](self._records)
        if not self._bodies:
            return stored
        mask = np.zeros(len(stored), np.bool_)
        mask[list(self._bodies)] = True
        return pc.replace_with_mask(
            stored, pa.array(mask), pa.array(list(self._bodies.values()), pa.binary())
        )

    def sys_flags(self) -> npt.NDArray[np.int32]:
        """Clears the compressed bit where the body was unpacked: whoever sends the body on relies on it."""
        flags = self._records.field("sys_flag")
        flags[[number for number in self._bodies if number not in self._reasons]] &= ~SYS_COMPRESSED
        return flags

    def reasons(self) -> pa.Array:
        return pa.array([self._reasons.get(number) for number in range(len(self._records))], pa.string())
