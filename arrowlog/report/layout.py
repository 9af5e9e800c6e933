"""How files and partitions are laid out: sizes and skew, aggregated by columns. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrowlog.fork_safety import pl
from arrowlog.report.facts import FileSizeFacts, PartitionFacts, PartitionsFacts, SizeBucket

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALL_FILE_BYTES = 16 << 20
_LARGEST_PARTITIONS = 60  # by bytes, and as many by files
_SIZE_MAX = 1 << 62  # larger sizes are wrong, and would overflow a sum


def measure_file_sizes(sizes: pl.Series) -> FileSizeFacts | None:
    """Return the distribution of file sizes, by powers of two; None without files.

    A size that is missing or negative counts as 0.
    """
    if not sizes.len():
        return None
    size = pl.col("size")
    frame = pl.DataFrame({"size": sizes.cast(pl.Int64).fill_null(0)}).with_columns(
        size.clip(0, _SIZE_MAX)
    )
    # The exponent of the power of two below, exactly: a logarithm would round.
    frame = frame.with_columns(
        exponent=pl.when(size == 0).then(-1).otherwise(63 - size.bitwise_leading_zeros())
    )
    grouped = (
        frame.group_by("exponent")
        .agg(files=pl.len(), bytes=size.cast(pl.Float64).sum())
        .sort("exponent")
    )
    counted = {row[0]: row[1:] for row in grouped.iter_rows()}
    steps = range(min(counted), max(counted) + 1)
    # Zero is a bucket of its own; without empty files, there is none.
    buckets = tuple(
        SizeBucket(
            0 if step < 0 else 1 << step,
            1 if step < 0 else 1 << (step + 1),
            int(counted.get(step, (0, 0))[0]),
            int(counted.get(step, (0, 0))[1]),
        )
        for step in steps
    )
    small = frame.filter(size < SMALL_FILE_BYTES)
    numbers = frame.select(
        minimum=size.min(),
        median=size.quantile(0.5, "lower"),
        p90=size.quantile(0.9, "lower"),
        maximum=size.max(),
        mean=size.mean(),
    ).row(0, named=True)
    return FileSizeFacts(
        buckets,
        int(numbers["minimum"]),
        int(numbers["median"]),
        int(numbers["p90"]),
        int(numbers["maximum"]),
        int(numbers["mean"]),
        SMALL_FILE_BYTES,
        small.height,
        int(small["size"].cast(pl.Float64).sum()),
    )


def measure_partitions(
    columns: Sequence[str], values: Sequence[pl.Series], sizes: pl.Series, rows: pl.Series
) -> PartitionsFacts | None:
    """Return how files and bytes spread over the partitions; None without files.

    `values` are the partition values of the files, one series per column.
    """
    if not sizes.len():
        return None
    keys = [f"p{number}" for number in range(len(values))]
    frame = pl.DataFrame(
        {
            **{key: value.cast(pl.String) for key, value in zip(keys, values, strict=True)},
            "bytes": sizes.cast(pl.Float64).fill_null(0.0),
            "rows": rows.cast(pl.Float64),
        }
    )
    grouped = frame.group_by(keys).agg(
        files=pl.len(),
        bytes=pl.col("bytes").sum(),
        rows=pl.when(pl.col("rows").is_null().any()).then(None).otherwise(pl.col("rows").sum()),
    )
    by_bytes = grouped.sort(["bytes", *keys], descending=[True, *(False for _ in keys)])
    by_files = grouped.sort(["files", *keys], descending=[True, *(False for _ in keys)])
    largest = pl.concat([by_bytes.head(_LARGEST_PARTITIONS), by_files.head(_LARGEST_PARTITIONS)])
    largest = largest.unique(keys, keep="first", maintain_order=True)
    total_bytes = float(grouped["bytes"].sum())
    tenth = by_bytes.head(-(-grouped.height // 10))["bytes"].sum()
    numbers = grouped.select(
        median_bytes=pl.col("bytes").quantile(0.5, "lower"),
        max_bytes=pl.col("bytes").max(),
        median_files=pl.col("files").quantile(0.5, "lower"),
        max_files=pl.col("files").max(),
        single_file=(pl.col("files") == 1).sum(),
    ).row(0, named=True)
    return PartitionsFacts(
        tuple(columns),
        grouped.height,
        int(numbers["median_bytes"]),
        int(numbers["max_bytes"]),
        int(numbers["median_files"]),
        int(numbers["max_files"]),
        int(numbers["single_file"]),
        float(tenth) / total_bytes if total_bytes > 0 else 0.0,
        tuple(
            PartitionFacts(
                tuple(row[key] for key in keys),
                int(row["files"]),
                int(row["bytes"]),
                None if row["rows"] is None else int(row["rows"]),
            )
            for row in largest.iter_rows(named=True)
        ),
    )
