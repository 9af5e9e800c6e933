"""Time travel: the version that was current at a time."""

import os
import shutil
from datetime import UTC, date, datetime, timedelta, timezone

import pyarrow as pa
import pytest

from arrowlog import InvalidRequest, Table
from arrowlog.config import resolve
from arrowlog.snapshot.listing import list_log
from arrowlog.snapshot.time_travel import find_version_at, format_epoch_millis, to_epoch_millis
from arrowlog.storage import LocalStore
from arrowlog.testing import add, commit_info, metadata, protocol, write_checkpoint, write_commit

SCHEMA = pa.schema([("id", pa.int64())])
T0 = 1_700_000_000_000
OCTOBER = 1_727_740_800_000


@pytest.mark.parametrize(
    ("moment", "millis"),
    [
        (0, 0),
        (-5, -5),
        (OCTOBER, OCTOBER),
        ("2024-10-01T00:00:00Z", OCTOBER),
        ("2024-10-01T00:00:00", OCTOBER),
        ("2024-10-01 00:00:00", OCTOBER),
        ("2024-10-01", OCTOBER),
        ("2024-10-01T02:00:00+02:00", OCTOBER),
        ("2024-10-01T00:00:00.123Z", OCTOBER + 123),
        ("1969-12-31T23:59:59.999Z", -1),
        ("1960-01-01", -315_619_200_000),
        (datetime(2024, 10, 1, tzinfo=UTC), OCTOBER),
        (datetime(2024, 10, 1), OCTOBER),  # noqa: DTZ001 -- without a zone it is UTC
        (datetime(2024, 10, 1, 2, tzinfo=timezone(timedelta(hours=2))), OCTOBER),
        (date(2024, 9, 30), OCTOBER - 1),  # a date is the end of its day
        (date(2024, 10, 1), OCTOBER + 86_399_999),
        (datetime(9999, 12, 31, tzinfo=UTC), 253_402_214_400_000),
        (datetime(1, 1, 1, tzinfo=UTC), -62_135_596_800_000),
    ],
    ids=str,
)
def test_every_timestamp_form(moment, millis):
    assert to_epoch_millis(moment) == millis


@pytest.mark.parametrize("part", [".0009", ".000999", ".0005001"])
def test_timestamps_are_rounded_down_to_milliseconds(part):
    assert to_epoch_millis(f"2024-10-01T00:00:00{part}Z") == OCTOBER
    assert to_epoch_millis(f"1969-12-31T23:59:59{part}Z") == -1000


@pytest.mark.parametrize(
    "moment",
    [
        True,
        None,
        1.5,
        b"2024-10-01",
        "",
        "yesterday",
        "2024-13-01",
        [],
        "1727740800000",
    ],
    ids=repr,
)
def test_invalid_timestamp_is_refused(moment):
    with pytest.raises(InvalidRequest, match="is not a timestamp") as caught:
        to_epoch_millis(moment)
    assert "ISO-8601" in str(caught.value)


def test_timestamps_of_any_size_are_formatted():
    assert format_epoch_millis(OCTOBER) == "2024-10-01T00:00:00.000+00:00"
    assert format_epoch_millis(10**30) == f"{10**30} ms since 1970"


def write(folder, times, *, created=T0, codec="none"):
    """A table whose commit v has the timestamp times[v], or none if that is None."""
    for version, time in enumerate(times):
        actions = [add(f"f{version}")]
        if version == 0:
            actions = [protocol(), metadata(SCHEMA, created=created), *actions]
        if time is not None:
            actions.insert(0, commit_info(time))
        write_commit(folder, version, actions, codec=codec)


def written(folder, times):
    """Set the modification times of the commit files."""
    for version, time in enumerate(times):
        path = f"{folder}/_transaction_log/{version:020d}.json"
        os.utime(path, ns=(time * 1_000_000, time * 1_000_000))


def at(folder, millis, earliest=0, newest=None):
    store = LocalStore(str(folder))
    listing = list_log(store)
    newest = max(listing.commits) if newest is None else newest
    return find_version_at(store, listing, resolve(), earliest, newest, millis)


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize(
    ("after", "version"),
    [
        (0, 0),
        (999, 0),
        (1000, 1),
        (1001, 1),
        (2999, 2),
        (3000, 3),
        (6500, 6),
        (7000, 7),
        (10**9, 7),
    ],
)
def test_commits_with_timestamps(tmp_path, after, version, codec):
    write(tmp_path, [T0 + 1000 * v for v in range(8)], codec=codec)
    written(tmp_path, [5 * T0] * 8)  # file times are ignored
    assert at(tmp_path, T0 + after) == version


@pytest.mark.parametrize(("after", "version"), [(0, 0), (999, 0), (1000, 1), (3500, 3), (10**9, 4)])
def test_commits_without_timestamps_use_the_file_time(tmp_path, after, version):
    write(tmp_path, [None] * 5)
    written(tmp_path, [T0 + 1000 * v for v in range(5)])
    assert at(tmp_path, T0 + after) == version


