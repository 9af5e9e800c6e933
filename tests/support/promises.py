"""The promises of arrowlog, and the page that leads from each of them to its tests.

A test that proves a promise carries `@pytest.mark.promise("commit.exactly_once")`.
`python tests/support/promises.py` rewrites docs/promises.md.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "promises.md"

PROMISES = {
    "commit.exactly_once": "A commit lands once even if the store loses, delays or repeats"
    " requests.",
    "commit.acknowledged_is_durable": "An acknowledged commit is never lost, even if its writer is"
    " killed right afterwards.",
    "commit.outcome_is_true": "The outcome reported to a writer is true: committed, conflict, or"
    " unknown with the transaction id.",
    "commit.no_gap": "No writer leaves or fills a gap in the log.",
    "commit.conflicts_are_found": "A commit whose meaning a winning commit changes raises"
    " `CommitConflict`.",
    "commit.serializable": "Concurrent commits are serializable.",
    "commit.idempotent_write": "An application transaction commits once, no matter how often it is"
    " repeated.",
    "commit.stalled_writers": "A writer suspended at any point for any time neither loses nor"
    " repeats a commit.",
    "commit.refused_leaves_no_trace": "A refused request changes nothing.",
    "snapshot.log_replay": "Every version has the files that a naive replay of the log gives.",
    "snapshot.refresh_equals_open": "A refreshed snapshot equals a newly opened one.",
    "snapshot.decoders_agree": "The columnar, the schema and the row decoder agree, also on"
    " damaged lines.",
    "snapshot.never_older": "Damage never makes a table look older than it is.",
    "snapshot.caches_change_nothing": "Caches in memory and on disk change no result.",
    "snapshot.time_travel": "Time travel returns the version that was the latest at that time.",
    "scan.no_row_is_lost": "A file is skipped only if no row of it can match.",
    "scan.engines_agree": "Arrow and DuckDB, with the SQL of a plan, select the same files.",
    "scan.later_filters_skip_files": "Filters on a lazy frame, dataset or relation skip files"
    " before any is opened.",
    "scan.readers_agree": "polars, DuckDB, Arrow and Spark read the same rows from a plan.",
    "scan.missing_data_is_named": "An unreadable data file raises an error with its path and the"
    " version that added it.",
    "splits.rows_are_complete": "Every row of a split is read as it was written, except deleted"
    " rows.",
    "splits.search_is_exact": "A search finds exactly the rows that a naive search finds.",
    "splits.damage_is_found": "A damaged split raises a typed error and writes nothing outside the"
    " cache.",
    "predicate.meaning": "A predicate has the same meaning in every form, reader and layout.",
    "predicate.limits": "A predicate that is too long or too deep raises `InvalidRequest` and does"
    " not crash the process.",
    "checkpoint.changes_nothing": "A checkpoint changes no version.",
    "checkpoint.damage_is_found": "A damaged checkpoint is detected by its checksums and not used.",
    "checkpoint.pointer_is_a_hint": "A wrong or missing `_last_checkpoint` changes no answer.",
    "checkpoint.never_fails_a_commit": "A background checkpoint that fails or hangs affects no"
    " commit.",
    "checkpoint.one_per_interval": "Concurrent writers write each checkpoint once.",
    "cleanup.keeps_what_it_promises": "Cleanup deletes what retention allows and nothing that a"
    " readable version needs.",
    "cleanup.readers_recover": "A reader whose files a cleanup deletes lists the log again and"
    " succeeds.",
    "vacuum.deletes_only_orphans": "Vacuum deletes only files that no readable version needs.",
    "vacuum.beside_writers": "Vacuum and truncation with concurrent writers lose no row and no"
    " commit.",
    "maintenance.no_row_is_lost": "Maintenance in any order, killed at any moment, loses no row.",
    "maintenance.compaction_keeps_rows": "Compaction with concurrent writers changes no row.",
    "recovery.doctor_is_right": "A table that the doctor reports as healthy can be read and"
    " written.",
    "recovery.advice_loses_nothing": "Following the advice of the doctor loses and duplicates no"
    " row.",
    "recovery.repair_keeps_what_can_be_read": "A repair keeps exactly what can still be read.",
    "recovery.repair_is_restartable": "A killed repair leaves no partial log that opens. Running it"
    " again finishes.",
    "recovery.rebuild_keeps_rows": "A log rebuilt from the data files has the rows of the lost"
    " log.",
    "recovery.rebuild_is_atomic": "A rebuild creates the whole table or none, even if it is killed"
    " or another one runs.",
    "storage.one_winner": "Of several concurrent puts to one key exactly one wins, and the object"
    " has its bytes.",
    "storage.whole_or_absent": "An object exists completely or not at all, also after a kill.",
    "storage.outcome_is_true": "The outcome a store reports for a put is true, also on a faulty"
    " network.",
    "storage.gives_up_in_time": "A store that does not respond raises `StoreUnavailable` after the"
    " configured time.",
    "storage.same_contract": "All stores fulfil the same contract.",
    "fork.works_or_says_so": "In a forked child every call works or raises `ForkedProcess`; none"
    " hangs or crashes.",
    "spark.same_rows": "Spark reads the same rows as the other readers.",
    "spark.streams_exactly_once": "A stream killed at any point loses and repeats nothing.",
    "spark.native_needs_nothing_on_executors": "Spark's own reader and writer work on executors"
    " that have nothing but Spark.",
    "spark.rows_exact_when_executors_die": "Reads and writes keep every row once when executors are"
    " killed and tasks run twice.",
    "spark.catalog_table_is_never_dropped_to_be_replaced": "A statement that replaces a table of"
    " Spark's catalog is refused before Spark drops the table.",
    "spark.checkpoints_are_the_same": "A checkpoint written by Spark workers equals that of one"
    " process.",
    "errors.typed_and_named": "Damaged input raises a typed error that names the file.",
    "errors.survive_pickling": "Errors keep all their attributes when pickled.",
    "security.no_credentials": "No credential appears in an error, a log or a plan.",
    "security.paths_stay_inside": "A log cannot make readers access files outside the table's"
    " folder.",
    "security.bounded_memory": "A hostile log is refused before it exhausts memory.",
    "security.sandbox": "A sandboxed query reads nothing but the views and writes nothing.",
}

TITLES = {
    "commit": "Commits",
    "snapshot": "Snapshots",
    "scan": "Scans",
    "splits": "Splits",
    "predicate": "Predicates",
    "checkpoint": "Checkpoints",
    "cleanup": "Cleanup",
    "vacuum": "Vacuum",
    "maintenance": "Maintenance",
    "recovery": "Recovery",
    "storage": "Storage",
    "fork": "Forks",
    "spark": "Spark",
    "errors": "Errors",
    "security": "Security",
}


def marked_tests() -> list[tuple[str, str, str]]:
    """Return promise, file and test name of every marker, in the order of files and lines."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                found += [(promise, name, node.name) for promise in _promises_of(node)]
    return found


def _promises_of(test: ast.FunctionDef) -> list[str]:
    calls = [mark for mark in test.decorator_list if isinstance(mark, ast.Call)]
    return [
        ast.literal_eval(call.args[0])
        for call in calls
        if ast.unparse(call.func) == "pytest.mark.promise"
    ]


def page() -> str:
    """Return the page of promises and tests."""
    lines = [
        "# Promises",
        "",
        "What arrowlog promises, and the tests that prove it. Generated from the `promise` markers",
        "of the tests by `python tests/support/promises.py`. To run the tests of all promises:",
        "`python3 dev.py run pytest -m promise`.",
    ]
    tests: dict[str, list[tuple[str, str]]] = {promise: [] for promise in PROMISES}
    for promise, file, name in marked_tests():
        tests.setdefault(promise, []).append((file, name))
    for group, title in TITLES.items():
        lines += ["", f"## {title}"]
        for promise, sentence in PROMISES.items():
            if promise.partition(".")[0] == group:
                lines += ["", f"**`{promise}`** {sentence}", ""]
                lines += [f"- [{name}](../{file})" for file, name in tests[promise]]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(page())
