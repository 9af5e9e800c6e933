"""Find the tables in the text of a SQL statement that Spark cannot resolve by itself. Pure.

Spark's parser has no extension point for Python, so text is examined before Spark sees it. Only
tables are looked for, by what precedes them: the rest of a statement is Spark's business. Text that
could be read in two ways is left alone, and Spark then reports what it does not understand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from arrowlog.predicate import STATEMENT_TOKENS, tokenize, unquote_identifier

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrowlog.predicate import Token

PATH_FORMATS = ("arrowlog", "indextables")
# Statements in which tables are replaced. Others, such as DROP TABLE, mean the name itself.
_QUERY_WORDS = ("SELECT", "WITH", "FROM", "TABLE", "VALUES", "MAP", "REDUCE")
_STATEMENT_WORDS = (*_QUERY_WORDS, "EXPLAIN", "DESCRIBE", "DESC", "INSERT", "CREATE", "CACHE")
# Words that end the list of tables after FROM.
_CLAUSE_WORDS = frozenset(
    (
        "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "OFFSET", "UNION", "EXCEPT", "MINUS",
        "INTERSECT", "WINDOW", "QUALIFY", "CLUSTER", "DISTRIBUTE", "SORT", "SELECT", "SET",
        "VALUES", "INSERT", "MAP", "REDUCE", "EXTEND", "AGGREGATE", "DROP", "RENAME",
    )
)  # fmt: skip
_SET_OPERATORS = ("UNION", "EXCEPT", "MINUS", "INTERSECT")
_DESCRIBE_WORDS = ("DESCRIBE", "DESC", "EXTENDED", "FORMATTED")
# Words after ALTER TABLE and a name that change columns.
_COLUMN_WORDS = ("COLUMN", "COLUMNS")
_COLUMN_CHANGES = ("ADD", "ALTER", "CHANGE", "DROP", "RENAME", "REPLACE")
_TRIM_WORDS = ("TRIM", "LTRIM", "RTRIM", "BTRIM")  # functions with FROM among their arguments
_TIME_WORDS = {
    "VERSION": "version",
    "SYSTEM_VERSION": "version",
    "TIMESTAMP": "timestamp",
    "SYSTEM_TIME": "timestamp",
}
# A raw string, in which a backslash escapes nothing, and a dollar-quoted one.
_OTHER_STRINGS = re.compile(r"""(?<![\w$])[rR]['"]|\$\w*\$""")
_NESTED_COMMENT = re.compile(r"/\*(?:(?!\*/).)*/\*", re.DOTALL)


@dataclass(frozen=True)
class TableReference:
    """A table in a text, from `start` to `stop`, including its time travel clause.

    `is_query` says that the text is the query `TABLE name`, which takes no options in Spark.
    `parts` are the names without quotation marks. `version` is the text of a version, `timestamp`
    the SQL text of an expression.
    """

    start: int
    stop: int
    parts: tuple[str, ...]
    text: str
    version: str | None = None
    timestamp: str | None = None
    is_query: bool = False

    @property
    def path(self) -> str | None:
        """The path of a table that is named by it, as in ``arrowlog.`/data/events` ``."""
        if len(self.parts) == 2 and self.parts[0].lower() in PATH_FORMATS and self.text[-1] == "`":
            return self.parts[1]
        return None

    @property
    def travels(self) -> bool:
        """Whether a version or a timestamp is given."""
        return self.version is not None or self.timestamp is not None


@dataclass(frozen=True)
class InsertText:
    """`INSERT INTO` or `INSERT OVERWRITE`, whose rows come from `query`."""

    target: TableReference
    overwrite: bool
    columns: tuple[str, ...] | None
    by_name: bool
    query: str
    query_start: int


@dataclass(frozen=True)
class CreateText:
    """`CREATE TABLE … USING arrowlog`: the text before the query, and where a schema belongs.

    The text has no `PARTITIONED BY`: the log has the partition columns, and Spark's catalog adds no
    columns to a table that has some.
    """

    name: str
    header: str
    schema_position: int | None  # None if the statement has a schema
    partition_columns: tuple[str, ...]
    query: str | None
    if_not_exists: bool


@dataclass(frozen=True)
class TemporaryViewText:
    """A statement that makes a temporary view of a query.

    `columns` are names for those of the query; empty for its own. `cache` is the statement that
    caches the view, if any.
    """

    name: str
    query: str
    columns: tuple[str, ...] = ()
    replaces: bool = False
    is_global: bool = False
    cache: str | None = None


@dataclass(frozen=True)
class AlterText:
    """`ALTER TABLE` of columns: the columns to add as DDL; None for any other change of columns."""

    target: TableReference
    added: str | None


class SqlText:
    """A statement, as tokens."""

    def __init__(self, text: str) -> None:
        """Tokenize a statement; `is_clear` is False if it could be read in another way."""
        self.text = text
        *tokens, end = tokenize(text, STATEMENT_TOKENS)
        while tokens and tokens[-1].text == ";":
            tokens.pop()
        self.tokens: Sequence[Token] = [*tokens, end]
        self.is_clear = not (
            _OTHER_STRINGS.search(text)
            or _NESTED_COMMENT.search(text)
            or any(token.kind == "other" and token.text in "'\"`;" for token in tokens)
        )

    def word(self, position: int) -> str:
        """Return the upper-case word at a position; empty if there is none."""
        if not 0 <= position < len(self.tokens):
            return ""
        token = self.tokens[position]
        return token.text.upper() if token.kind == "word" else ""

    def starts_with(self, *words: str) -> bool:
        """Return whether the statement begins with these words."""
        return all(self.word(number) == word for number, word in enumerate(words))

    def uses(self, formats: Sequence[str]) -> bool:
        """Return whether a table or view is created `USING` one of these formats."""
        names = [name.lower() for name in formats]
        return self.word(0) == "CREATE" and any(
            self.word(place) == "USING" and self._provider(place + 1) in names
            for place in range(len(self.tokens) - 2)
        )

    def _provider(self, position: int) -> str:
        return ".".join(self._reference(position)[0].parts).lower()

    def references(self) -> list[TableReference]:
        """Return the tables that are read; none if the statement is of another kind."""
        first = 0
        while self.tokens[first].text == "(":
            first += 1
        if not self.is_clear or self.word(first) not in _STATEMENT_WORDS:
            return []
        return list(self._references())

    def _references(self) -> Iterator[TableReference]:
        groups = [_Group(0, "")]
        skip_to = 0
        for position, token in enumerate(self.tokens):
            group = groups[-1]
            if token.text == "(":
                is_table = position >= skip_to and self._is_table(position, groups)
                groups.append(_Group(position + 1, self.word(position - 1), is_table))
                continue
            if token.text == ")" and len(groups) > 1:
                groups.pop()
                continue
            if position < skip_to:
                continue
            word = self.word(position)
            if token.kind in ("word", "quoted") and self._is_table(position, groups):
                reference, after = self._reference(position)
                if self.word(position - 1) == "TABLE" and not self.describes_table():
                    start = self.tokens[position - 1].start
                    reference = replace(reference, start=start, is_query=True)
                if self.tokens[after].text != "(":  # else a table function
                    skip_to = after
                    group.in_from = True
                    yield reference
                    continue
            if word == "FROM" and self._is_from(position, group):
                group.in_from = True
            elif word in _CLAUSE_WORDS or (word, self.word(position + 1)) == ("LATERAL", "VIEW"):
                group.in_from = False

    def _is_from(self, position: int, group: _Group) -> bool:
        """Return whether the word FROM precedes tables, and not an argument of a function."""
        if self.word(position - 1) == "DISTINCT":  # IS DISTINCT FROM
            return False
        if group.start == 0:
            return True
        first = self.word(group.start)
        return first in _QUERY_WORDS and not (first == "FROM" and group.before in _TRIM_WORDS)

    def _is_table(self, position: int, groups: list[_Group]) -> bool:
        """Return whether a table begins at this position."""
        group, before = groups[-1], self.word(position - 1)
        if self.word(position) in ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "LATERAL"):
            return False
        if before == "FROM":
            return self._is_from(position - 1, group)
        if before == "JOIN":
            return group.start == 0 or group.is_table or self.word(group.start) in _QUERY_WORDS
        if before == "TABLE":
            if self.word(0) in _DESCRIBE_WORDS[:2]:
                return not self._is_detail(position)
            return position - 1 == group.start or self._is_query(position - 1)
        last = 3 if self.word(1) == "TABLE" else 2
        if before in _DESCRIBE_WORDS and group.start == 0 and position <= last:
            return self.word(0) in _DESCRIBE_WORDS[:2] and self.word(position) not in (
                *_DESCRIBE_WORDS,
                "HISTORY",
                "QUERY",
                "DATABASE",
                "SCHEMA",
                "NAMESPACE",
                "CATALOG",
                "FUNCTION",
            )
        if position == group.start and group.is_table:
            return True
        return self.tokens[position - 1].text == "," and group.in_from and position > group.start

    def _is_query(self, position: int) -> bool:
        """Return whether the word TABLE at a position is a query: of INSERT, or after UNION."""
        before = position - 1
        if self.word(before) in ("ALL", "DISTINCT"):
            before -= 1
        if self.word(before) in _SET_OPERATORS:
            return True
        insert = self.insert()
        return insert is not None and insert.query_start == self.tokens[position].start

    def _is_detail(self, position: int) -> bool:
        """Return whether EXTENDED or FORMATTED is at a position, and not a table of that name."""
        return self.word(position) in _DESCRIBE_WORDS[2:] and self.tokens[position + 1].kind in (
            "word",
            "quoted",
        )

    def _reference(self, position: int) -> tuple[TableReference, int]:
        """Read the table at a position; return it and the position after it."""
        first = self.tokens[position]
        start = first.start
        if first.kind == "end":  # the name is missing, which Spark reports
            return TableReference(start, start, ("",), ""), position
        parts = [unquote_identifier(first)]
        last = position
        while self.tokens[last + 1].text == "." and self.tokens[last + 2].kind in (
            "word",
            "quoted",
        ):
            last += 2
            parts.append(unquote_identifier(self.tokens[last]))
        stop = self.tokens[last].stop
        text = self.text[start:stop]
        kind, value, after = self._time_travel(last + 1)
        if kind is not None:
            stop = self.tokens[after - 1].stop
        reference = TableReference(
            start,
            stop,
            tuple(parts),
            text,
            value if kind == "version" else None,
            value if kind == "timestamp" else None,
        )
        return reference, after

    def _time_travel(self, position: int) -> tuple[str | None, str | None, int]:
        """Read `[FOR] VERSION|TIMESTAMP AS OF …`; return what it says and the position after it."""
        start = position
        if self.word(position) == "FOR":
            position += 1
        kind = _TIME_WORDS.get(self.word(position))
        if kind is None or (self.word(position + 1), self.word(position + 2)) != ("AS", "OF"):
            return None, None, start
        first = position + 3
        after = first + 1 if kind == "version" else self._after_expression(first)
        if after is None or self.tokens[first].kind == "end":
            return None, None, start
        text = self.text[self.tokens[first].start : self.tokens[after - 1].stop]
        return kind, text, after

    def _after_expression(self, position: int) -> int | None:
        """Return the position after operands joined by + and -; None if it is something else."""
        while True:
            token, word = self.tokens[position], self.word(position)
            if word == "INTERVAL":
                position += 3
            elif word in ("TIMESTAMP", "DATE", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"):
                position = self._after_call(position + 1) or position + 2
            elif token.text == "(":
                position = self._after_call(position) or position
            elif token.kind == "word":
                position = self._after_call(position + 1) or position + 1
            elif token.kind == "text":
                position += 1
            else:
                return None
            if position >= len(self.tokens):
                return None
            if self.tokens[position].text not in ("+", "-"):
                return position
            position += 1

    def _after_call(self, position: int) -> int | None:
        """Return the position after the parentheses that begin here; None if none do."""
        if self.tokens[position].text != "(":
            return None
        depth = 0
        for place in range(position, len(self.tokens)):
            depth += {"(": 1, ")": -1}.get(self.tokens[place].text, 0)
            if depth == 0:
                return place + 1
        return None

    def common_table_names(self) -> set[str]:
        """Return every name that may be one of WITH, in lower case."""
        return {
            unquote_identifier(token).lower()
            for position, token in enumerate(self.tokens)
            if token.kind in ("word", "quoted") and self._names_subquery(position + 1)
        }

    def _names_subquery(self, position: int) -> bool:
        if self.tokens[position].text == "(":
            position = self._after_call(position) or position
        if self.word(position) == "MAX":  # MAX RECURSION LEVEL n
            position += 4
        return (
            self.word(position) == "AS"
            and position + 1 < len(self.tokens)
            and self.tokens[position + 1].text == "("
        )

    def insert(self) -> InsertText | None:
        """Return the parts of an INSERT statement; None if it is something else or unusual."""
        if not self.is_clear or self.word(0) != "INSERT":
            return None
        if self.word(1) not in ("INTO", "OVERWRITE"):
            return None
        position = 3 if self.word(2) == "TABLE" else 2
        if self.tokens[position].kind not in ("word", "quoted"):
            return None
        target, position = self._reference(position)
        by_name = (self.word(position), self.word(position + 1)) == ("BY", "NAME")
        position += 2 if by_name else 0
        columns = None
        if self.tokens[position].text == "(" and self.word(position + 1) not in _QUERY_WORDS:
            after = self._after_call(position)
            if after is None or self.tokens[position + 1].text == "(":
                return None
            columns = self._names(position + 1, after - 1)
            if columns is None:
                return None
            position = after
        begins = self.word(position) in _QUERY_WORDS or self.tokens[position].text == "("
        if target.travels or not begins:
            return None
        start = self.tokens[position].start
        query = self.text[start : self.tokens[-2].stop]
        overwrites = self.word(1) == "OVERWRITE"
        return InsertText(target, overwrites, columns, by_name, query, start)

    def insert_first(self) -> str | None:
        """Return `WITH … INSERT … query` as `INSERT … WITH … query`; None for another statement.

        Spark gives both the same meaning.
        """
        if not self.is_clear or self.word(0) != "WITH":
            return None
        depth = 0
        for place, token in enumerate(self.tokens):
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            word = self.word(place) if depth == 0 and place else ""
            if word in _QUERY_WORDS:
                return None  # the query itself, or FROM … INSERT
            if word == "INSERT" and self.word(place + 1) in ("INTO", "OVERWRITE"):
                break
        else:
            return None
        moved = SqlText(self.text[token.start : self.tokens[-2].stop])
        insert = moved.insert()
        if insert is None:
            return None
        names = self.text[self.tokens[0].start : token.start]
        query = insert.query
        if query.upper().startswith("WITH"):  # two WITH in a row are not SQL
            query = f"({query})"
        return f"{moved.text[: insert.query_start]}{names}{query}"

    def _names(self, start: int, stop: int) -> tuple[str, ...] | None:
        """Return names separated by commas; None if there is anything else."""
        names = []
        for place in range(start, stop):
            token = self.tokens[place]
            if (place - start) % 2 == 1:
                if token.text != ",":
                    return None
            elif token.kind not in ("word", "quoted"):
                return None
            else:
                names.append(unquote_identifier(token))
        return tuple(names)

    def history(self) -> tuple[TableReference | str, int | None] | None:
        """Return the table of `DESCRIBE HISTORY`, or its path, and the limit; else None."""
        if self.word(0) not in _DESCRIBE_WORDS[:2] or self.word(1) != "HISTORY":
            return None
        token = self.tokens[2]
        target: TableReference | str
        if token.kind == "text":
            target, position = token.text[1:-1], 3
        elif token.kind in ("word", "quoted"):
            target, position = self._reference(2)
        else:
            return None  # a table of the name `history`
        if self.tokens[position].kind == "end":
            return target, None
        limit = self.tokens[position + 1].text if self.word(position) == "LIMIT" else ""
        if not limit.isdigit() or self.tokens[position + 2].kind != "end":
            return None
        return target, int(limit)

    def describes_table(self) -> bool:
        """Return whether the statement describes a table, and not a query."""
        words = ("QUERY", *(word for word in _QUERY_WORDS if word != "TABLE"))
        return self.word(0) in _DESCRIBE_WORDS[:2] and self.word(1) not in words

    def alter(self) -> AlterText | None:
        """Return the parts of an `ALTER TABLE` that changes columns; None if it does not."""
        if not self.is_clear or not self.starts_with("ALTER", "TABLE"):
            return None
        target, position = self._reference(2)
        change = self.word(position)
        if change not in _COLUMN_CHANGES or self.word(position + 1) not in _COLUMN_WORDS:
            return None
        first, last = position + 2, len(self.tokens) - 2
        if change != "ADD" or first > last:
            return AlterText(target, None)
        if self.tokens[first].text == "(" and self._after_call(first) == last + 1:
            first, last = first + 1, last - 1
        return AlterText(target, self.text[self.tokens[first].start : self.tokens[last].stop])

    def temporary_view(self) -> TemporaryViewText | None:
        """Return the parts of a statement that creates a temporary view; None for another one.

        `CACHE TABLE name AS query` is one of them. None as well for comments and properties.
        """
        if self.word(0) == "CACHE":
            return self._cached_query()
        position = 1
        replaces = (self.word(1), self.word(2)) == ("OR", "REPLACE")
        position += 2 if replaces else 0
        is_global = self.word(position) == "GLOBAL"
        position += 1 if is_global else 0
        temporary = self.word(position) in ("TEMP", "TEMPORARY")
        if self.word(0) != "CREATE" or not temporary or self.word(position + 1) != "VIEW":
            return None
        name = self.tokens[position + 2]
        if name.kind not in ("word", "quoted"):
            return None
        position += 3
        columns: tuple[str, ...] | None = ()
        if self.tokens[position].text == "(":
            after = self._after_call(position) or position
            columns = self._names(position + 1, after - 1)
            position = after
        if self.word(position) != "AS" or columns is None:
            return None
        query = self._text_from(position + 1)
        return TemporaryViewText(unquote_identifier(name), query, columns, replaces, is_global)

    def makes_view(self) -> bool:
        """Return whether the statement creates a view, or caches a query under a name."""
        position = 1
        while self.word(position) in ("OR", "REPLACE", "GLOBAL", "TEMP", "TEMPORARY"):
            position += 1
        is_view = self.word(0) == "CREATE" and self.word(position) == "VIEW"
        return is_view or self.word(0) == "CACHE"

    def _cached_query(self) -> TemporaryViewText | None:
        """Return the parts of `CACHE [LAZY] TABLE name [OPTIONS (…)] [AS] query`."""
        position = 2 if self.word(1) == "LAZY" else 1
        name = self.tokens[min(position + 1, len(self.tokens) - 1)]
        if self.word(position) != "TABLE" or name.kind not in ("word", "quoted"):
            return None
        position += 2
        if self.word(position) == "OPTIONS":
            position = self._after_call(position + 1) or position
        statement = self.text[: self.tokens[position - 1].stop]
        position += 1 if self.word(position) == "AS" else 0
        if self.word(position) not in _QUERY_WORDS and self.tokens[position].text != "(":
            return None
        query = self._text_from(position)
        return TemporaryViewText(unquote_identifier(name), query, cache=statement)

    def _text_from(self, position: int) -> str:
        """Return the rest of the statement."""
        return self.text[self.tokens[position].start : self.tokens[-2].stop]

    def replaced_table(self) -> tuple[TableReference, str] | None:
        """Return the table of `[CREATE OR] REPLACE TABLE`, and the text that only creates it."""
        first = 2 if self.starts_with("CREATE", "OR", "REPLACE", "TABLE") else 0
        if (self.word(first), self.word(first + 1)) != ("REPLACE", "TABLE"):
            return None
        if self.tokens[first + 2].kind not in ("word", "quoted", "text"):
            return None  # Spark reports that the name is missing
        name = self._literal_name(first + 2)
        if name is None and self._is_identifier_clause(first + 2):
            return None  # only Spark knows the name
        target, _ = self._reference(first + 2)
        created = f"CREATE TABLE {self.text[target.start :]}"
        return replace(target, text=name or target.text), created

    def _is_identifier_clause(self, position: int) -> bool:
        """Return whether `IDENTIFIER(expression)` is at a position, not a table with columns."""
        if self.word(position) != "IDENTIFIER" or self.tokens[position + 1].text != "(":
            return False
        column, *kind = [token.kind for token in self.tokens[position + 2 : position + 4]]
        return column not in ("word", "quoted") or kind != ["word"]

    def _literal_name(self, position: int) -> str | None:
        """Return the name in `IDENTIFIER('name')` at a position; None if there is anything else."""
        clause = self.tokens[position + 1 : position + 4]
        if self.word(position) != "IDENTIFIER" or [token.kind for token in clause[1:2]] != ["text"]:
            return None
        opening, name, closing = (token.text for token in clause)  # the end is a token as well
        return name[1:-1] if (opening, closing) == ("(", ")") else None

    def create(self, formats: Sequence[str]) -> CreateText | None:
        """Return the parts of `CREATE TABLE … USING` one of our formats; None otherwise."""
        if not self.is_clear or not self.starts_with("CREATE", "TABLE"):
            return None
        words = (self.word(2), self.word(3), self.word(4))
        if_not_exists = words == ("IF", "NOT", "EXISTS")
        start = 5 if if_not_exists else 2
        if self._is_identifier_clause(start):
            return None  # only Spark knows the name
        target, position = self._reference(start)
        has_schema = self.tokens[position].text == "("
        schema_position = None if has_schema else target.stop
        depth, provider, query_at = 0, None, None
        columns: tuple[str, ...] | None = ()
        clause = range(0)  # the text of PARTITIONED BY
        for place in range(position, len(self.tokens)):
            depth += {"(": 1, ")": -1}.get(self.tokens[place].text, 0)
            if depth == 0 and (self.word(place), self.word(place + 1)) == ("PARTITIONED", "BY"):
                after = self._after_call(place + 2)
                columns = None if after is None else self._names(place + 3, after - 1)
                clause = range(self.tokens[place].start, self.tokens[(after or 0) - 1].stop)
            if depth == 0 and self.word(place) == "USING" and provider is None:
                provider = self._provider(place + 1)
            if depth == 0 and place > position and self.word(place) == "AS":
                query_at = place
                break
        if provider not in formats or target.path is not None or columns is None:
            return None
        if query_at is None:
            header, query = self.text[: self.tokens[-2].stop], None
        else:
            header = self.text[: self.tokens[query_at].start]
            query = self.text[self.tokens[query_at + 1].start : self.tokens[-2].stop]
        header = header[: clause.start] + header[clause.stop :] if clause else header
        return CreateText(target.text, header, schema_position, columns, query, if_not_exists)


@dataclass
class _Group:
    """Tokens in parentheses, or the whole statement."""

    start: int  # position of the first token
    before: str  # the word before the parenthesis
    is_table: bool = False  # whether the parenthesis stands for a table
    in_from: bool = False


def quote_name(name: str) -> str:
    """Return a name as an identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def quote_text(text: str) -> str:
    """Return text as a literal of Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
