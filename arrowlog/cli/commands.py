"""The commands that only read, and the run of the command line with its warnings and exit codes.

Commands that change, maintain or recover a table have modules of their own. No module imported here
loads an engine, so that help and shell completion are quick. Commands import what they need when
they run.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import warnings
from typing import TYPE_CHECKING

import click

import arrowlog
from arrowlog.cli import change_commands, recovery_commands  # noqa: F401 -- add their commands
from arrowlog.cli.app import (
    commands,
    output_options,
    version_option,
    with_table,
)
from arrowlog.cli.output import print_record, print_table, progress_bar
from arrowlog.display import format_bytes, format_items

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from arrowlog.history import Grouping
    from arrowlog.scan import Engine

_COLOURS = {"warning:": "yellow", "log": "green"}
_COMMIT_COLUMNS = ("version", "timestamp", "operation", "adds", "removes", "bytes", "rows")
_GROUP_COLUMNS = ("commits", "adds", "removes", "bytes", "rows")


@commands.command()
@with_table
@output_options
def info(table: arrowlog.Table, output: str, limit: int | None) -> None:
    r"""Summarize TABLE: size, schema, last commits and warnings.

    Start here with a table you do not know. Warnings name what needs attention, such as missing
    commits, an old checkpoint or many small files. Only the log is read: `arrowlog doctor` also
    checks that every data file exists. --limit sets how many of the last commits are shown, 5
    without it.

    \b
    Examples:
      arrowlog info /data/events
      arrowlog info s3://bucket/events --output json
    """
    overview = table.overview(5 if limit is None else limit)
    if output != "text":
        print_record(overview.to_arrow(), output)
        return
    for line in str(overview).splitlines():
        first = line.partition(" ")[0]
        colour = None if line == overview.health and not overview.healthy else _COLOURS.get(first)
        click.secho(line, fg=colour, bold=first in ("version", overview.uri) or None)


@commands.command()
@with_table
@click.option("--where", metavar="PREDICATE", help="List only files that may have matching rows.")
@version_option
@output_options
def files(
    table: arrowlog.Table, where: str | None, version: int | None, output: str, limit: int | None
) -> None:
    r"""List the live data files of TABLE.

    Use it to see the size, row count and partition of each file, now or at an earlier version.
    Text output has the main columns; json, csv and arrow have all of them, including statistics.

    \b
    Examples:
      arrowlog files /data/events --limit 20
      arrowlog files /data/events --version 7 --output csv
      arrowlog files /data/events --where "day = '2024-01-01'"
    """
    plan = table.scan(where, version)
    live = plan.files
    if output == "text":
        names = [f"partition.{name}" for name in plan.snapshot.partition_columns]
        names = ["path", *names, "size_bytes", "num_records"]
        print_table(live.select(names), output, limit)
        size = format_bytes(plan.size_bytes)
        print(f"{format_items(plan.num_files, 'file')}, {size}, version {plan.version}")
    else:
        print_table(live, output, limit)


@commands.command()
@with_table
@click.argument("predicate")
@click.option(
    "--engine",
    type=click.Choice(["arrow", "duckdb"]),
    default="arrow",
    show_default=True,
    help="Plan with this engine; both select the same files.",
)
@version_option
@output_options
def scan(
    table: arrowlog.Table,
    predicate: str,
    engine: Engine,
    version: int | None,
    output: str,
    limit: int | None,
) -> None:
    r"""List the files that a query with PREDICATE has to read.

    Use it to see how well the partitions and statistics of TABLE prune. PREDICATE is a SQL
    condition on the columns of the table. Files are listed unless the log proves that no row
    matches.

    \b
    Examples:
      arrowlog scan /data/events "day = '2024-01-01' AND id BETWEEN 5 AND 9"
      arrowlog scan /data/events "day >= current_date - 7" --output json
    """
    plan = table.scan(predicate, version, engine=engine)
    names = [f"partition.{name}" for name in plan.snapshot.partition_columns]
    names = ["path", *names, "size_bytes", "num_records"]
    print_table(plan.files.select(names), output, limit)
    if output == "text":
        print(f"{plan.num_files:,} of {plan.total_files:,} files, {format_bytes(plan.size_bytes)}")


@commands.command()
@with_table
@click.argument("predicate")
@click.option(
    "--min-pruning",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Exit with 1 if less than this share of the files, from 0 to 1, is pruned.",
)
@click.option("--sql", "as_sql", is_flag=True, help="Print the plan as a query for arrowlog sql.")
@version_option
@output_options
def explain(
    table: arrowlog.Table,
    predicate: str,
    min_pruning: float | None,
    as_sql: bool,  # noqa: FBT001 -- click gives it by name
    version: int | None,
    output: str,
    limit: int | None,
) -> None:
    r"""Explain which files each clause of PREDICATE prunes.

    Use it when a query reads more of TABLE than expected. Text output has one line per clause: the
    files it drops, and why it keeps the others (no statistics, truncated bounds, not prunable).
    json, csv and arrow output have one row per file and clause. With --sql, prints the DuckDB query
    that selects the same files from their bounds.

    \b
    Examples:
      arrowlog explain /data/events "day = '2024-01-01' AND id > 900"
      arrowlog explain /data/events "id = 7" --min-pruning 0.9
      arrowlog explain /data/events "id = 7" --sql | arrowlog sql /data/events
    """
    plan = table.scan(predicate, version)
    explanation = plan.explain()
    if as_sql:
        print(plan.sql)
    elif output == "text":
        print(explanation)
    else:
        print_table(explanation.to_arrow(), output, limit)
    if min_pruning is not None and explanation.pruned < min_pruning:
        raise arrowlog.ArrowlogError(
            f"{explanation.pruned:.1%} of the files are pruned, {min_pruning:.1%} are required.",
            next="The explanation shows which clause prunes nothing, and why.",
        )


@commands.command()
@with_table
@click.option(
    "--by",
    type=click.Choice(["hour", "day", "month", "operation", "engine_info", "app_id"]),
    multiple=True,
    help="Print one line per group of commits; repeat it for several. Times are UTC.",
)
@output_options
def history(
    table: arrowlog.Table, by: tuple[Grouping, ...], output: str, limit: int | None
) -> None:
    r"""List the commits of TABLE, newest first.

    Use it to see what was changed when: time, operation, files added and removed, bytes, rows.
    With --by, these are added up per hour, day, month, operation or writer. With --limit, only that
    many commits are read. Text output has the main columns; json, csv and arrow have all of them.

    \b
    Examples:
      arrowlog history /data/events --limit 10
      arrowlog history /data/events --by day --by operation
      arrowlog history /data/events --output json
    """
    with progress_bar("reading commits") as report:
        commits = table.history(limit, by=by or None, progress=report)
    if output != "text":
        print_table(commits, output)
        return
    if by:
        print_table(commits.select([*dict.fromkeys(by), *_GROUP_COLUMNS]), output)
        oldest = min(commits["first_version"].to_pylist(), default=0)
    else:
        shown = commits.select(list(_COMMIT_COLUMNS))
        print_table(shown.set_column(1, "timestamp", _to_seconds(shown["timestamp"])), output)
        oldest = commits["version"][-1].as_py() if commits.num_rows else 0
    if oldest == table.earliest_version > 0:
        print(f"History begins with version {oldest}: earlier versions were cleaned up.")


def _to_seconds(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Drop the milliseconds of commit times, so that a line fits a terminal of 80 columns."""
    import pyarrow as pa

    return times.cast(pa.timestamp("s", times.type.tz), safe=False)


