"""Following the doctor's advice literally repairs a table and loses nothing.

Random tables are damaged; then the commands that `arrowlog doctor` prints are run verbatim, with
`vacuum` between them, until no error is left. A naive model knows what every commit did:

- No data file that a commit of the undamaged log names is ever deleted, unless the commit was
  the last one and no other trace of it is in the log: its files then look like those of a write
  that was never committed.
- Every row that could be read before the advice was followed can be read afterwards.
- No row is duplicated, and rows of intact commits that only appended are recovered.
"""

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import time
import warnings
from collections import Counter

import pyarrow as pa
import pytest
from click.testing import CliRunner
from support.case_count import cases, first_seed

import arrowlog
from arrowlog.cli.commands import commands
from arrowlog.cli.recovery_commands import to_command
from arrowlog.formats.indextables.format import LOG_FOLDER, commit_name

SCHEMA = pa.schema([("day", pa.string()), ("id", pa.int64())])
MAX_ROUNDS = 8
MONTH = 30 * 86_400


class World:
    """A table, and what a naive model knows about it."""

    def __init__(self, root, rng):
        self.root, self.rng = str(root), rng
        self.next_id = self.newest = 0
        self.appended = {}  # version -> ids of a commit that only appended
        self.named = {}  # data file -> the version that named it first
        self.table = arrowlog.Table.create(
            root, SCHEMA, ["day"], properties={"checkpoint.enabled": "false"}
        )

    def write(self, mode="append", **how):
        ids = range(self.next_id, self.next_id + self.rng.randint(1, 3))
        self.next_id = ids.stop
        day = how.pop("day", None) or self.rng.choice("abc")
        rows = pa.table({"day": [day] * len(ids), "id": list(ids)}, schema=SCHEMA)
        version = self.table.write(rows, mode, **how).version
        if mode == "append":
            self.appended[version] = set(ids)
        self.note()

    def step(self):
        kind = self.rng.choices(
            ["write", "compact", "replace", "remove", "checkpoint"], [6, 2, 1, 1, 1]
        )[0]
        if kind == "write":
            self.write()
        elif kind == "compact":
            self.table.compact()
        elif kind == "replace":
            day = self.rng.choice("abc")
            self.write("overwrite", where=f"day = '{day}'", day=day)
        elif kind == "remove" and self.table.snapshot().num_files > 1:
            self.table.remove([self.table.snapshot().files["path"][0].as_py()])
        elif kind == "checkpoint":
            self.table.checkpoint()
        self.note()

    def note(self):
        self.newest = self.table.version
        for path in self.table.snapshot().files["path"].to_pylist():
            self.named.setdefault(path, self.newest)

    def newest_trace(self):
        """Return the highest version in file names of the log and in the pointer."""
        log = f"{self.root}/{LOG_FOLDER}"
        names = (name for _, _, names in os.walk(log) for name in names)
        versions = [int(name.partition(".")[0]) for name in names if name[0].isdigit()]
        try:
            with open(f"{log}/_last_checkpoint", encoding="utf-8") as file:
                versions.append(int(json.load(file)["version"]))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # no pointer, or an unreadable one
        return max(versions)

    def damage(self):
        """Lose, cut or change a commit, or a checkpoint, or the pointer; return the version."""
        log = f"{self.root}/{LOG_FOLDER}"
        commits = [commit_name(v) for v in range(1, self.newest + 1)]
        others = [name for name in os.listdir(log) if "checkpoint" in name]
        name = self.rng.choice(commits if self.rng.random() < 0.8 or not others else others)
        path = f"{log}/{name}"
        version = int(name.partition(".")[0]) if name in commits else None
        if not os.path.exists(path):
            return version
        how = self.rng.choice(["gone", "gone", "cut", "changed"])
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif how == "gone":
            os.unlink(path)
        else:
            with open(path, "rb") as file:
                data = file.read()
            at = self.rng.randrange(len(data))
            changed = bytes([data[at] ^ 8])
            data = data[:at] if how == "cut" else data[:at] + changed + data[at + 1 :]
            with open(path, "wb") as file:
                file.write(data)
        return version


def age(root):
    """Make every file a month old, so that vacuum may delete orphans."""
    then = time.time() - MONTH
    for base, _, names in os.walk(root):
        for name in names:
            os.utime(f"{base}/{name}", (then, then))


