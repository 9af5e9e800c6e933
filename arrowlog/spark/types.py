"""The schema of a table, as Spark has it, and batches in exactly the Arrow types Spark expects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from arrowlog.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

# Other writers' names for Spark's types, as `log.schema` reads them.
_NAMES = {
    "bigint": "long",
    "int": "integer",
    "smallint": "short",
    "tinyint": "byte",
    "null": "void",
    "timestamp_ltz": "timestamp",
}
_BATCH_BYTES = 32 << 20  # the JVM holds a batch whole, beside those of other tasks
_BATCH_ROWS = 1 << 16


def spark_schema(schema_string: str) -> StructType:
    """Spark's schema of a table. Everything may be null, as in every table of files in Spark.

    A file written before a column was added has nulls there, whatever the schema says.
    """
    from pyspark.sql.types import StructType

    return StructType.fromJson(_struct(json.loads(schema_string), ""))


def _struct(found: dict[str, Any], where: str) -> dict[str, Any]:
    fields = [
        {
            "name": item["name"],
            "type": _type(item["type"], f"{where}{item['name']}"),
            "nullable": True,
            "metadata": item.get("metadata") or {},
        }
        for item in found["fields"]
    ]
    return {"type": "struct", "fields": fields}


def _type(found: Any, where: str) -> Any:
    if isinstance(found, str):
        return _simple(found.strip().lower(), where)
    kind = found["type"]
    if kind == "struct":
        return _struct(found, f"{where}.")
    if kind == "array":
        item = _type(found["elementType"], where)
        return {"type": "array", "elementType": item, "containsNull": True}
    if kind == "map":
        key, value = _type(found["keyType"], where), _type(found["valueType"], where)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    return _type(found["sqlType"], where)  # a user's own type is stored as another


def _simple(name: str, where: str) -> str:
    if name.startswith(("char", "varchar")):
        return "string"
    if name.startswith("interval") or name == "variant":
        raise InvalidRequest(
            f"Column {where!r} has type {name}, which cannot be handed to Spark.",
            next="Read the other columns with `plan.to_arrow_dataset()` or `plan.to_polars()`.",
        )
    return _NAMES.get(name, name).replace(" ", "")


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow types in which Spark takes rows of a schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A batch in exactly these types, in pieces that are not too large."""
    if not batch.num_rows:
        return
    if not batch.schema.equals(schema, check_metadata=True):
        batch = batch.cast(schema)
    rows = max(1, min(_BATCH_ROWS, batch.num_rows * _BATCH_BYTES // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
