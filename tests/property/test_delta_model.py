"""Random Delta tables with every checkpoint form, against a naive reader of their commits."""

import json
import os
import random
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
from support import delta_model
from support.case_count import cases

import arrowlog

SEEDS = cases(24)


def canon(value):
    """A canonical form of a value from any library."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, dict):
        return {key: canon(inner) for key, inner in sorted(value.items())}
    return str(value) if value is not None else None


def comparable(rows):
    return sorted(json.dumps(canon(row), sort_keys=True) for row in rows)


def opened(root, **options):
    return arrowlog.Table(root, allow_outside_paths=True, **options)


def check_version(table, root, version):
    state = delta_model.naive_state(root, version)
    snapshot = table.snapshot(version)
    names = [column["name"] for column in state.schema["fields"]]
    assert snapshot.schema.names == names
    assert sorted(snapshot.files["path"].to_pylist()) == sorted(key[0] for key in state.live)
    applied = {app: found[0] for app, found in snapshot.state.txns.items()}
    assert applied == state.txns
    expected = delta_model.naive_rows(root, state)
    plan = table.scan(version=version)
    assert comparable(plan.to_arrow_dataset().to_table().to_pylist()) == comparable(expected)
    assert plan.count() in (None, len(expected))
    return state, expected


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_version_and_form_equals_a_naive_replay(tmp_path, seed):
    root = str(tmp_path)
    made = delta_model.random_table(root, seed)
    rng = random.Random(seed)
    for version in {0, made.version, rng.randint(0, made.version)}:
        check_version(opened(root), root, version)
    truth = check_version(opened(root), root, made.version)[1]
    form = delta_model.FORMS[seed % len(delta_model.FORMS)]
    made.checkpoint(form)
    checkpoint = made.version
    check_version(opened(root), root, made.version)
    followed = opened(root)
    followed.snapshot()
    for _ in range(rng.randint(0, 3)):
        made.step()
        followed.snapshot()
        check_version(followed, root, made.version)
    state, truth = check_version(opened(root), root, made.version)
    for version in range(checkpoint + 1):  # as log cleanup does
        os.unlink(Path(root) / "_delta_log" / f"{version:020d}.json")
    table = opened(root)
    plan = table.scan()
    assert plan.snapshot.report.checkpoint == checkpoint
    assert comparable(plan.to_arrow_dataset().to_table().to_pylist()) == comparable(truth)
    assert comparable(plan.to_polars().collect().to_dicts()) == comparable(truth)
    connection = duckdb.connect()  # relations of DuckDB 1 do not keep it
    relation = plan.to_duckdb(connection)
    assert comparable(relation.to_arrow_table().to_pylist()) == comparable(truth)
    check_predicates(table, state, truth, rng)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::arrowlog.ArrowlogWarning")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_damaged_checkpoints_give_all_rows_or_a_typed_error(tmp_path, seed):
    root = str(tmp_path)
    made = delta_model.random_table(root, seed)
    rng = random.Random(seed)
    made.checkpoint(delta_model.FORMS[seed % len(delta_model.FORMS)])
    truth = check_version(opened(root), root, made.version)[1]
    if rng.random() < 0.5:  # as log cleanup does
        for version in range(made.version + 1):
            os.unlink(Path(root) / "_delta_log" / f"{version:020d}.json")
    log = Path(root) / "_delta_log"
    files = [*log.glob("*.checkpoint*"), *log.glob("_sidecars/*")]
    for _ in range(6):
        path = rng.choice(files)
        data = path.read_bytes()
        damaged = bytearray(data[: rng.randrange(len(data))] if rng.random() < 0.3 else data)
        # The end of the footer: the rest of a checkpoint has no checksum.
        for _ in range(rng.randint(1, 4)) if damaged and path.suffix == ".parquet" else ():
            damaged[-1 - rng.randrange(min(8, len(damaged)))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            found = opened(root).scan().to_arrow_dataset().to_table().to_pylist()
        except arrowlog.ArrowlogError:
            found = truth
        assert comparable(found) == comparable(truth)
        path.write_bytes(data)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(SEEDS))
def test_log_compaction_files_equal_the_commits_they_replace(tmp_path, seed):
    root = str(tmp_path)
    made = delta_model.random_table(root, seed)
    rng = random.Random(seed)
    for _ in range(2):
        made.step()
    first = rng.randint(0, made.version - 1)
    last = rng.randint(first + 1, made.version)
    delta_model.compact_commits(root, first, last)
    for version in {first, last, made.version, rng.randint(first, last)}:
        check_version(opened(root), root, version)
    states = {v: delta_model.naive_state(root, v) for v in range(made.version + 1)}
    for version in range(first, last + 1):  # as log cleanup might
        os.unlink(Path(root) / "_delta_log" / f"{version:020d}.json")
    for version in range(last, made.version + 1):
        expected = delta_model.naive_rows(root, states[version])
        found = opened(root).scan(version=version).to_arrow_dataset().to_table().to_pylist()
        assert comparable(found) == comparable(expected)
    for version in range(first, last):
        with pytest.raises(arrowlog.ArrowlogError):
            opened(root).snapshot(version)


def check_struct_fields(table, name, truth, rng):
    """Bounds of struct fields skip no file with a matching row."""
    for member in ("x", "y"):
        values = [(row[name] or {}).get(member) for row in truth]
        value = rng.choice([v for v in values if v is not None] or [0 if member == "x" else ""])
        literal = str(value) if member == "x" else "'" + value.replace("'", "''") + "'"
        for where, count in (
            (f"= {literal}", sum(v == value for v in values)),
            (f"> {literal}", sum(v is not None and v > value for v in values)),
            ("IS NULL", sum(v is None for v in values)),
        ):
            plan = table.scan(f'"{name}".{member} {where}')
            assert plan.to_arrow_dataset().to_table().num_rows == count, where
            assert plan.count() in (None, count), where


def check_predicates(table, state, truth, rng):
    """Files are skipped only if no row matches, and counts are exact or unknown."""
    by_name = {c["name"].partition("-")[0]: c["name"] for c in state.schema["fields"]}
    check_struct_fields(table, by_name["nested"], truth, rng)
    for _ in range(6):
        column = rng.choice(["id", "name", "part", "price"])
        name = by_name[column]
        values = [row[name] for row in truth if row[name] is not None] or [0]
        value = rng.choice(values)
        operator = rng.choice(["=", "<", ">=", "<>", "is null", "in"])
        if operator == "is null":
            where, matches = f'"{name}" IS NULL', [r for r in truth if r[name] is None]
        elif column == "price":
            where, matches = f'"{name}" = {value}', [r for r in truth if r[name] == value]
        else:
            text = str(value).replace("'", "''")
            literal = str(value) if isinstance(value, int) else f"'{text}'"
            where = f'"{name}" {operator} {literal}'
            if operator == "in":
                where = f'"{name}" IN ({literal})'
            test = {
                "=": lambda v, value=value: v == value,
                "<": lambda v, value=value: v < value,
                ">=": lambda v, value=value: v >= value,
                "<>": lambda v, value=value: v != value,
                "in": lambda v, value=value: v == value,
            }[operator]
            matches = [r for r in truth if r[name] is not None and test(r[name])]
        plan = table.scan(where)
        found = plan.to_arrow_dataset().to_table().to_pylist()
        assert comparable(found) == comparable(matches), where
        assert plan.count() in (None, len(matches)), where
        lowest = plan.min(name) if matches else None
        known = [row[name] for row in matches if row[name] is not None]
        assert lowest is None or lowest == min(known)
        assert plan.explain() is not None
