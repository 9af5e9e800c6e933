"""Cleanup, truncation and vacuum of tables with Avro states, against a naive model."""

import os
import random
import shutil
import warnings

import pyarrow as pa
import pytest
from support import state_tables as st
from support.case_count import cases

import arrowlog
from arrowlog.errors import ArrowlogWarning, InvalidRequest, LogCorrupt

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])


class Life:
    """A table and the expected rows of each version. Time passes by making files older."""

    def __init__(self, root, rng):
        self.root, self.rng = root, rng
        table = arrowlog.Table.create(root, SCHEMA, ["p"], options={"cleanup.enabled": False})
        table.upgrade_protocol(reader=4, writer=4)
        self.rows = {0: (), 1: ()}
        self.number = 0

    @property
    def newest(self):
        return max(self.rows)

    def open(self, **options):
        return arrowlog.Table(self.root, options=options)

    def do_write(self):
        ids = list(range(self.number, self.number + self.rng.randrange(1, 4)))
        self.number = ids[-1] + 1
        p = [self.rng.choice(["a", "b", "9", None]) for _ in ids]
        version = self.open().write(pa.table({"p": p, "id": ids}, SCHEMA)).version
        self.rows[version] = (*self.rows[version - 1], *ids)

    def do_overwrite(self):
        rows = pa.table({"p": ["a"], "id": [self.number]}, SCHEMA)
        version = self.open().write(rows, mode="overwrite").version
        self.rows[version] = (self.number,)
        self.number += 1

    def do_remove(self):
        table = self.open()
        files = table.snapshot().files["path"].to_pylist()
        if not files:
            return
        before = self.rows[self.newest]
        version = table.remove([self.rng.choice(files)]).version
        self.rows[version] = tuple(table.scan().to_arrow()["id"].to_pylist())
        assert set(self.rows[version]) < set(before)

    def do_restore(self):
        table = self.open()
        chosen = self.rng.choice([v for v in self.rows if v >= table.earliest_version])
        try:
            version = table.restore(chosen).version
        except InvalidRequest:  # the version has the same files as the newest one
            assert set(self.rows[chosen]) == set(self.rows[self.newest])
        else:
            self.rows[version] = self.rows[chosen]

    def do_compact(self):
        self.open().compact()
        for version in range(self.newest + 1, self.open().snapshot().version + 1):
            self.rows[version] = self.rows[version - 1]

    def do_checkpoint(self):
        self.open().checkpoint()

    def do_cleanup(self):
        duration = self.rng.choice(["0s", "36h", "3d"])
        done = self.open(**{"logRetention.duration": duration}).cleanup()
        readable = set(done.retention.versions)
        for version in set(self.rows) - readable - {self.newest}:
            del self.rows[version]

    def do_write_and_clean(self):
        """Commit and run the background cleanup. A copy of the log tells what it must keep."""
        options = {"logRetention.duration": self.rng.choice(["0s", "36h", "3d"])}
        rows = pa.table({"p": ["b"], "id": [self.number]}, SCHEMA)
        twin = self.root.with_name("twin")
        shutil.copytree(self.root, twin)  # the times of the files too
        copy = arrowlog.Table(twin, options={**options, "cleanup.enabled": False})
        copy.write(rows)
        readable = set(copy.cleanup().retention.versions)
        shutil.rmtree(twin)
        table = self.open(**options, **{"checkpoint.interval": 1})
        version = table.write(rows).version
        assert table.wait_for_checkpoint()
        self.rows[version] = (*self.rows[version - 1], self.number)
        self.number += 1
        for version in set(self.rows) - readable - {self.newest}:
            del self.rows[version]

    def do_truncate(self):
        self.open().truncate_history()
        for version in set(self.rows) - {0, self.newest}:
            del self.rows[version]

    def do_vacuum(self):
        self.open().vacuum("1d")

    def do_wait(self):
        """Let a day pass by making all files older."""
        for parent, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(parent, name)
                when = os.stat(path).st_mtime - 86_500
                os.utime(path, (when, when))

    def check(self):
        table = self.open()
        assert table.snapshot().version == self.newest
        for version, rows in self.rows.items():
            found = table.scan(version=version).to_arrow()["id"].to_pylist()
            assert sorted(found) == sorted(rows), version
        for version in range(self.newest):
            if version not in self.rows:
                with pytest.raises((InvalidRequest, LogCorrupt)):
                    table.snapshot(version=version).files  # noqa: B018 -- reads the manifests
        shown = table.snapshot().files["path"].to_pylist()
        assert st.as_states_only(self.root) == sorted(shown)
        assert st.as_pointer_and_commits(self.root) == sorted(shown)
        for version in st.state_versions(self.root):
            for item in st.read_record(self.root, version)["manifests"]:
                assert os.path.exists(st.log_file(self.root, item["path"]))


STEPS = (
    ["write"] * 6
    + ["remove", "wait"] * 2
    + ["overwrite", "restore", "compact", "checkpoint", "truncate", "vacuum"]
    + ["cleanup", "write_and_clean"] * 2
)


@pytest.mark.promise("cleanup.keeps_what_it_promises")
@pytest.mark.parametrize("seed", range(cases(4)))
def test_retained_versions_keep_their_rows(tmp_path, seed):
    rng = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArrowlogWarning)
        life = Life(tmp_path / "table", rng)
        done = []
        for _ in range(25):
            done.append(rng.choice(STEPS))
            getattr(life, f"do_{done[-1]}")()
            if done[-1] in ("cleanup", "write_and_clean", "truncate", "vacuum"):
                try:
                    life.check()
                except BaseException as error:
                    error.add_note(f"seed {seed}: {done}")
                    raise
        life.check()
