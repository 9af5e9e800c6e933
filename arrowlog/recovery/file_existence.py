"""Check which data files of a table exist, with as few requests as possible.

One listing request covers about a thousand files, so a folder with more than a few wanted files is
listed, and other files are checked one by one. Folders are processed in parallel; with Spark, by
its workers. If even that takes thousands of requests, the whole table is listed recursively.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.arrays import make_array
from arrowlog.fork_safety import pl
from arrowlog.storage import find_secrets, open_store, stat_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from arrowlog.storage import Store

    Progress = Callable[[int, int], object]

_MAX_STATS_PER_FOLDER = 8  # up to this many wanted files of a folder are checked one by one
_MAX_SPARK_TASKS = 200
_MAX_REQUESTS = 2000  # beyond this, one recursive listing is cheaper
_MIN_SECRET_CHARACTERS = 4  # masking shorter values would mangle ordinary words


def group_by_folder(keys: pa.ChunkedArray) -> pl.DataFrame:
    """Group files by folder: columns `folder` (`""` for the root) and `names`, a list."""
    key = pl.col("key")
    return (
        pl.DataFrame({"key": pl.Series(pl.from_arrow(keys), dtype=pl.String)})
        .select(
            folder=key.str.extract(r"(?s)^(.*)/", 1).fill_null(""),
            name=key.str.extract(r"(?s)([^/]*)$", 1),
        )
        .group_by("folder", maintain_order=True)
        .agg(names=pl.col("name"))
    )


def check_files_exist(
    store: Store,
    keys: pa.ChunkedArray,
    *,
    parallelism: int = 4,
    progress: Progress | None = None,
) -> pa.ChunkedArray:
    """Return for each key of a data file whether the file exists.

    `progress(done, total)` is called after each folder.
    """
    folders = group_by_folder(keys)
    total, done = len(keys), 0
    if not store.cheap_stat and _count_requests(folders) > _MAX_REQUESTS:
        mask = _mask(keys, [pl.Series(pl.from_arrow(store.walk()["key"]), dtype=pl.String)])
        if progress is not None:
            progress(total, total)
        return mask
    existing: list[pl.Series] = []
    with ThreadPoolExecutor(parallelism) as pool:
        results = pool.map(lambda row: _existing_in_folder(store, *row), folders.iter_rows())
        for in_folder, names in zip(results, folders["names"], strict=True):
            existing.append(in_folder)
            done += len(names)
            if progress is not None:
                progress(done, total)
    return _mask(keys, existing)


def check_files_exist_on_spark(
    spark: Any,
    root: str,
    storage_options: Mapping[str, Any],
    keys: pa.ChunkedArray,
    *,
    parallelism: int,
) -> pa.ChunkedArray:
    """Like `present`, by the workers of a Spark session, which access the store themselves."""
    folders = group_by_folder(keys)
    names = folders["names"].to_list()
    rows = pa.table(
        {
            "folder": make_array(folders["folder"].to_list(), pa.string()),
            "names": pa.array(names, pa.list_(pa.string())),
        }
    )
    tasks = max(1, min(rows.num_rows, _MAX_SPARK_TASKS))
    frame = spark.createDataFrame(rows, "folder string, names array<string>").repartition(tasks)
    work = _worker(root, dict(storage_options), parallelism)
    existing = frame.mapInArrow(work, "key string").toArrow()
    return _mask(keys, [pl.Series(pl.from_arrow(existing["key"]), dtype=pl.String)])


def _worker(
    root: str, options: dict[str, Any], parallelism: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark's workers run on batches of folders.

    It is pickled with everything it refers to. Spark shows its errors unchanged, so credentials are
    masked in them.
    """

    def arrowlog_present(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(root, options, parallelism=parallelism)
        for batch in batches:
            columns = [column.to_pylist() for column in batch.columns]
            try:
                with ThreadPoolExecutor(parallelism) as pool:
                    rows = zip(*columns)  # noqa: B905 -- columns of one batch have equal length
                    existing = list(pool.map(lambda row: _existing_in_folder(store, *row), rows))
            except Exception as error:  # noqa: BLE001 -- any error may contain a credential
                raise RuntimeError(_mask_secrets(str(error), options)) from None
            keys = pl.concat([pl.Series([], dtype=pl.String), *existing]).to_list()
            yield pa.record_batch([make_array(keys, pa.string())], ["key"])

    return arrowlog_present


def _mask_secrets(text: str, options: Mapping[str, Any]) -> str:
    for secret in find_secrets(options):
        text = text.replace(secret, "***") if len(secret) >= _MIN_SECRET_CHARACTERS else text
    return text


def _count_requests(folders: pl.DataFrame) -> int:
    """Return the number of requests without a recursive listing, at one per listed folder."""
    wanted = folders["names"].list.len()
    requests = pl.when(wanted <= _MAX_STATS_PER_FOLDER).then(wanted).otherwise(1)
    return int(pl.select(requests.sum()).item() or 0)


def _existing_in_folder(store: Store, folder: str, names: Sequence[str]) -> pl.Series:
    """Return the keys of those files of one folder that exist."""
    prefix = f"{folder}/" if folder else ""
    if len(names) <= _MAX_STATS_PER_FOLDER:
        existing = [name for name in names if stat_object(store, prefix + name) is not None]
        return pl.Series([prefix + name for name in existing], dtype=pl.String)
    wanted, listed = pl.Series(names), pl.Series(store.list_from(folder), dtype=pl.String)
    return prefix + wanted.filter(wanted.is_in(listed.implode()))


def _mask(keys: pa.ChunkedArray, existing: Sequence[pl.Series]) -> pa.ChunkedArray:
    """Return for each key whether it is among the existing ones."""
    wanted = pl.Series(pl.from_arrow(keys), dtype=pl.String)
    known = pl.concat([pl.Series([], dtype=pl.String), *existing])
    return pa.chunked_array([wanted.is_in(known.implode()).to_arrow()], pa.bool_())