def ids_of(root):
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", arrowlog.ArrowlogWarning
        )  # warnings about gaps, which are intended here
        try:
            return Counter(arrowlog.Table(root).to_arrow()["id"].to_pylist())
        except arrowlog.ArrowlogError:
            return Counter()


def execute(line, *, may_refuse=False):
    """Run a printed command line: `arrowlog` in this process, `mv` and pipes as the shell would."""
    for part in line.partition("  # ")[0].split(" && "):
        if part.startswith("mv "):
            _, source, target = shlex.split(part)
            assert not os.path.exists(target), target
            os.rename(source, target)
            continue
        piped = None
        for command in part.split(" | "):
            program, *words = shlex.split(command)
            assert program == "arrowlog", line
            done = CliRunner().invoke(commands, words, input=piped)
            allowed = (SystemExit, arrowlog.ArrowlogError) if may_refuse else SystemExit
            assert done.exception is None or isinstance(done.exception, allowed), (line, done)
            assert done.exit_code != 2, (line, done.output)
            piped = done.stdout


def follow_advice(world):
    for _ in range(MAX_ROUNDS):
        age(world.root)
        findings = arrowlog.doctor(world.root)
        for finding in findings:
            command = to_command(finding.fix, world.root)
            if command.startswith("arrowlog ") and finding.severity != "info":
                execute(command)
                if " --dry-run" not in command:
                    break
        else:
            return
        age(world.root)
        if arrowlog.doctor(world.root).worst != "error":
            # Vacuum refuses as long as a commit is damaged, even below a checkpoint.
            execute(f"arrowlog vacuum {shlex.quote(world.root)}", may_refuse=True)
    raise AssertionError(f"The advice does not end: {arrowlog.doctor(world.root)}")


@pytest.mark.promise("recovery.advice_loses_nothing")
def test_following_the_advice_loses_nothing(tmp_path):
    first = first_seed()
    for seed in range(first, first + cases(25)):
        print("seed", seed)
        run(tmp_path / str(seed), random.Random(seed))
        shutil.rmtree(tmp_path / str(seed))


def run(root, rng):
    world = World(root, rng)
    only_appends = rng.random() < 0.3
    world.write()  # ensures a commit to damage, even if no step below changes anything
    for _ in range(rng.randint(3, 12)):
        if only_appends:
            world.write()
        else:
            world.step()
    damaged = [world.damage() for _ in range(rng.choice([1, 1, 2]))]
    known = world.newest_trace()
    on_disk = {
        path
        for path, version in world.named.items()
        if version <= known and os.path.exists(f"{root}/{path}")
    }
    before = ids_of(root)
    follow_advice(world)
    lost = [path for path in on_disk if not os.path.exists(f"{root}/{path}")]
    assert not lost
    after = ids_of(root)
    assert before.keys() <= after.keys()
    assert max(after.values(), default=1) == 1
    if only_appends:
        intact = (ids for version, ids in world.appended.items() if version not in damaged)
        assert set().union(*intact) <= after.keys()
    table = arrowlog.Table(root)
    table.write(pa.table({"day": ["a"], "id": [10**6]}, schema=SCHEMA))  # it can be written again


def build(root, commits):
    table = arrowlog.Table.create(root, SCHEMA, ["day"], properties={"checkpoint.enabled": "false"})
    for number in range(commits):
        table.write(pa.table({"day": ["a"], "id": [number]}, schema=SCHEMA))
    return table


def test_printed_commands_run_in_a_shell(tmp_path):
    root = tmp_path / "my table"
    build(root, 6)
    os.unlink(root / LOG_FOLDER / commit_name(4))
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "arrowlog"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m arrowlog "$@"\n')
    program.chmod(0o755)

    def shell(line):
        path = f"{folder}:{os.environ['PATH']}"
        return subprocess.run(
            line, shell=True, capture_output=True, text=True, check=False,
            env={**os.environ, "PATH": path},
        )  # fmt: skip

    def printed_fix(code):
        lines = shell(f"arrowlog doctor {shlex.quote(str(root))}").stdout.splitlines()
        at = next(n for n, line in enumerate(lines) if f": {code}: " in line)
        return next(line for line in lines[at:] if line.startswith("  fix: ")).split("fix:", 1)[1]

    assert shell(printed_fix("gap")).returncode == 0
    assert ids_of(root) == Counter([0, 1, 2])
    done = shell(printed_fix("stranded"))
    assert done.returncode == 0, done.stderr
    assert ids_of(root) == Counter([0, 1, 2, 4, 5])
    last = shell(f"arrowlog doctor {shlex.quote(str(root))}")
    assert last.returncode == 0
    assert "stranded" not in last.stdout


