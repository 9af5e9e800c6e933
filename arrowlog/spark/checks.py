"""Verify a checkpoint with tasks, one per part: no process reads all of it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowlog.errors import LogCorrupt
from arrowlog.formats.indextables import LOG_FOLDER, JsonManifest, checkpoint_to_lines, decompress
from arrowlog.snapshot import CheckpointPartReader, open_parquet_checkpoint, verify_checkpoint
from arrowlog.spark.versions import frame_from_arrow, frame_to_arrow, repartition_by_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from arrowlog.config import Config
    from arrowlog.formats import LogListing
    from arrowlog.snapshot import CheckpointPart
    from arrowlog.spark.rebuild import DistributedReplay
    from arrowlog.spark.tasks import ReplayJob


@dataclass(frozen=True)
class PartCheck:
    """A part to verify: of a JSON checkpoint (with `checksum`), or of a Parquet one (`part`)."""

    name: str
    checksum: str = ""
    version: int = 0
    keys: Sequence[str] = ()
    part: CheckpointPart | None = None

    def passes(self, job: ReplayJob) -> bool:
        """Return whether the part exists and matches its checksums. Runs in a task."""
        try:
            self._read(job)
        except (LogCorrupt, FileNotFoundError):
            return False
        return True

    def _read(self, job: ReplayJob) -> None:
        store = job.store
        if self.part is None:
            file = f"{LOG_FOLDER}/{self.name}"
            data = decompress(store.get(file), file, job.config.max_decompressed_bytes)
            JsonManifest((self.name,), (self.checksum,)).check(0, data, file)
            return
        checkpoint = open_parquet_checkpoint(store, self.version, self.keys, lambda _: None)
        assert isinstance(checkpoint, CheckpointPartReader)
        rows = checkpoint.check(self.part).num_rows
        if rows != self.part.numFiles:
            raise LogCorrupt(f"it has {rows} rows, not {self.part.numFiles}.", file=self.name)


def is_checkpoint_intact(
    spark: SparkSession, rebuild: DistributedReplay, version: int, form: str, config: Config
) -> bool:
    """Return whether a form of a checkpoint exists and all its parts match their checksums."""
    try:
        list_checks = _json_checks if form == "json" else _parquet_checks
        checks = list_checks(rebuild, rebuild.listing, version)
    except (LogCorrupt, FileNotFoundError):
        return False
    if checks is None:  # a single file or another writer's form: nothing to distribute
        return not verify_checkpoint(rebuild.store, rebuild.listing, version, config, form)
    job = rebuild.job

    def arrowlog_check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            results = [
                pickle.loads(check.as_py()).passes(job)  # noqa: S301 -- ours
                for check in batch.column("part")
            ]
            yield pa.record_batch([pa.array(results, pa.bool_())], names=["good"])

    numbers = pa.array(range(len(checks)), pa.int32())
    work = pa.table({"n": numbers, "part": pa.array(map(pickle.dumps, checks), pa.binary())})
    tasks = repartition_by_id(frame_from_arrow(spark, work, "n int, part binary"), len(checks), "n")
    done = frame_to_arrow(tasks.mapInArrow(arrowlog_check, "good boolean"))
    return all(done["good"].to_pylist())


def _json_checks(
    rebuild: DistributedReplay, listing: LogListing, version: int
) -> list[PartCheck] | None:
    """List the parts of a JSON checkpoint; None unless it has a manifest with checksums."""
    form = listing.checkpoint_form(version, "json")
    assert form is not None
    key = form.keys[0]
    limit = rebuild.job.config.max_decompressed_bytes
    data = decompress(rebuild.store.get(key), key, limit)
    content, _ = checkpoint_to_lines(data, version, key)
    if not isinstance(content, JsonManifest) or not content.checksums:
        return None
    pairs = zip(content.parts, content.checksums, strict=True)
    return [PartCheck(part, checksum) for part, checksum in pairs]


def _parquet_checks(
    rebuild: DistributedReplay, listing: LogListing, version: int
) -> list[PartCheck] | None:
    """List the parts of a Parquet checkpoint; None if it has no manifest of arrowlog."""
    form = listing.checkpoint_form(version, "parquet")
    assert form is not None
    checkpoint = open_parquet_checkpoint(rebuild.store, version, form.keys, lambda _: None)
    if not isinstance(checkpoint, CheckpointPartReader):
        return None
    return [
        PartCheck(part.name, version=version, keys=form.keys, part=part)
        for part in checkpoint.manifest.parts
    ]