def test_version_0_has_the_creation_time_of_its_metadata(tmp_path):
    write(tmp_path, [None, T0 + 1000], created=T0)
    written(tmp_path, [T0 + 10**9] * 2)
    assert at(tmp_path, T0) == 0
    with pytest.raises(InvalidRequest):
        at(tmp_path, T0 - 1)


@pytest.mark.parametrize(
    ("after", "version"), [(0, 0), (1500, 1), (2499, 1), (2500, 2), (3000, 3), (4000, 4)]
)
def test_commit_timestamps_and_file_times_may_be_mixed(tmp_path, after, version):
    write(tmp_path, [T0, T0 + 1000, None, T0 + 3000, None])
    written(tmp_path, [0, 0, T0 + 2500, 0, T0 + 4000])
    assert at(tmp_path, T0 + after) == version


@pytest.mark.parametrize(
    ("after", "version"), [(0, 0), (1000, 1), (2999, 1), (3000, 3), (4000, 3), (10**9, 4)]
)
def test_copied_table_interpolates_missing_timestamps(tmp_path, after, version):
    write(tmp_path, [T0, T0 + 1000, None, T0 + 3000, None])
    written(tmp_path, [T0 + 10**9] * 5)
    assert at(tmp_path, T0 + after) == version


@pytest.mark.promise("snapshot.time_travel")
def test_decreasing_file_times_never_hide_an_earlier_version(tmp_path):
    write(tmp_path, [None] * 3)
    written(tmp_path, [T0, T0 + 2000, T0 + 1000])
    assert at(tmp_path, T0 + 1500) == 0
    assert at(tmp_path, T0 + 2000) == 2


def test_copied_table_with_timestamps_travels_as_before(tmp_path):
    write(tmp_path / "a", [T0 + 1000 * v for v in range(4)])
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copy)
    for after in (0, 999, 1000, 2500, 9000):
        assert at(tmp_path / "b", T0 + after) == at(tmp_path / "a", T0 + after)


@pytest.mark.parametrize("times", [[T0, T0 + 1000, T0 + 2000], [None] * 3], ids=["known", "files"])
def test_time_before_the_first_version_raises_with_its_time(tmp_path, times):
    write(tmp_path, times)
    written(tmp_path, [T0, T0 + 1000, T0 + 2000])
    with pytest.raises(InvalidRequest, match="begins with version 0") as caught:
        at(tmp_path, T0 - 1)
    assert format_epoch_millis(T0) in str(caught.value)
    assert format_epoch_millis(T0 - 1) in str(caught.value)


def test_time_before_the_earliest_version_raises_with_that_version(tmp_path):
    write(tmp_path, [T0 + 1000 * v for v in range(6)])
    with pytest.raises(InvalidRequest, match="begins with version 3"):
        at(tmp_path, T0 + 1000, earliest=3)


@pytest.mark.parametrize("moment", [4 * T0, 2**62, 2**63 - 1, 2**63, 10**30, "9999-12-31"])
@pytest.mark.parametrize("times", [[T0, T0 + 1000], [None, None]], ids=["known", "files"])
def test_future_time_gives_the_latest_version(tmp_path, times, moment):
    write(tmp_path, times)
    assert at(tmp_path, to_epoch_millis(moment)) == 1


@pytest.mark.parametrize("moment", [-(10**30), -(2**63) - 1, "0001-01-01"])
def test_distant_past_raises(tmp_path, moment):
    write(tmp_path, [None, None])
    with pytest.raises(InvalidRequest, match="begins with version 0"):
        at(tmp_path, to_epoch_millis(moment))


def test_versions_after_the_newest_readable_one_are_not_found(tmp_path):
    write(tmp_path, [T0 + 1000 * v for v in range(6)])
    assert at(tmp_path, T0 + 10**9, newest=2) == 2


@pytest.mark.promise("snapshot.time_travel")
def test_snapshot_by_time_equals_the_snapshot_of_that_version(tmp_path):
    write(tmp_path, [T0 + 1000 * v for v in range(6)])
    table = Table(tmp_path)
    assert table.snapshot(timestamp=T0 + 2500).version == 2
    assert table.snapshot(timestamp=format_epoch_millis(T0 + 3000)).num_files == 4
    assert table.snapshot(timestamp=datetime(2100, 1, 1, tzinfo=UTC)).version == 5
    with pytest.raises(InvalidRequest, match="cannot both"):
        table.snapshot(version=1, timestamp=T0)


def test_time_travel_after_cleanup_starts_at_the_checkpoint(tmp_path):
    write(tmp_path, [T0 + 1000 * v for v in range(6)])
    live = [protocol(), metadata(SCHEMA), *(add(f"f{v}") for v in range(4))]
    write_checkpoint(tmp_path, 3, live)
    for version in range(3):
        os.unlink(f"{tmp_path}/_transaction_log/{version:020d}.json")
    table = Table(tmp_path)
    assert table.earliest_version == 3
    assert table.snapshot(timestamp=T0 + 3500).version == 3
    assert table.snapshot(timestamp=T0 + 4000).num_files == 5
    with pytest.raises(InvalidRequest, match="begins with version 3"):
        table.snapshot(timestamp=T0 + 2000)