def test_compacted_files_beyond_a_gap_are_not_adopted(tmp_path):
    """The lost commit may have been a compaction: its rows are already in the table."""
    root = tmp_path / "t"
    table = build(root, 3)
    table.compact()  # version 4, which is lost
    table.write(pa.table({"day": ["a"], "id": [3]}, schema=SCHEMA))
    table.compact()
    os.unlink(root / LOG_FOLDER / commit_name(4))
    arrowlog.repair(str(root / LOG_FOLDER), str(root / "new"))
    os.rename(root / LOG_FOLDER, root / "_transaction_log_old")
    os.rename(root / "new", root / LOG_FOLDER)
    findings = arrowlog.doctor(root)
    assert "stranded-unclear" in findings
    assert "stranded" not in findings
    assert ids_of(root) == Counter([0, 1, 2])


def test_files_of_an_earlier_repair_are_not_adopted_twice(tmp_path):
    root = tmp_path / "t"
    build(root, 4)
    for old in ("_transaction_log_old", "_transaction_log_old2"):
        table = arrowlog.Table(root)
        os.unlink(root / LOG_FOLDER / commit_name(3 if old.endswith("old") else table.version - 1))
        arrowlog.repair(str(root / LOG_FOLDER), str(root / "new"))
        os.rename(root / LOG_FOLDER, root / old)
        os.rename(root / "new", root / LOG_FOLDER)
        table = arrowlog.Table(root)
        if old.endswith("old"):
            table.adopt(arrowlog.doctor(root).paths("stranded"))
            table.compact()
            table.write(pa.table({"day": ["a"], "id": [7]}, schema=SCHEMA))
            table.write(pa.table({"day": ["a"], "id": [8]}, schema=SCHEMA))
    for finding in arrowlog.doctor(root):
        assert "_transaction_log_old2" in finding.fix or finding.code == "other-log", finding
    follow = [f for f in arrowlog.doctor(root) if f.code == "stranded"]
    for finding in follow:
        execute(to_command(finding.fix, str(root)))
    assert max(ids_of(root).values()) == 1


def test_vacuum_keeps_files_of_a_backup_log_unless_the_log_is_ignored(tmp_path):
    root = tmp_path / "t"
    table = build(root, 2)
    shutil.copytree(root / LOG_FOLDER, root / "_transaction_log_backup")
    gone = table.snapshot().files["path"].to_pylist()[0]
    table.remove([gone])
    table.truncate_history()
    age(root)
    now = {"older_than": "1s", "force": True}
    time.sleep(1.1)  # the removal itself must be older than that
    kept = table.vacuum(**now)
    assert kept.num_files == 0
    assert kept.other_logs == ("_transaction_log_backup",)
    assert (root / gone).exists()
    with pytest.raises(arrowlog.InvalidRequest, match="_transaction_log_backup"):
        table.vacuum(ignore_logs=["_transaction_log_old"], **now)
    assert "stranded" not in table.doctor()  # the rows were removed on purpose
    assert table.vacuum(ignore_logs=["_transaction_log_backup"], **now).num_files == 1
    assert not (root / gone).exists()


def test_adopt_refuses_files_that_do_not_fit_the_table(tmp_path):
    import pyarrow.parquet as pq

    root = tmp_path / "t"
    table = build(root, 2)
    live = table.snapshot().files["path"].to_pylist()
    removed = live[0]
    table.remove([removed])
    os.makedirs(root / "day=b", exist_ok=True)
    pq.write_table(pa.table({"id": ["text"]}), root / "day=b/text.parquet")
    pq.write_table(pa.table({"id": [5]}), root / "nowhere.parquet")
    (root / "day=b/torn.parquet").write_bytes(b"PAR1")
    version = table.version
    for paths, message in (
        ([live[1]], "in the table already"),
        ([removed], "a commit removed it"),
        (["day=b/text.parquet"], "text.parquet"),
        (["day=b/torn.parquet"], "torn.parquet"),
        (["day=b/none.parquet"], "no file"),
        (["nowhere.parquet"], "partition"),
        (["../x.parquet"], "x.parquet"),
        ([], "empty"),
    ):
        with pytest.raises(arrowlog.InvalidRequest, match=message):
            table.adopt(paths)
    assert table.version == version
    assert table.adopt("nowhere.parquet", partition_values={"day": "z"}, dry_run=True).dry_run
    assert table.version == version
    assert table.adopt("nowhere.parquet", partition_values={"day": "z"}).version == version + 1
    assert table.adopt(removed, allow_removed=True).num_records == 1
    assert ids_of(root) == Counter([0, 1, 5])


