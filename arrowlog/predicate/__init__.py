"""Predicates: one syntax tree, parsed from SQL, tuples, polars, pyarrow and Spark."""

from typing import TYPE_CHECKING

from arrowlog.lazy_names import import_on_first_use

if TYPE_CHECKING:
    from arrowlog.predicate.ast import (
        BOOLEAN_OPS,
        COMPARISON_OPS,
        FALSE,
        NULL,
        SWAPPED_COMPARISONS,
        TRUE,
        Call,
        Column,
        ForeignExpr,
        Literal,
        Node,
        ValueSet,
        is_supported,
        referenced_columns,
        resolve_column,
        split_conjuncts,
        walk_nodes,
    )
    from arrowlog.predicate.emit.duckdb import (
        evaluate_condition,
        fold_constants,
        query_rows,
        write_condition,
        write_moment,
        write_value,
    )
    from arrowlog.predicate.emit.row_filters import emit_spark, split_pushdown
    from arrowlog.predicate.emit.text import format_node, quote_identifier
    from arrowlog.predicate.literals import (
        LiteralBounds,
        choose_encloser,
        enclose_literal,
        may_have_nan,
        snap_to_integer,
    )
    from arrowlog.predicate.monotone import (
        INFINITE_DAYS,
        INFINITE_MICROS,
        MonotoneExpr,
        parse_monotone,
        solve_comparison,
    )
    from arrowlog.predicate.parse.pyarrow import parse_pyarrow
    from arrowlog.predicate.parse.spark import parse_catalyst
    from arrowlog.predicate.parse.sql import STATEMENT_TOKENS, Token, tokenize, unquote_identifier
    from arrowlog.predicate.predicate import (
        Predicate,
        evaluate_predicate,
        parse_predicate,
        parse_pushed_filter,
    )
    from arrowlog.predicate.rewrites import (
        LIKE_WILDCARDS,
        coerce_literals,
        literal_kinds,
        merge_equalities,
        split_between,
        unwrap_cast,
    )
    from arrowlog.predicate.searches import (
        SearchCondition,
        bind_searches,
        find_searches,
        indexquery,
        is_search,
        search_operands,
    )

# Each name is imported on first use, so that opening a table loads only what it needs.
_HOMES = {
    "ast": (
        "BOOLEAN_OPS",
        "COMPARISON_OPS",
        "FALSE",
        "NULL",
        "SWAPPED_COMPARISONS",
        "TRUE",
        "Call",
        "Column",
        "ForeignExpr",
        "Literal",
        "Node",
        "ValueSet",
        "is_supported",
        "referenced_columns",
        "resolve_column",
        "split_conjuncts",
        "walk_nodes",
    ),
    "emit.duckdb": (
        "evaluate_condition",
        "fold_constants",
        "query_rows",
        "write_condition",
        "write_moment",
        "write_value",
    ),
    "emit.row_filters": ("emit_spark", "split_pushdown"),
    "emit.text": ("format_node", "quote_identifier"),
    "literals": (
        "LiteralBounds",
        "choose_encloser",
        "enclose_literal",
        "may_have_nan",
        "snap_to_integer",
    ),
    "monotone": (
        "INFINITE_DAYS",
        "INFINITE_MICROS",
        "MonotoneExpr",
        "parse_monotone",
        "solve_comparison",
    ),
    "parse.pyarrow": ("parse_pyarrow",),
    "parse.spark": ("parse_catalyst",),
    "parse.sql": ("STATEMENT_TOKENS", "Token", "tokenize", "unquote_identifier"),
    "predicate": ("Predicate", "evaluate_predicate", "parse_predicate", "parse_pushed_filter"),
    "rewrites": (
        "LIKE_WILDCARDS",
        "coerce_literals",
        "literal_kinds",
        "merge_equalities",
        "split_between",
        "unwrap_cast",
    ),
    "searches": (
        "SearchCondition",
        "bind_searches",
        "find_searches",
        "indexquery",
        "is_search",
        "search_operands",
    ),
}

__all__ = [
    "BOOLEAN_OPS",
    "COMPARISON_OPS",
    "FALSE",
    "INFINITE_DAYS",
    "INFINITE_MICROS",
    "LIKE_WILDCARDS",
    "NULL",
    "STATEMENT_TOKENS",
    "SWAPPED_COMPARISONS",
    "TRUE",
    "Call",
    "Column",
    "ForeignExpr",
    "Literal",
    "LiteralBounds",
    "MonotoneExpr",
    "Node",
    "Predicate",
    "SearchCondition",
    "Token",
    "ValueSet",
    "bind_searches",
    "choose_encloser",
    "coerce_literals",
    "emit_spark",
    "enclose_literal",
    "evaluate_condition",
    "evaluate_predicate",
    "find_searches",
    "fold_constants",
    "format_node",
    "indexquery",
    "is_search",
    "is_supported",
    "literal_kinds",
    "may_have_nan",
    "merge_equalities",
    "parse_catalyst",
    "parse_monotone",
    "parse_predicate",
    "parse_pushed_filter",
    "parse_pyarrow",
    "query_rows",
    "quote_identifier",
    "referenced_columns",
    "resolve_column",
    "search_operands",
    "snap_to_integer",
    "solve_comparison",
    "split_between",
    "split_conjuncts",
    "split_pushdown",
    "tokenize",
    "unquote_identifier",
    "unwrap_cast",
    "walk_nodes",
    "write_condition",
    "write_moment",
    "write_value",
]

if not TYPE_CHECKING:
    __getattr__ = import_on_first_use(__name__, _HOMES)
