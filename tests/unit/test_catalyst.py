"""Spark's filters as predicate trees: the same meaning, or unprunable."""

import json
from decimal import Decimal

import pyarrow as pa
import pytest

from arrowlog.predicate.ast import Call, Column, ForeignExpr, Literal
from arrowlog.predicate.parse.spark import parse_catalyst

PACKAGE = "org.apache.spark.sql.catalyst.expressions."
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("f", pa.float32()),
        ("dec", pa.decimal128(9, 3)),
        ("at", pa.timestamp("us", "UTC")),
        ("name", pa.string()),
        ("yes", pa.bool_()),
    ]
)


def node(kind, children=0, **fields):
    return {"class": PACKAGE + kind, "num-children": children, **fields}


def column(name, kind):
    return node("AttributeReference", name=name, dataType=kind)


def literal(value, kind):
    return node("Literal", value=value, dataType=kind)


def tree(*nodes, look=None):
    return parse_catalyst(json.dumps(nodes), SCHEMA, look or (lambda at, what: None))


def test_comparisons_of_a_column_with_a_literal():
    found = tree(node("LessThan", 2), column("id", "long"), literal("7", "long"))
    assert found == Call("<", (Column("id"), Literal(7, "int")))
    found = tree(node("EqualTo", 2), literal("0.1", "float"), column("f", "float"))
    assert found == Call("=", (Literal(0.10000000149011612, "double"), Column("f")))
    found = tree(node("EqualNullSafe", 2), column("dec", "decimal(9,3)"), literal(None, "void"))
    assert found == Call("<=>", (Column("dec"), Literal(None, "null")))
    found = tree(
        node("GreaterThan", 2), column("dec", "decimal(9,3)"), literal("1.250", "decimal(9,3)")
    )
    assert found == Call(">", (Column("dec"), Literal(Decimal("1.250"), "decimal")))


def test_timestamp_literals_are_read_without_a_time_zone():
    asked = []

    def look(at, what):
        asked.append((at, what))
        return -1

    nodes = (
        node("And", 2),
        column("yes", "boolean"),
        node("EqualTo", 2),
        column("at", "timestamp"),
        literal("1969-12-31 23:59:59.999999", "timestamp"),
    )
    found = tree(*nodes, look=look)
    moment = Call("=", (Column("at"), Literal(-1, "timestamptz")))
    assert found == Call("and", (Column("yes"), moment))
    assert asked == [(4, "value")]


def test_in_and_inset():
    inner = [column("name", "string"), literal("a", "string"), literal(None, "string")]
    found = tree(node("In", 3), *inner)
    assert found == Call("in", (Column("name"), Literal("a", "text"), Literal(None, "null")))
    found = tree(node("InSet", 1), column("id", "long"), look=lambda at, what: [3, 1])
    assert found == Call("in", (Column("id"), Literal(3, "int"), Literal(1, "int")))
    assert isinstance(tree(node("InSet", 1), column("id", "long")), ForeignExpr)  # too many to tell


@pytest.mark.parametrize(
    "nodes",
    [
        [node("EqualTo", 2), column("id", "integer"), literal("7", "integer")],
        [node("EqualTo", 2), column("other", "long"), literal("7", "long")],
        [node("EqualTo", 2), column("id", "long"), column("id", "long")],
        [node("EqualTo", 2), node("Cast", 1), column("id", "long"), literal("7", "long")],
        [node("EqualTo", 2), column("f", "float"), literal("NaN", "float")],
        [node("EqualTo", 2), column("name", "string collate UTF8_LCASE"), literal("a", "string")],
        [node("Rand", 0)],
        [node("IsNull", 1), node("Cast", 1), column("id", "long")],
    ],
)
def test_unsupported_expressions_are_unprunable(nodes):
    assert isinstance(tree(*nodes), ForeignExpr)


def test_unsupported_operand_leaves_the_other_operands():
    known = [node("IsNotNull", 1), column("id", "long")]
    found = tree(node("Or", 2), *known, node("Rand", 0))
    assert found.op == "or"
    assert found.args[0] == Call("not", (Call("is null", (Column("id"),)),))
    assert isinstance(found.args[1], ForeignExpr)


def test_struct_fields_are_resolved_by_position():
    inner = {"type": "struct", "fields": [{"name": "c", "type": "long"}]}
    outer = {"name": "b", "type": inner}, {"name": "x", "type": "double"}
    kind = {"type": "struct", "fields": list(outer)}
    arrow = pa.struct([("b", pa.struct([("c", pa.int64())])), ("x", pa.float64())])

    def found(*nodes):
        schema = pa.schema([("a", arrow)])
        return parse_catalyst(json.dumps(nodes), schema, lambda at, what: None)

    deep = node("GetStructField", 1, ordinal=0), node("GetStructField", 1, ordinal=0)
    column_a = column("a", kind)
    filter_ = found(node("EqualTo", 2), *deep, column_a, literal("7", "long"))
    assert filter_ == Call("=", (Column("a", ("b", "c")), Literal(7, "int")))
    shallow = node("GetStructField", 1, ordinal=1)
    filter_ = found(node("IsNull", 1), shallow, column_a)
    assert filter_ == Call("is null", (Column("a", ("x",)),))
    # A struct is not a value, and a column of another type in the log is not compared.
    assert isinstance(found(node("IsNull", 1), deep[0], column_a), ForeignExpr)
    outer[1]["type"] = "float"
    assert isinstance(found(node("IsNull", 1), shallow, column_a), ForeignExpr)
