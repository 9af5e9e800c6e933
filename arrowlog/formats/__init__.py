"""What is on disk: file names, action fields, features and encodings, one format per package."""

from arrowlog.formats.avro_container import (
    Container,
    damaged,
    encode_bytes,
    encode_long,
    read_container,
    unsupported,
    write_container,
)
from arrowlog.formats.avro_schema import (
    MAX_VALUE_DEPTH,
    AvroField,
    AvroType,
    SchemaError,
    ValueDamaged,
    parse_schema,
    read_value,
)
from arrowlog.formats.spark_schema import format_spark_schema, parse_spark_schema

__all__ = [
    "MAX_VALUE_DEPTH",
    "AvroField",
    "AvroType",
    "Container",
    "SchemaError",
    "ValueDamaged",
    "damaged",
    "encode_bytes",
    "encode_long",
    "format_spark_schema",
    "parse_schema",
    "parse_spark_schema",
    "read_container",
    "read_value",
    "unsupported",
    "write_container",
]
