"""Spark's API for data sources in Python, with stand-ins for what older versions of Spark lack.

Spark 4.0 and 4.1 ask a stream for its latest offset without a start and a limit. Spark 4.0 cannot
write streams as Arrow. Spark 3.5 has no data sources in Python: importing this module fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )

    LIMITS_STREAMS = WRITES_STREAMS = True
else:
    WRITES_STREAMS = hasattr(datasource, "DataSourceStreamArrowWriter")
    DataSourceStreamArrowWriter = getattr(datasource, "DataSourceStreamArrowWriter", object)
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxFiles,
            SupportsTriggerAvailableNow,
        )

        LIMITS_STREAMS = True
    except ModuleNotFoundError:
        LIMITS_STREAMS = False

        class ReadLimit:
            """How much a batch may read. Spark before 4.2 never passes one."""

        @dataclass
        class ReadAllAvailable(ReadLimit):
            """Everything there is."""

        @dataclass
        class ReadMaxFiles(ReadLimit):
            """A number of files at most."""

            max_files: int

        class SupportsTriggerAvailableNow:
            """Marks readers that fix the end of a run by themselves; others Spark wraps."""


__all__ = [
    "LIMITS_STREAMS",
    "WRITES_STREAMS",
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "InputPartition",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxFiles",
    "SupportsTriggerAvailableNow",
    "WriterCommitMessage",
]
