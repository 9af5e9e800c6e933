"""Predicates: one syntax tree, parsed from SQL, tuples, polars, pyarrow and Spark."""

from arrowlog.predicate.ast import (
    COMPARISON_OPS,
    NULL,
    TRUE,
    Call,
    Column,
    ForeignExpr,
    Literal,
    Node,
    Untranslatable,
    format_node,
    referenced_columns,
    split_conjuncts,
    walk_nodes,
)
from arrowlog.predicate.emit.duckdb import evaluate_node, is_supported, quote_identifier
from arrowlog.predicate.literals import DAY_MICROS, parse_date, parse_timestamp, to_double
from arrowlog.predicate.parse.pyarrow import parse_pyarrow
from arrowlog.predicate.parse.spark import parse_catalyst
from arrowlog.predicate.predicate import Predicate, evaluate_predicate, parse_predicate

__all__ = [
    "COMPARISON_OPS",
    "DAY_MICROS",
    "NULL",
    "TRUE",
    "Call",
    "Column",
    "ForeignExpr",
    "Literal",
    "Node",
    "Predicate",
    "Untranslatable",
    "evaluate_node",
    "evaluate_predicate",
    "format_node",
    "is_supported",
    "parse_catalyst",
    "parse_date",
    "parse_predicate",
    "parse_pyarrow",
    "parse_timestamp",
    "quote_identifier",
    "referenced_columns",
    "split_conjuncts",
    "to_double",
    "walk_nodes",
]