@commands.command()
@with_table
@click.argument("a", required=False)
@click.argument("b", required=False)
@click.option("--since", metavar="TIME", help="Show commits from this time or day on.")
@click.option("--until", metavar="TIME", help="Show commits up to this time or day.")
@output_options
def diff(
    table: arrowlog.Table,
    a: str | None,
    b: str | None,
    since: str | None,
    until: str | None,
    output: str,
    limit: int | None,
) -> None:
    r"""Compare two versions of TABLE: files, schema, properties.

    Use it to see what one or more commits changed. Shows what turns version A into version B;
    without B, into the newest version. A may be the newer one, or a day, such as yesterday. A time
    is ISO-8601 text in UTC, a duration before now such as 24h, today or yesterday. json, csv and
    arrow output have one row per file that was added, removed or changed.

    \b
    Examples:
      arrowlog diff /data/events 3 9
      arrowlog diff /data/events yesterday
      arrowlog diff /data/events --since 2024-10-01 --until 2024-10-07
    """
    for text in (a, b, since, until):
        _check_version_or_time(text)
    difference = table.diff(_version_or_time(a), _version_or_time(b), since=since, until=until)
    if output == "text" and limit is None:
        print(difference)
    else:
        print_table(difference.to_arrow(), output, limit)


def _check_version_or_time(text: str | None) -> None:
    """Refuse an argument that is neither a version nor a time, as wrong usage."""
    from arrowlog.snapshot import to_period

    if text is not None and not text.isdecimal():
        try:
            to_period(text, 0)
        except arrowlog.InvalidRequest as error:
            raise click.BadParameter(str(error)) from None


