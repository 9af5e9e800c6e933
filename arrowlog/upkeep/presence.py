"""Which data files of a table are there: folders are listed, lonely files are asked for.

A listing tells of a thousand files for the price of one question, so every folder with more than a
few wanted files is listed, several folders at a time; on Spark, the workers do it. Where even that
would be thousands of questions, everything the table's folder has is listed at once.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.fork_safety import pl
from arrowlog.log.arrays import array_of
from arrowlog.log.store import open_store
from arrowlog.log.store.base import stat_object
from arrowlog.log.store.remote import secrets_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from arrowlog.log.store import Store

    Progress = Callable[[int, int], object]

_FEW = 8  # wanted files of one folder that are asked for one by one
_TASKS_MAX = 200
_QUESTIONS_MAX = 2000


def folders_of(keys: pa.ChunkedArray) -> pl.DataFrame:
    """The folders that files lie in, `""` for the root, and the `names` in each, as lists."""
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


def present(
    store: Store,
    keys: pa.ChunkedArray,
    *,
    parallelism: int = 4,
    progress: Progress | None = None,
) -> pa.ChunkedArray:
    """For each key of a data file whether the file is there; `progress(done, total)` is told."""
    folders = folders_of(keys)
    total, done = len(keys), 0
    if not store.cheap_stat and _questions(folders) > _QUESTIONS_MAX:
        mask = _mask(keys, [pl.Series(pl.from_arrow(store.walk()["key"]), dtype=pl.String)])
        if progress is not None:
            progress(total, total)
        return mask
    found: list[pl.Series] = []
    with ThreadPoolExecutor(parallelism) as pool:
        some = pool.map(lambda row: _in_folder(store, *row), folders.iter_rows())
        for there, names in zip(some, folders["names"], strict=True):
            found.append(there)
            done += len(names)
            if progress is not None:
                progress(done, total)
    return _mask(keys, found)


def present_by_spark(
    spark: Any,
    root: str,
    storage_options: Mapping[str, Any],
    keys: pa.ChunkedArray,
    *,
    parallelism: int,
) -> pa.ChunkedArray:
    """The same by the workers of a Spark session, which reach the store themselves."""
    folders = folders_of(keys)
    names = folders["names"].to_list()
    rows = pa.table(
        {
            "folder": array_of(folders["folder"].to_list(), pa.string()),
            "names": pa.array(names, pa.list_(pa.string())),
        }
    )
    tasks = max(1, min(rows.num_rows, _TASKS_MAX))
    frame = spark.createDataFrame(rows, "folder string, names array<string>").repartition(tasks)
    look = _look(root, dict(storage_options), parallelism)
    there = frame.mapInArrow(look, "key string").toArrow()
    return _mask(keys, [pl.Series(pl.from_arrow(there["key"]), dtype=pl.String)])


def _look(
    root: str, options: dict[str, Any], parallelism: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a worker does. It is pickled whole; Spark shows its failures as they stand."""

    def arrowlog_present(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(root, options, parallelism=parallelism)
        for batch in batches:
            columns = [column.to_pylist() for column in batch.columns]
            try:
                with ThreadPoolExecutor(parallelism) as pool:
                    found = list(pool.map(lambda row: _in_folder(store, *row), zip(*columns)))  # noqa: B905
            except Exception as error:  # noqa: BLE001 -- whatever a store leads to
                raise RuntimeError(_clean(str(error), options)) from None
            keys = pl.concat([pl.Series([], dtype=pl.String), *found]).to_list()
            yield pa.record_batch([array_of(keys, pa.string())], ["key"])

    return arrowlog_present


def _clean(text: str, options: Mapping[str, Any]) -> str:
    for secret in secrets_in(options):
        text = text.replace(secret, "***") if len(secret) > 3 else text
    return text


def _questions(folders: pl.DataFrame) -> int:
    """How often a store would be asked."""
    wanted = folders["names"].list.len()
    return int(pl.select(pl.when(wanted <= _FEW).then(wanted).otherwise(1).sum()).item() or 0)


def _in_folder(store: Store, folder: str, names: Sequence[str]) -> pl.Series:
    """The keys of the wanted files of one folder that are there."""
    before = f"{folder}/" if folder else ""
    if len(names) <= _FEW:
        there = [name for name in names if stat_object(store, before + name) is not None]
        return pl.Series([before + name for name in there], dtype=pl.String)
    wanted, listed = pl.Series(names), pl.Series(store.list_from(folder), dtype=pl.String)
    return before + wanted.filter(wanted.is_in(listed.implode()))


def _mask(keys: pa.ChunkedArray, found: Sequence[pl.Series]) -> pa.ChunkedArray:
    wanted = pl.Series(pl.from_arrow(keys), dtype=pl.String)
    there = pl.concat([pl.Series([], dtype=pl.String), *found])
    return pa.chunked_array([wanted.is_in(there.implode()).to_arrow()], pa.bool_())