def put_in_place(root, old="_transaction_log_old"):
    """Repair the log, and put the new one in the place of the old one."""
    arrowlog.repair(str(root / LOG_FOLDER), str(root / "new"))
    os.rename(root / LOG_FOLDER, root / old)
    os.rename(root / "new", root / LOG_FOLDER)


def test_vacuum_keeps_the_files_of_lost_last_versions(tmp_path):
    """Only the pointer shows that the log was longer: files of lost versions are no orphans."""
    root = tmp_path / "t"
    table = build(root, 4)
    table.checkpoint()
    live = set(table.snapshot().files["path"].to_pylist())
    for name in (commit_name(3), commit_name(4)):
        os.unlink(root / LOG_FOLDER / name)
    for path in root.glob(f"{LOG_FOLDER}/**/*.checkpoint.*"):
        path.unlink()
    age(root)
    findings = arrowlog.doctor(root)
    assert "pointer-ahead" in findings
    assert "orphans" not in findings
    with pytest.raises(arrowlog.LogCorrupt, match="ends at version 2"):
        arrowlog.Table(root).vacuum()
    put_in_place(root)
    age(root)
    findings = arrowlog.doctor(root)
    assert "orphans" not in findings
    lost = findings.paths("other-log")
    assert len(lost) == 2
    assert arrowlog.Table(root).vacuum().num_files == 0
    assert all((root / path).exists() for path in live)
    arrowlog.Table(root).adopt(lost)
    assert ids_of(root) == Counter(range(4))


def test_backup_log_with_only_checkpoints_is_complete(tmp_path):
    """A checkpoint that is only in `_checkpoints` is the newest version of a backup log, too."""
    root = tmp_path / "t"
    table = build(root, 2)
    table.checkpoint()
    shutil.copytree(root / LOG_FOLDER, root / "_transaction_log_backup")
    for path in (root / "_transaction_log_backup").glob("*.json"):
        path.unlink()
    (root / "day=a/orphan.parquet").write_bytes(b"x")
    age(root)
    assert table.vacuum().num_files == 1


def test_doctor_follows_symbolic_links_to_data_files(tmp_path):
    root = tmp_path / "t"
    build(root, 2)
    os.rename(root / "day=a", tmp_path / "other disk")
    os.symlink(tmp_path / "other disk", root / "day=a")
    assert ids_of(root) == Counter([0, 1])
    assert arrowlog.doctor(root).healthy
    lost = next((tmp_path / "other disk").iterdir())
    lost.unlink()
    assert arrowlog.doctor(root).paths("data-missing") == [f"day=a/{lost.name}"]


def test_adopt_refuses_links_to_files_of_the_table(tmp_path):
    root = tmp_path / "t"
    table = build(root, 2)
    live = table.snapshot().files["path"].to_pylist()[0]
    os.symlink(root / live, root / "day=a/soft.parquet")
    os.link(root / live, root / "day=a/hard.parquet")
    os.symlink(root / "day=a", root / "day=b")
    for path in ("day=a/soft.parquet", "day=a/hard.parquet", live.replace("day=a", "day=b")):
        with pytest.raises(arrowlog.InvalidRequest, match=r"same file as .* in the table already"):
            table.adopt(path)
    shutil.copy(root / live, root / "day=a/new.parquet")
    os.link(root / "day=a/new.parquet", root / "day=a/again.parquet")
    with pytest.raises(arrowlog.InvalidRequest, match="is given as well"):
        table.adopt(["day=a/new.parquet", "day=a/again.parquet"])
    assert table.adopt("day=a/new.parquet").num_files == 1