def _version_or_time(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


@commands.command()
@with_table
@click.argument("query", required=False)
@click.option(
    "--restricted",
    is_flag=True,
    help="Deny queries access to files, network, extensions and settings.",
)
@output_options
def sql(table: arrowlog.Table, query: str | None, output: str, limit: int | None) -> None:
    r"""Query the history of TABLE with SQL (DuckDB).

    Use it for questions that history and diff do not answer. The views are commits, actions, adds,
    removes, skips, metadata, protocols, checkpoints, files, file_lifetimes, file_bounds,
    file_bounds_by_version and coverage; files_at(N) has the live files of version N,
    file_bounds_at(N) their bounds. Without QUERY, reads the query from standard input, or starts a
    prompt on a terminal. A query can read and write your files, as DuckDB can; with --restricted it
    sees only the views.

    \b
    Examples:
      arrowlog sql /data/events "SELECT version, operation, bytes FROM commits"
      arrowlog sql /data/events "FROM files_at(3)" --output csv
      arrowlog sql /data/events
      echo "FROM commits" | arrowlog sql /data/events
    """
    if query is None and sys.stdin.isatty():
        run_prompt(table, output, limit)
        return
    with progress_bar("reading commits") as report:
        result = table.query(sys.stdin.read() if query is None else query, progress=report)
    print_table(result, output, limit)


_ROWS_SHOWN = 20  # without --limit


@commands.command()
@with_table
@click.option("--where", metavar="PREDICATE", help="Print only rows that match.")
@click.option("--columns", metavar="NAMES", help="Print only these columns, separated by commas.")
@version_option
@output_options
def rows(
    table: arrowlog.Table,
    where: str | None,
    columns: str | None,
    version: int | None,
    output: str,
    limit: int | None,
) -> None:
    r"""Print rows of TABLE.

    Use it to look at the data, in Parquet files or in splits. The first 20 rows are printed unless
    --limit says otherwise, in no particular order, and no more files are read than that takes. In
    tables of splits, the predicate may search: text indexquery 'spark AND sql'.

    \b
    Examples:
      arrowlog rows /data/events --limit 5
      arrowlog rows /data/events --where "id > 900" --columns id,day
      arrowlog rows /data/documents --where "text indexquery 'spark AND NOT sql'"
    """
    dataset = table.scan(where, version).to_arrow_dataset()
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    for name in names or ():
        if name not in dataset.schema.names:
            raise arrowlog.InvalidRequest(
                f"There is no column {name!r}.",
                next=f"The columns are {', '.join(dataset.schema.names)}.",
            )
    print_table(dataset.head(_ROWS_SHOWN if limit is None else limit, columns=names), output)


_DEFAULT_FILE = "report.html"


@commands.command()
@with_table
@click.option(
    "-o",
    "--file",
    "file",
    metavar="FILE",
    help=f"Write the page to this file; - is standard output.  [default: {_DEFAULT_FILE}]",
)
@click.option("--paths", is_flag=True, help="Show the address of the table and paths of files.")
@click.option(
    "--data-files/--no-data-files",
    default=True,
    help="Check whether data files exist.  [default: yes]",
)
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Print where the page is, or its numbers as one JSON document; then -o is optional.",
)
def report(
    table: arrowlog.Table,
    file: str | None,
    paths: bool,  # noqa: FBT001 -- click gives it by name
    data_files: bool,  # noqa: FBT001 -- the same
    output: str,
) -> None:
    r"""Write a report on TABLE as one HTML page.

    Use it to show the state of a table to others: the page works offline and can be mailed. It has
    the findings of the doctor with their fixes, growth and churn over time, file sizes, skew of
    partitions, statistics, which columns prune, checkpoints, retention and the last commits. It
    shows names of columns and values of partitions; it has no rows, no credentials and, without
    --paths, no paths. A damaged table gets a page, too, which says what could not be computed. A
    report in FILE is replaced, any other file is refused. Exits with 0 whatever the findings are:
    use `arrowlog doctor` as a gate.

    \b
    Examples:
      arrowlog report /data/events
      arrowlog report s3://bucket/events -o events.html --no-data-files
      arrowlog report /data/events --output json
    """
    target = file or (_DEFAULT_FILE if output == "text" else None)
    path = None if target == "-" else target
    with progress_bar("building the report", at_once=True) as progress:
        made = table.report(path, paths=paths, data_files=data_files, progress=progress)
    if target == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(made.html.encode("utf-8", "replace"))
    elif output == "json":
        print(made.to_json())
    else:
        health = made.facts.health
        size = format_bytes(len(made.html.encode("utf-8", "replace")))
        version = "unreadable" if health.version is None else f"version {health.version}"
        print(f"{target}: {size}; {version}, {health.counts}.")
        for section in made.facts.unavailable:
            print(f"not computed: {section.replace('_', ' ')}")


