"""Predicates: one syntax tree, parsed from SQL, tuples, polars, pyarrow and Spark."""

from arrowlog.predicate.ast import (
    COMPARISON_OPS,
    SWAPPED_COMPARISONS,
    TRUE,
    Call,
    Column,
    ForeignExpr,
    Literal,
    Node,
    is_supported,
    referenced_columns,
    resolve_column,
    split_conjuncts,
)
from arrowlog.predicate.emit.duckdb import evaluate_node
from arrowlog.predicate.emit.row_filters import emit_spark, split_pushdown
from arrowlog.predicate.emit.text import format_node, quote_identifier
from arrowlog.predicate.literals import enclose_literal, may_have_nan, snap_to_integer
from arrowlog.predicate.parse.pyarrow import parse_pyarrow
from arrowlog.predicate.parse.spark import parse_catalyst
from arrowlog.predicate.parse.sql import STATEMENT_TOKENS, Token, tokenize, unquote_identifier
from arrowlog.predicate.predicate import Predicate, evaluate_predicate, parse_predicate
from arrowlog.predicate.rewrites import (
    LIKE_WILDCARDS,
    coerce_literals,
    merge_equalities,
    split_between,
    unwrap_cast,
)

__all__ = [
    "COMPARISON_OPS",
    "LIKE_WILDCARDS",
    "STATEMENT_TOKENS",
    "SWAPPED_COMPARISONS",
    "TRUE",
    "Call",
    "Column",
    "ForeignExpr",
    "Literal",
    "Node",
    "Predicate",
    "Token",
    "coerce_literals",
    "emit_spark",
    "enclose_literal",
    "evaluate_node",
    "evaluate_predicate",
    "format_node",
    "is_supported",
    "may_have_nan",
    "merge_equalities",
    "parse_catalyst",
    "parse_predicate",
    "parse_pyarrow",
    "quote_identifier",
    "referenced_columns",
    "resolve_column",
    "snap_to_integer",
    "split_between",
    "split_conjuncts",
    "split_pushdown",
    "tokenize",
    "unquote_identifier",
    "unwrap_cast",
]
