"""The columns of a message: names, types, and what each holds.  One table for every source, job and test.

The names are those that users of rocketmq-spark and of Spark's Kafka source know.  A row of damaged bytes
(see `_corrupt`) holds physicalOffset, storeSize, body and brokerName, and null in all other columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from haservice.errors import ConfigError

CORRUPT = "_corrupt"
# The body column of a damaged place holds at most this many bytes.
CORRUPT_BODY_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class SchemaColumn:
    """One column, as Spark and Arrow know it."""

    name: str
    spark: DataType
    arrow: pa.DataType
    doc: str


_STRING = (StringType(), pa.string())
_INT = (IntegerType(), pa.int32())
_LONG = (LongType(), pa.int64())
_BINARY = (BinaryType(), pa.binary())
_BOOLEAN = (BooleanType(), pa.bool_())
_TIMESTAMP = (TimestampType(), pa.timestamp("us", tz="UTC"))
_MAP = (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string()))

COLUMNS = (
    SchemaColumn("topic", *_STRING, "The topic."),
    SchemaColumn("queueId", *_INT, "The queue of the topic."),
    SchemaColumn("queueOffset", *_LONG, "Place in its queue, counted in messages."),
    SchemaColumn("physicalOffset", *_LONG, "Place in the log, in bytes."),
    SchemaColumn("storeSize", *_INT, "Bytes of the whole record."),
    SchemaColumn("msgId", *_STRING, "The offset message id: hex of store host and physical offset."),
    SchemaColumn("uniqKey", *_STRING, "Property UNIQ_KEY, the id that the producer gave."),
    SchemaColumn("keys", *_STRING, "Property KEYS, separated by spaces."),
    SchemaColumn("tags", *_STRING, "Property TAGS."),
    SchemaColumn("body", *_BINARY, "The body as it is stored; unpacked with the option decompress."),
    SchemaColumn("properties", *_MAP, "All properties."),
    SchemaColumn("flag", *_INT, "The application's flag."),
    SchemaColumn("sysFlag", *_INT, "Bits: 1 compressed, 4 and 8 transaction, 16 and 32 IPv6 hosts."),
    SchemaColumn("bornTimestamp", *_TIMESTAMP, "When it was sent, by the producer's clock; ms precision."),
    SchemaColumn("storeTimestamp", *_TIMESTAMP, "When it was stored, by the broker's clock; ms precision."),
    SchemaColumn("bornHost", *_STRING, "ip:port of the producer."),
    SchemaColumn("storeHost", *_STRING, "ip:port of the broker."),
    SchemaColumn("reconsumeTimes", *_INT, "How often consumers sent it back."),
    SchemaColumn("preparedTransactionOffset", *_LONG, "Where a transaction's half message lies; else 0."),
    SchemaColumn("bodyCrcOk", *_BOOLEAN, "Whether the stored body matches its CRC-32."),
    SchemaColumn("brokerName", *_STRING, "Of which broker: option brokerNames, or the directory's name."),
    SchemaColumn(CORRUPT, *_STRING, "Null, or what is wrong where, and how many bytes it takes."),
)
BY_NAME = {column.name: column for column in COLUMNS}
NAMES = tuple(BY_NAME)

SPARK_SCHEMA = StructType([StructField(column.name, column.spark) for column in COLUMNS])
ARROW_SCHEMA = pa.schema([(column.name, column.arrow) for column in COLUMNS])


def spark_schema(names: Sequence[str], key: str = "columns") -> StructType:
    """The schema of some columns, in that order.

    Raises ConfigError for a name, which `key` gave, that is unknown or given twice.
    """
    for number, name in enumerate(names):
        if name not in BY_NAME:
            raise ConfigError(key, 0, name, f"no such column; there are {', '.join(NAMES)}")
        if name in names[:number]:
            raise ConfigError(key, 0, name, "is given twice")
    return StructType([StructField(name, BY_NAME[name].spark) for name in names])


def arrow_schema(asked: StructType) -> pa.Schema:
    """The Arrow schema of rows for the schema that a user asked for.

    Raises ConfigError for an unknown column, or one asked for with another type than it has.
    """
    spark_schema(asked.names, "schema")
    for field in asked.fields:
        column = BY_NAME[field.name]
        if field.dataType != column.spark:
            wanted, has = field.dataType.simpleString(), column.spark.simpleString()
            raise ConfigError("schema", 0, field.name, f"is a {has}, cannot be read as {wanted}")
    return pa.schema([pa.field(f.name, BY_NAME[f.name].arrow, nullable=f.nullable) for f in asked.fields])