# fmt: off
SQL_KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP", "BY", "ORDER", "ALL", "LIMIT", "JOIN", "USING", "AS",
    "AND", "OR", "NOT", "NULL", "COUNT", "SUM", "MIN", "MAX", "DESC", "DISTINCT", "HAVING",
    "BETWEEN", "IN", "IS", "WITH",
)
# fmt: on
_LAST_WORD = re.compile(r"[\w.]+$")
_MAX_HISTORY_LINES = 1000
_EXIT_COMMANDS = ("exit", "quit", ".exit", ".quit")


def run_prompt(table: arrowlog.Table, output: str, limit: int | None) -> None:
    """Read queries and print their results until end of input or an exit command."""
    names = _completions(table)
    _enable_line_editing(names)
    print(f"{table.uri}, version {table.version}. A query ends with ; or an empty line.")
    print("Views: " + ", ".join(name for name in names[:12] if "." not in name))
    print("Tab completes, arrow up recalls earlier lines, Ctrl-D exits.")
    query = _read_query()
    while query is not None:
        if query:
            try:
                with progress_bar("reading commits") as report:
                    result = table.query(query, progress=report)
                print_table(result, output, limit)
            except arrowlog.ArrowlogError as error:
                print(f"Error: {error}")
        query = _read_query()


def _read_query() -> str | None:
    """Return the next query, which may span lines; "" after Ctrl-C, None at the end of input."""
    lines: list[str] = []
    try:
        while True:
            line = input("arrowlog> " if not lines else "     ...> ")
            if not lines and line.strip().lower().rstrip(";") in _EXIT_COMMANDS:
                return None
            lines.append(line)
            if not line.strip() or line.rstrip().endswith(";"):
                return "\n".join(lines).strip().rstrip(";").strip()
    except KeyboardInterrupt:
        print()
        return ""
    except EOFError:
        print()
        return "\n".join(lines).strip() or None


