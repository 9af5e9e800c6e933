"""Retention of log files: thousands of logs against naively written rules."""

import random

import pytest
from support.case_count import cases, first_seed

from arrowlog.formats.indextables import classify_names
from arrowlog.maintenance.retention import (
    RetentionPolicy,
    classify_log_files,
    find_readable_versions,
    plan_retention,
)
from arrowlog.storage import ObjectStat

LOGS = cases(3_000)
HOUR = 3_600_000
NOW = 1_700_000_000_000


def random_log(rng):
    """Names with sizes and times: commits, checkpoints of every form, parts and unknown files."""
    newest = rng.randrange(0, 25)
    log, inner = {}, {}
    gone = rng.choice([0, 0, rng.randrange(0, newest + 1)])  # left by an earlier cleanup

    def stat():
        unknown = rng.random() < 0.03
        when = -1 if unknown else NOW - rng.choice([0, 1, 2, 5, 30, 900]) * HOUR
        return ObjectStat(rng.randrange(1, 1000), when)

    for version in range(newest + 1):
        if version == 0 or version >= gone:
            log[f"{version:020d}.json"] = stat()
        if rng.random() < 0.25 or version == gone > 1:
            kind = rng.randrange(4)
            log |= {f"{version:020d}.checkpoint.json": stat()} if kind != 2 else {}
            if kind == 1:
                for part in (1, 2):
                    log[f"{version:020d}.checkpoint.0123456789ab.{part:05d}.json"] = stat()
            if kind in (2, 3):
                inner[f"{version:020d}.checkpoint.parquet"] = stat()
                inner[f"{version:020d}.checkpoint.json"] = stat()
    log |= {"_last_checkpoint": stat(), ".00.json.tmp": stat(), "notes.txt": stat()}
    return newest, log, inner


def age_of(stat):
    """The age of a file; one of unknown time counts as new."""
    return -1 if stat.mtime_ms < 0 else NOW - stat.mtime_ms


def naive(newest, log, inner, verified, policy, bad):
    """The rules, file by file."""
    going = set()
    for folder, files in (("_transaction_log", log), ("_transaction_log/_checkpoints", inner)):
        for name, stat in files.items():
            stem, _, kind = name.partition(".")
            if not stem.isdigit() or verified is None:
                continue
            version, age = int(stem), age_of(stat)
            if kind == "json":
                old = age > policy.log_ms and version < verified - policy.commits
                if old and version < newest and version != 0:
                    going.add(f"{folder}/{name}")
            else:  # all of a checkpoint, or nothing
                parts = [s for n, s in (*log.items(), *inner.items()) if n.startswith(f"{stem}.c")]
                age = min(map(age_of, parts))
                if age > policy.checkpoint_ms and version < verified:
                    going.add(f"{folder}/{name}")
    stem = f"{naive_pillar(newest, log, inner, going, bad):020d}.checkpoint"
    return {key for key in going if stem not in key}


def naive_pillar(newest, log, inner, going, bad):
    """The checkpoint that most of the retained commits depend on, or -1."""
    listing = classify_names(sorted(log), sorted(inner))
    stays = {v for v, key in listing.commits.items() if key not in going}
    known = set(listing.checkpoints) - bad
    runs = {base: set(range(base + 1, newest + 1)) for base in known if base <= newest}
    good = [base for base, run in runs.items() if run <= stays]
    whole = set(range(newest + 1)) <= stays
    if whole or not good:
        return -1
    spare = min(good)  # not needed if the first retained commit has its own checkpoint
    both = spare + 1 in good and spare not in stays
    return spare + 1 if both else spare


def naive_versions(newest, commits, bases):
    """The versions that can be rebuilt: a checkpoint, or a commit after such a version."""
    found = set()
    for version in range(newest + 1):
        on_top = version in commits and (version == 0 or version - 1 in found)
        if version in bases or on_top:
            found.add(version)
    return found


@pytest.mark.promise("cleanup.keeps_what_it_promises")
def test_deleted_files_equal_the_naive_rules():
    seed = first_seed()
    rng = random.Random(seed)
    deleted = kept = 0
    for _ in range(LOGS):
        newest, log, inner = random_log(rng)
        listing = classify_names(sorted(log), sorted(inner))
        known = sorted(set(listing.checkpoints))
        bad = {v for v in known if rng.random() < 0.2}
        verified = max((v for v in known if v not in bad), default=None)
        policy = RetentionPolicy(
            rng.choice([0, HOUR, 24 * HOUR, 720 * HOUR]),
            rng.choice([0, 2 * HOUR, 1000 * HOUR]),
            rng.choice([0, 0, 3, 30]),
        )
        found = plan_retention(classify_log_files(log, inner), newest, verified, policy, NOW, bad)
        going = {file.key for file in found.files_to_delete}
        assert going == naive(newest, log, inner, verified, policy, bad)
        assert found.files["path"].to_pylist() == [file.key for file in found.files_to_delete]
        assert found.bytes_freed == sum(found.files["size_bytes"].to_pylist())
        check_what_stays(newest, log, inner, found, going, verified, bad)
        deleted += len(going)
        kept += len(log) + len(inner) - len(going)
    assert min(deleted, kept) > LOGS  # otherwise nothing was tested


def check_what_stays(newest, log, inner, found, going, verified, bad):
    stays = [name for name in log if f"_transaction_log/{name}" not in going]
    nested = [name for name in inner if f"_transaction_log/_checkpoints/{name}" not in going]
    left = classify_names(sorted(stays), sorted(nested))
    assert 0 in left.commits
    assert newest in left.commits
    if verified is not None:
        assert verified in set(left.checkpoints)
    there = set(left.checkpoints)
    bases = there - bad
    versions = naive_versions(newest, left.commits, bases)
    assert set(found.versions) == versions
    assert list(found.versions) == sorted(versions)
    assert set(find_readable_versions(left, newest)) == naive_versions(newest, left.commits, there)
    if newest not in versions:
        return  # damaged before: cleanup is refused earlier
    first = newest
    while first - 1 in versions:
        first -= 1
    assert found.earliest_version == first
    for version in versions:  # retained versions depend on version 0 or on a named checkpoint
        base = max((b for b in bases if b <= version), default=0)
        assert base == 0 or base in versions
    free = naive_versions(newest, left.commits, set())
    assert versions - free <= {
        v for v in versions if any(s <= v for s in found.required_checkpoints)
    }