def test_rebuild_refuses_symbolic_links(tmp_path):
    """Rows behind a link would be missing from the new table."""
    root = tmp_path / "t"
    build(root, 2)
    shutil.rmtree(root / LOG_FOLDER)
    shutil.copytree(root / "day=a", tmp_path / "other disk")
    os.symlink(tmp_path / "other disk", root / "day=b")
    os.symlink(tmp_path / "other disk", root / "_hidden")
    (problem,) = arrowlog.rebuild(root, dry_run=True).problems
    assert (problem.code, problem.files.to_pylist()) == ("links", ["day=b"])
    with pytest.raises(arrowlog.DataFileError, match="not followed"):
        arrowlog.rebuild(root)
    os.unlink(root / "day=b")
    assert arrowlog.rebuild(root).num_records == 2


def test_rebuild_after_renaming_the_remains_of_a_log(tmp_path):
    root = tmp_path / "t"
    build(root, 2).checkpoint()
    for path in root.glob(f"{LOG_FOLDER}/**/*"):
        if path.is_file() and path.name != "_last_checkpoint":
            path.unlink()
    (finding,) = arrowlog.doctor(root)
    assert "rename _transaction_log to _transaction_log_old" in finding.fix
    assert "arrowlog rebuild --ignore-logs" in finding.fix
    os.rename(root / LOG_FOLDER, root / "_transaction_log_old")
    execute(f"arrowlog rebuild --ignore-logs {root}")
    assert ids_of(root) == Counter([0, 1])


def test_failed_fix_does_not_stop_other_fixes(tmp_path):
    root = tmp_path / "t"
    table = build(root, 2)
    table.checkpoint()
    path = root / table.snapshot().files["path"].to_pylist()[0]
    path.write_bytes(b"PAR1")
    (root / LOG_FOLDER / "_last_checkpoint").unlink()
    found = arrowlog.doctor(root)
    assert {"data-size", "pointer-stale"} <= set(found.codes)
    result = CliRunner().invoke(commands, ["doctor", str(root), "--fix", "--fail-on", "warning"])
    assert result.exit_code == 1
    assert "failed: " in result.stderr
    assert path.name in result.stderr
    assert "pointer-stale" not in arrowlog.doctor(root)
    shown = CliRunner().invoke(
        commands, ["doctor", str(root), "--paths", "data-size", "--output", "json"]
    )
    assert json.loads(shown.stdout) == [{"path": str(path.relative_to(root))}]


def test_vacuum_keeps_the_files_of_an_overwritten_commit(tmp_path):
    root = tmp_path / "t"
    build(root, 4)
    shutil.copy(root / LOG_FOLDER / commit_name(2), root / LOG_FOLDER / commit_name(3))
    age(root)
    assert ids_of(root) == Counter([0, 1, 3])
    findings = arrowlog.doctor(root)
    assert "commit-copied" in findings
    assert "orphans" not in findings
    with pytest.raises(arrowlog.LogCorrupt, match="a copy of that of version 2"):
        arrowlog.Table(root).vacuum()
    (fix,) = [finding.fix for finding in findings if finding.code == "commit-copied"]
    for command in to_command(fix, str(root)).partition("  # ")[0].split(" && "):
        execute(command)
    age(root)
    assert ids_of(root) == Counter([0, 1, 3])
    assert arrowlog.Table(root).vacuum().num_files == 0
    arrowlog.Table(root).adopt(arrowlog.doctor(root).paths("other-log"))
    assert ids_of(root) == Counter(range(4))


def test_doctor_warns_that_stranded_files_before_a_second_gap_may_be_removed(tmp_path):
    root = tmp_path / "t"
    table = build(root, 4)
    known = set(table.snapshot(version=3).files["path"].to_pylist())
    (newest,) = set(table.snapshot().files["path"].to_pylist()) - known
    table.remove([newest])  # version 5, which is lost
    table.write(pa.table({"day": ["a"], "id": [9]}, schema=SCHEMA))
    for version in (2, 5):
        os.unlink(root / LOG_FOLDER / commit_name(version))
    put_in_place(root)
    (finding,) = [each for each in arrowlog.doctor(root) if each.code == "stranded"]
    assert newest in finding.files.to_pylist()
    assert "Version 5 of that log is lost, too" in finding.what
