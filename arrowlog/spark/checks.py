"""Whether a checkpoint is whole, found out by tasks, a part each: no process reads all of it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowlog.errors import LogCorrupt
from arrowlog.log.checkpoint import Manifest, to_lines
from arrowlog.log.envelope import unwrap
from arrowlog.log.names import LOG
from arrowlog.state.load import verify_checkpoint
from arrowlog.state.parquet import open_checkpoint
from arrowlog.state.parts import Parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from arrowlog.config import Config
    from arrowlog.log.names import Listing
    from arrowlog.spark.rebuild import Rebuild
    from arrowlog.spark.tasks import Job
    from arrowlog.state.manifest import Part


@dataclass(frozen=True)
class Check:
    """A part that is to be read: of a JSON checkpoint, or one of a Parquet checkpoint's files."""

    name: str
    checksum: str = ""
    version: int = 0
    names: Sequence[str] = ()
    part: Part | None = None

    def passes(self, job: Job) -> bool:
        """Whether it is as it was written."""
        try:
            self._read(job)
        except (LogCorrupt, FileNotFoundError):
            return False
        return True

    def _read(self, job: Job) -> None:
        store = job.store
        if self.part is None:
            file = f"{LOG}/{self.name}"
            data = unwrap(store.get(file), file, job.config.max_decompressed_bytes)
            Manifest((self.name,), (self.checksum,)).check(0, data, file)
            return
        found = open_checkpoint(store, self.version, self.names, lambda _: None)
        assert isinstance(found, Parts)
        rows = found.check(self.part).num_rows
        if rows != self.part.numFiles:
            raise LogCorrupt(f"it has {rows} rows.", file=self.name)


def is_whole(
    spark: SparkSession, rebuild: Rebuild, version: int, form: str, config: Config
) -> bool:
    """Whether a form of a checkpoint is there as it was written."""
    try:
        find = _of_json if form == "json" else _of_parquet
        checks = find(rebuild, rebuild.listing, version)
    except (LogCorrupt, FileNotFoundError):
        return False
    if checks is None:  # one file, or another program's: there is nothing that tasks could share
        return not verify_checkpoint(rebuild.store, rebuild.listing, version, config, form)
    job = rebuild.job

    def arrowlog_check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [pickle.loads(one.as_py()).passes(job) for one in batch.column("part")]  # noqa: S301 -- ours
            yield pa.record_batch([pa.array(found, pa.bool_())], names=["good"])

    numbers = pa.array(range(len(checks)), pa.int32())
    work = pa.table({"n": numbers, "part": pa.array(map(pickle.dumps, checks), pa.binary())})
    tasks = spark.createDataFrame(work, "n int, part binary").repartitionById(len(checks), "n")
    return all(tasks.mapInArrow(arrowlog_check, "good boolean").toArrow()["good"].to_pylist())


def _of_json(rebuild: Rebuild, listing: Listing, version: int) -> list[Check] | None:
    name = listing.json_checkpoints[version]
    limit = rebuild.job.config.max_decompressed_bytes
    data = unwrap(rebuild.store.get(f"{LOG}/{name}"), f"{LOG}/{name}", limit)
    found, _ = to_lines(data, version, f"{LOG}/{name}")
    if not isinstance(found, Manifest) or not found.checksums:
        return None
    both = zip(found.parts, found.checksums, strict=True)
    return [Check(part, checksum) for part, checksum in both]


def _of_parquet(rebuild: Rebuild, listing: Listing, version: int) -> list[Check] | None:
    names = listing.parquet_checkpoints[version]
    found = open_checkpoint(rebuild.store, version, names, lambda _: None)
    if not isinstance(found, Parts):
        return None
    return [
        Check(part.name, version=version, names=tuple(names), part=part)
        for part in found.manifest.parts
    ]
