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
    "commit.exactly_once": "A commit lands once, whatever the store loses, delays or repeats.",
    "commit.acknowledged_is_durable": "An acknowledged commit is never lost, also if its writer is"
    " killed right after.",
    "commit.outcome_is_true": "What a writer is told is true: committed, in conflict, or unknown"
    " with the transaction id.",
    "commit.no_gap": "No writer leaves or fills a gap in the log.",
    "commit.conflicts_are_found": "A commit that would not mean the same after a winning commit"
    " raises `CommitConflict`.",
    "commit.serializable": "Concurrent commits are as if one came after the other.",
    "commit.idempotent_write": "An application transaction is committed once, however often it is"
    " repeated.",
    "commit.stalled_writers": "A writer that was stopped at any point, for any time, neither loses"
    " nor repeats a commit.",
    "commit.refused_leaves_no_trace": "A request that is refused changes nothing.",
    "snapshot.log_replay": "Every version has the files that a naive replay of the log gives.",
    "snapshot.refresh_equals_open": "A refreshed snapshot equals one that is opened anew.",
    "snapshot.decoders_agree": "The columnar, the schema and the row decoder say the same,"
    " of damaged lines too.",
    "snapshot.never_older": "Damage never makes a table look older than it is.",
    "snapshot.caches_change_nothing": "Caches in memory and on disk change no answer.",
    "snapshot.time_travel": "A moment leads to the version that was the newest then.",
    "scan.no_row_is_lost": "A file is skipped only if no row of it can match.",
    "scan.engines_agree": "DuckDB, by the SQL of a plan, and Arrow choose the same files.",
    "scan.later_filters_skip_files": "Filters on a lazy frame, dataset or relation skip files"
    " before any is opened.",
    "scan.readers_agree": "polars, DuckDB, Arrow and Spark read the same rows from a plan.",
    "scan.missing_data_is_named": "A data file that cannot be read is named, with the version that"
    " added it.",
    "splits.rows_are_complete": "Every row of a split comes back as it was written, deleted ones"
    " excepted.",
    "splits.search_is_exact": "A search finds exactly the rows that a naive search finds.",
    "splits.damage_is_found": "A damaged split raises a typed error and writes nothing outside the"
    " cache.",
    "predicate.meaning": "A predicate means the same in every form, reader and layout.",
    "predicate.limits": "A predicate that is too long or too deep is refused in words, without a"
    " crash.",
    "checkpoint.changes_nothing": "A checkpoint changes no version.",
    "checkpoint.damage_is_found": "A damaged checkpoint is found by its checksums and not used.",
    "checkpoint.pointer_is_a_hint": "A wrong or missing `_last_checkpoint` changes no answer.",
    "checkpoint.never_fails_a_commit": "A background checkpoint that fails or hangs affects no"
    " commit.",
    "checkpoint.one_per_interval": "Concurrent writers make each checkpoint once.",
    "cleanup.keeps_what_it_promises": "Cleanup deletes what retention allows and nothing that a"
    " readable version needs.",
    "cleanup.readers_recover": "A reader that loses files to a cleanup looks again and answers.",
    "vacuum.deletes_only_orphans": "Vacuum deletes only files that no readable version needs.",
    "vacuum.beside_writers": "Vacuum and truncation beside running writers lose no row and no"
    " commit.",
    "maintenance.no_row_is_lost": "Maintenance in any order, killed at any moment, loses no row.",
    "maintenance.compaction_keeps_rows": "Compaction beside writers changes no row.",
    "recovery.doctor_is_right": "A table that the doctor calls healthy can be read and written.",
    "recovery.advice_loses_nothing": "Following the advice of the doctor loses no row, and doubles"
    " none.",
    "recovery.repair_keeps_what_can_be_read": "A repair keeps exactly what can still be read.",
    "recovery.repair_is_restartable": "A repair that is killed leaves no half log that opens; run"
    " again, it finishes.",
    "recovery.rebuild_keeps_rows": "A log that is rebuilt from the data files has the rows of the"
    " lost one.",
    "recovery.rebuild_is_atomic": "A rebuild makes the whole table or none, also if it is killed or"
    " another one runs.",
    "storage.one_winner": "Of many writers that put one key, exactly one wins, and its bytes are"
    " there.",
    "storage.whole_or_absent": "An object is there as a whole or not at all, also after a kill.",
    "storage.outcome_is_true": "What a store says about a put is true, on a faulty network too.",
    "storage.gives_up_in_time": "A store that does not answer raises `StoreUnavailable` after the"
    " configured time.",
    "storage.same_contract": "All stores keep the same contract.",
    "fork.works_or_says_so": "In a forked child every call works or raises `ForkedProcess`; none"
    " hangs or crashes.",
    "spark.same_rows": "Spark reads the rows that the other readers read.",
    "spark.streams_exactly_once": "A stream that is killed at any point loses and repeats nothing.",
    "spark.native_needs_nothing_on_executors": "Spark's own reader and writer work on executors"
    " that have nothing but Spark.",
    "spark.rows_exact_when_executors_die": "Reads and writes keep every row once when executors are"
    " killed and tasks run twice.",
    "spark.checkpoints_are_the_same": "A checkpoint made by Spark workers is that of one process.",
    "errors.typed_and_named": "Damaged input raises a typed error that names the file.",
    "errors.survive_pickling": "An error crosses processes with all its parts.",
    "security.no_credentials": "No credential appears in an error, a log or a plan.",
    "security.paths_stay_inside": "A log cannot make readers leave the table's folder.",
    "security.bounded_memory": "A hostile log is refused before it fills the memory.",
    "security.sandbox": "A sandboxed query reaches nothing outside and writes nothing.",
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
