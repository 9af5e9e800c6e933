"""What is on disk: file names, action fields, features and encodings, one format per package."""

from arrowlog.formats.spark_schema import format_spark_schema, parse_spark_schema

__all__ = ["format_spark_schema", "parse_spark_schema"]
