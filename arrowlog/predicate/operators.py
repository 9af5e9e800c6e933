"""The operators and functions of the AST, and which of them can be evaluated. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrowlog.predicate.ast import Call, ForeignExpr, walk_nodes

if TYPE_CHECKING:
    from arrowlog.predicate.ast import Node

COMPARISON_OPS = ("=", "<>", "<", "<=", ">", ">=")
# Comparisons that mean the same with their operands swapped.
SWAPPED_COMPARISONS = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
ARITHMETIC_OPS = ("+", "-", "*", "/", "//", "%")
# Operators whose result is boolean (or NULL) whatever their arguments are.
BOOLEAN_OPS = frozenset(
    {*COMPARISON_OPS, "<=>", "and", "or", "not", "is null", "in", "between", "is true", "is false"}
    | {"like", "ilike", "glob", "starts_with", "isnan", "~"}
)
# Operators whose result is never boolean.
VALUE_OPS = frozenset({*ARITHMETIC_OPS, "||", "negative", "interval", "list"})
# Deterministic functions: the result depends on the arguments alone, not on the clock, random
# numbers, settings or files.
_FUNCTION_NAMES = """
abs add_months array_contains ascii bit_length ceil ceiling char_length character_length chr
coalesce concat concat_ws contains cos date date_add date_diff date_part date_sub date_trunc
datediff day dayname dayofmonth dayofweek dayofyear ends_with endswith epoch epoch_ms
epoch_us exp floor greatest hour if ifnull ilike instr isfinite isinf isnan isnotnull isnull
last_day lcase least left len length like list_contains ln log log10 log2 lower lpad ltrim
make_date make_timestamp map_extract md5 microsecond millisecond minute mod month monthname
nullif nvl ord position pow power prefix quarter regexp_extract regexp_full_match
regexp_like regexp_matches regexp_replace repeat replace reverse right round rpad rtrim
second sha256 sign sin sqrt starts_with startswith strftime strip_accents strlen strpos
strptime struct_extract substr substring suffix tan timezone to_date to_timestamp translate
trim trunc try_strptime ucase unicode upper week weekday weekofyear year yearweek
"""
SUPPORTED_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
_SPECIAL_OPS = frozenset(
    {"and", "or", "not", "is null", "is true", "is false", "in", "between", "<=>", "case"}
    | {"cast", "try_cast", "glob", "element"}
)
SUPPORTED_OPS = frozenset({*COMPARISON_OPS}) | VALUE_OPS | _SPECIAL_OPS | SUPPORTED_FUNCTIONS


def is_supported(node: Node) -> bool:
    """Whether DuckDB can evaluate every part of a tree."""
    return all(
        not isinstance(part, ForeignExpr)
        and (not isinstance(part, Call) or part.op in SUPPORTED_OPS)
        for part in walk_nodes(node)
    )


def is_evaluable(node: Node) -> bool:
    """Whether every part can be evaluated, by DuckDB or by the engine it comes from."""
    return all(
        part.source is not None
        if isinstance(part, ForeignExpr)
        else not isinstance(part, Call) or part.op in SUPPORTED_OPS
        for part in walk_nodes(node)
    )