def _completions(table: arrowlog.Table) -> list[str]:
    """Return the names to complete: views first, then columns."""
    catalog = table.query(
        "SELECT table_name AS name, column_name AS col FROM information_schema.columns"
        " WHERE table_name NOT LIKE '\\_%' ESCAPE '\\' ORDER BY ALL"
    )
    views = dict.fromkeys(catalog["name"].to_pylist())
    columns = dict.fromkeys(catalog["col"].to_pylist())
    return [*views, "files_at(", *columns]


def complete_line(names: Sequence[str], line: str) -> list[str]:
    """Return the completions of the last word of a line.

    >>> complete_line(["commits", "coverage", "min.id"], "SELECT * FROM co")
    ['commits', 'coverage', 'COUNT']
    >>> complete_line(["min.id"], 'SELECT m')
    ['"min.id"', 'MIN', 'MAX']
    """
    last_word = _LAST_WORD.search(line)
    prefix = last_word[0].lower() if last_word else ""
    quoted = [f'"{name}"' if "." in name or " " in name else name for name in names]
    matching = [name for name in quoted if name.lower().lstrip('"').startswith(prefix)]
    return matching + [word for word in SQL_KEYWORDS if word.lower().startswith(prefix)]


def _enable_line_editing(names: Sequence[str]) -> None:
    """Set up completion and a history file, if this Python has readline."""
    try:
        import readline
    except ImportError:
        return
    import atexit

    def complete(_: str, number: int) -> str | None:
        candidates = complete_line(names, readline.get_line_buffer()[: readline.get_endidx()])
        return candidates[number] if number < len(candidates) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,;()=<>\"'")
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = os.path.join(base, "arrowlog", "sql_history")
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if os.path.exists(path):
            readline.read_history_file(path)
        readline.set_history_length(_MAX_HISTORY_LINES)
        atexit.register(readline.write_history_file, path)
    except OSError:  # the history is optional: the home folder may be read-only
        return


@commands.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Build the table in this empty folder and keep it.  [default: a temporary folder]",
)
def demo(folder: str | None) -> None:
    r"""Build a small table and show what arrowlog does with it.

    Use it as an introduction to the Python API. Creates a table, writes to it, plans a scan, lets
    two writers conflict, reads and restores old versions, writes a checkpoint and queries the log.
    Every Python line is executed as shown, followed by its result. Only the folder of the table is
    written to.

    \b
    Examples:
      arrowlog demo
      arrowlog demo --folder /tmp/events
    """
    from arrowlog.cli.demo import run_demo

    run_demo(folder)


@commands.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    r"""Print a script for completion in the shell.

    With it, Tab completes commands, options, settings and the paths of tables. Save the script
    where the shell looks for completions, and open a new shell.

    \b
    Examples:
      arrowlog completion bash \
        > ~/.local/share/bash-completion/completions/arrowlog
      arrowlog completion zsh > "${fpath[1]}/_arrowlog"
      arrowlog completion fish > ~/.config/fish/completions/arrowlog.fish
    \b
    Or try it in this shell only:
      eval "$(arrowlog completion bash)"
    """
    from click.shell_completion import get_completion_class

    completer = get_completion_class(shell)
    assert completer is not None
    click.echo(completer(commands, {}, "arrowlog", "_ARROWLOG_COMPLETE").source().rstrip())


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line, without Python's file name and source line."""
    print(f"Warning: {message}", file=sys.stderr)


def run() -> int:
    """Run the command and return the exit code.

    0 is success, 1 an `ArrowlogError` (printed as one message, without a traceback), an interrupt
    or a closed pipe, 2 wrong usage. Other exceptions are bugs and propagate.
    """
    warnings.showwarning = _print_warning
    try:
        commands.main(prog_name="arrowlog", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return 2
    except click.Abort:
        return 1
    except arrowlog.ArrowlogError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        # The reader of the pipe has closed it (`| head`). Discard the rest of the buffer, or
        # flushing it at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
