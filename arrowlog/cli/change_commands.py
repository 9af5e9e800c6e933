"""Commands that change a table: create, remove, restore, set-property and others."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

import arrowlog
from arrowlog.cli.app import (
    Count,
    commands,
    complete_folder,
    output_options,
    parse_pairs,
    read_paths,
    settings_options,
    with_table,
)
from arrowlog.cli.output import print_cleanup, print_record, print_table
from arrowlog.display import format_bytes, format_items

if TYPE_CHECKING:
    import pyarrow as pa

_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be done, change nothing.")


@commands.command()
@click.argument("table", shell_complete=complete_folder)
@click.argument("schema")
@click.option(
    "--partition-by", metavar="NAMES", help="Partition by these columns, separated by commas."
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parse_pairs,
    help="Set a table property. Repeatable.",
)
@click.option("--exist-ok", is_flag=True, help="Succeed if the table exists, whatever its schema.")
@settings_options
@output_options
def create(
    table: str,
    schema: str,
    partition_by: str | None,
    properties: dict[str, str],
    exist_ok: bool,  # noqa: FBT001 -- click gives it by name
    settings: dict[str, str],
    storage_options: dict[str, str],
    output: str,
    limit: int | None,
) -> None:
    r"""Create an empty table at TABLE with SCHEMA.

    SCHEMA is a Parquet file whose schema is used, a file with Spark's schema as JSON, or the
    columns themselves with the types of Spark SQL. Data files that are in the folder already do not
    become part of the table. The command fails if there is a table.

    \b
    Examples:
      arrowlog create /data/events "id bigint, day string" --partition-by day
      arrowlog create s3://bucket/events part-0.parquet
      arrowlog create /data/events schema.json --property checkpoint.interval=20
    """
    columns = [] if not partition_by else [name.strip() for name in partition_by.split(",")]
    made = arrowlog.Table.create(
        table,
        _read_schema(schema),
        columns,
        properties,
        exist_ok=exist_ok,
        storage_options=storage_options,
        options=settings,
    )
    if output == "text":
        print(f"Table {made.uri}, version {made.version}, {len(made.schema)} columns.")
    else:
        print_record(_create_row(made, columns), output, limit)


def _read_schema(text: str) -> object:
    """Return the schema of a Parquet file, the JSON in a file or in the text, or DDL."""
    if text.lstrip().startswith("{"):
        return text
    if text.endswith((".parquet", ".json")) or os.path.isfile(text):
        return _read_schema_file(text)
    from arrowlog.formats import parse_ddl

    return parse_ddl(text)


def _read_schema_file(path: str) -> object:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        if path.endswith(".json"):
            with open(path, encoding="utf-8") as file:
                return file.read()
        return parquet.read_schema(path)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        reason = str(error).split("\n", 1)[0].rstrip(".")
        raise arrowlog.InvalidRequest(
            f"The schema cannot be read from {path}: {reason}.",
            next="Give a Parquet file, a JSON file, or columns such as 'id bigint, day string'.",
        ) from None


def _create_row(table: arrowlog.Table, partition_columns: list[str]) -> pa.Table:
    import pyarrow as pa

    names = [f"{item.name}: {item.type}" for item in table.schema]
    return pa.table(
        {
            "uri": [table.uri],
            "version": [table.version],
            "columns": pa.array([names], pa.list_(pa.string())),
            "partition_columns": pa.array([partition_columns], pa.list_(pa.string())),
        }
    )


@commands.command()
@with_table
@click.argument("paths", nargs=-1)
@click.option(
    "--where", metavar="PREDICATE", help="Remove the partitions that this predicate selects."
)
@_DRY_RUN
@output_options
def remove(
    table: arrowlog.Table,
    paths: tuple[str, ...],
    where: str | None,
    dry_run: bool,  # noqa: FBT001 -- click gives it by name
    output: str,
    limit: int | None,
) -> None:
    r"""Remove data files from TABLE, by path or by partition.

    PATHS are paths of live files as `arrowlog files` lists them; - reads them from standard input,
    one per line. The predicate of --where uses partition columns only. The rows are gone from the
    newest version; earlier versions keep them, and the files stay on disk until `arrowlog vacuum`.
    `arrowlog restore` undoes the change.

    \b
    Examples:
      arrowlog remove /data/events --where "day < '2024-01-01'" --dry-run
      arrowlog remove /data/events day=2024-01-01/part-0.parquet
      arrowlog remove /data/events - < paths.txt
    """
    if bool(paths) == (where is not None):
        raise click.UsageError("Give either PATHS or --where.")
    chosen: object = where if where is not None else read_paths(paths)
    if dry_run:
        affected = _select_files(table, where, chosen)
        if output != "text" or affected.num_rows:
            print_table(affected, output, limit)
        if output == "text":
            print(
                f"{format_items(affected.num_rows, 'file')} would be removed, {_size_of(affected)}."
            )
        return
    done = table.remove(chosen)
    removed = done.operation_metrics.get("numRemovedFiles", 0)
    _print_commit(done, output, limit, f"{format_items(removed, 'file')} removed")


def _select_files(table: arrowlog.Table, where: str | None, chosen: object) -> pa.Table:
    """Return the live files that a removal would concern, after the same checks."""
    import pyarrow as pa
    import pyarrow.compute as pc

    plan = table.scan(where)
    files = plan.files.select(["path", "size_bytes", "num_records"])
    if where is not None:
        from arrowlog.predicate import parse_predicate

        used = parse_predicate(where, plan.snapshot.schema).columns
        others = sorted(used - set(plan.snapshot.partition_columns))
        if others or not used:
            reason = f"{others[0]!r} is not a partition column" if others else "it uses none"
            raise arrowlog.InvalidRequest(
                f"The predicate cannot select whole files: {reason}.",
                next="Use partition columns, or give the paths of the files.",
            )
        return files
    wanted = pa.array(chosen, pa.string())
    unknown = wanted.filter(pc.invert(pc.is_in(wanted, files["path"].combine_chunks())))
    if len(unknown):
        raise arrowlog.InvalidRequest(
            f"{unknown[0].as_py()!r} is not a live file of version {plan.version}.",
            next="`arrowlog files` lists them.",
        )
    return files.filter(pc.is_in(files["path"], wanted))


def _size_of(files: pa.Table) -> str:
    import pyarrow.compute as pc

    return format_bytes(pc.sum(files["size_bytes"]).as_py() or 0)


@commands.command()
@with_table
@click.argument("version", type=Count())
@_DRY_RUN
@output_options
def restore(
    table: arrowlog.Table,
    version: int,
    dry_run: bool,  # noqa: FBT001 -- click gives it by name
    output: str,
    limit: int | None,
) -> None:
    r"""Make an earlier VERSION of TABLE current again.

    Use it to undo a change: files, schema and properties become those of VERSION. The restoration
    is a new commit: the versions in between stay readable, and it can be undone the same way. It
    fails if a data file of VERSION was vacuumed.

    \b
    Examples:
      arrowlog history /data/events
      arrowlog restore /data/events 7 --dry-run
      arrowlog restore /data/events 7
    """
    if dry_run:
        difference = table.diff(table.version, version)
        if output == "text" and limit is None:
            print(difference)
        else:
            print_table(difference.to_arrow(), output, limit)
        return
    done = table.restore(version)
    _print_commit(done, output, limit, f"version {version} restored")


@commands.command("set-property")
@with_table
@click.argument("properties", nargs=-1, metavar="[KEY=VALUE]...", callback=parse_pairs)
@click.option("--unset", multiple=True, metavar="KEY", help="Remove a property. Repeatable.")
@output_options
def set_property(
    table: arrowlog.Table,
    properties: dict[str, str],
    unset: tuple[str, ...],
    output: str,
    limit: int | None,
) -> None:
    r"""Set or remove properties of TABLE.

    Properties that are settings of arrowlog, such as checkpoint.interval, apply to every program
    that opens the table, and must have valid values. Without KEY=VALUE and --unset, lists the
    properties.

    \b
    Examples:
      arrowlog set-property /data/events checkpoint.interval=20 owner=team-a
      arrowlog set-property /data/events --unset owner
      arrowlog set-property /data/events
    """
    changes: dict[str, object] = {**properties, **dict.fromkeys(unset)}
    if not changes:
        _print_properties(table, output, limit)
        return
    done = table.set_properties(changes)
    _print_commit(
        done, output, limit, f"{format_items(len(changes), 'property', 'properties')} changed"
    )


def _print_properties(table: arrowlog.Table, output: str, limit: int | None) -> None:
    import pyarrow as pa

    found = sorted(table.snapshot().metadata.configuration.items())
    rows = {"key": [key for key, _ in found], "value": [value for _, value in found]}
    schema = pa.schema([("key", pa.string()), ("value", pa.string())])
    if output != "text" or found:
        print_table(pa.table(rows, schema=schema), output, limit)
    if output == "text":
        print(f"{format_items(len(found), 'property', 'properties')}.")


@commands.command("truncate-history")
@with_table
@_DRY_RUN
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_options
def truncate_history(
    table: arrowlog.Table,
    dry_run: bool,  # noqa: FBT001 -- click gives it by name
    yes: bool,  # noqa: FBT001 -- the same
    output: str,
    limit: int | None,
) -> None:
    r"""Delete all versions of TABLE before the newest one.

    Use it to get rid of a long or damaged history; run it with --dry-run first. Writes a checkpoint
    of the newest version, then deletes the earlier commits. Earlier versions can no longer be read
    or restored. Data files stay until `arrowlog vacuum`. On a terminal, asks for confirmation.

    \b
    Examples:
      arrowlog truncate-history /data/events --dry-run
      arrowlog truncate-history /data/events --yes
    """
    if not dry_run and not yes and sys.stdin.isatty():
        click.confirm(
            f"Delete all versions of {table.uri} before version {table.version}?", abort=True
        )
    print_cleanup(table.truncate_history(dry_run=dry_run), output, limit)


@commands.command("update-statistics")
@with_table
@click.argument("paths", nargs=-1)
@click.option("--where", metavar="PREDICATE", help="Update the files that may have matching rows.")
@_DRY_RUN
@output_options
def update_statistics(
    table: arrowlog.Table,
    paths: tuple[str, ...],
    where: str | None,
    dry_run: bool,  # noqa: FBT001 -- click gives it by name
    output: str,
    limit: int | None,
) -> None:
    r"""Read missing statistics of TABLE from Parquet footers.

    Use it for files that another program added without row counts and bounds, which no query can
    skip. The statistics are committed; rows do not change. PATHS
    are paths of live files; - reads them from standard input, one per line.

    \b
    Examples:
      arrowlog update-statistics /data/events day=2024-01-01/part-0.parquet
      arrowlog update-statistics /data/events --where "id > 0" --dry-run
    """
    if bool(paths) == (where is not None):
        raise click.UsageError("Give either PATHS or --where.")
    chosen = read_paths(paths) if where is None else table.scan(where).paths
    if dry_run:
        import pyarrow as pa

        listed = pa.table({"path": pa.array(chosen, pa.string())})
        if output != "text" or listed.num_rows:
            print_table(listed, output, limit)
        if output == "text":
            print(f"Would read the footers of {format_items(listed.num_rows, 'file')}.")
        return
    done = table.update_statistics(chosen)
    _print_commit(done, output, limit, f"statistics of {format_items(len(chosen), 'file')} updated")


def _print_commit(done: arrowlog.CommitResult, output: str, limit: int | None, what: str) -> None:
    """Print the result of a commit: a sentence, or one record."""
    if output == "text":
        print(f"Version {done.version}: {what}.")
        return
    import pyarrow as pa

    row: dict[str, Any] = {
        "version": [done.version],
        "operation": [done.operation],
        "timestamp": pa.array([done.timestamp], pa.timestamp("ms", "UTC")),
        "attempts": [done.attempts],
        "txn_id": pa.array([done.txn_id], pa.string()),
        **{name: [count] for name, count in done.operation_metrics.items()},
    }
    print_record(pa.table(row), output, limit)
