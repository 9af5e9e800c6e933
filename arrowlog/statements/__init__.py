"""The SQL statements of IndexTables: parsed, executed, answered in their own columns."""

from arrowlog.statements.execution import sql_statement
from arrowlog.statements.parser import is_statement

__all__ = ["is_statement", "sql_statement"]
