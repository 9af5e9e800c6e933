"""Convert table schemas to Spark, and batches to exactly the Arrow types that Spark expects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from arrowlog.errors import InvalidRequest
from arrowlog.spark.versions import to_arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

# Aliases that other writers use for Spark's type names; `formats.table_schema` accepts the same.
_ALIASES = {
    "bigint": "long",
    "int": "integer",
    "smallint": "short",
    "tinyint": "byte",
    "null": "void",
    "timestamp_ltz": "timestamp",
}
_BATCH_BYTES = 32 << 20  # the JVM holds a batch in memory, beside those of other tasks
_BATCH_ROWS = 1 << 16


def to_spark_schema(schema_string: str) -> StructType:
    """Convert a table's schema JSON to a Spark `StructType`.

    Every field is nullable, as in all file-based tables of Spark: in a file that was written before
    a column was added, the column is null, whatever the schema declares. Raises `InvalidRequest`
    for a type that Spark does not accept from Python.
    """
    from pyspark.sql.types import StructType

    return StructType.fromJson(_struct(json.loads(schema_string), ""))


def _struct(struct: dict[str, Any], prefix: str) -> dict[str, Any]:
    fields = [
        {
            "name": item["name"],
            "type": _type(item["type"], f"{prefix}{item['name']}"),
            "nullable": True,
            "metadata": item.get("metadata") or {},
        }
        for item in struct["fields"]
    ]
    return {"type": "struct", "fields": fields}


def _type(declared: Any, column: str) -> Any:
    if isinstance(declared, str):
        return _simple_type(declared.strip().lower(), column)
    kind = declared["type"]
    if kind == "struct":
        return _struct(declared, f"{column}.")
    if kind == "array":
        item = _type(declared["elementType"], column)
        return {"type": "array", "elementType": item, "containsNull": True}
    if kind == "map":
        key, value = _type(declared["keyType"], column), _type(declared["valueType"], column)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    return _type(declared["sqlType"], column)  # a user-defined type: how its values are stored


def _simple_type(name: str, column: str) -> str:
    if name.startswith(("char", "varchar")):
        return "string"
    if name.startswith("interval") or name == "variant":
        raise InvalidRequest(
            f"Column {column!r} has type {name}, which Spark does not exchange with Python.",
            next="Read the other columns with `plan.to_arrow_dataset()` or `plan.to_polars()`;"
            " write it as another type, such as a number or a string.",
        )
    return _ALIASES.get(name, name).replace(" ", "")


def to_spark_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark accepts rows of a Spark schema."""
    return to_arrow_schema(schema)


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Cast a batch to a schema and yield it in slices of limited size; nothing if it is empty."""
    if not batch.num_rows:
        return
    if not batch.schema.equals(schema, check_metadata=True):
        batch = batch.cast(schema)
    rows = max(1, min(_BATCH_ROWS, batch.num_rows * _BATCH_BYTES // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
