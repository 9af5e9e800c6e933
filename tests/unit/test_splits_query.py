"""The query language of `indexquery`: what it parses, and where it refuses the rest."""

import pytest

from arrowlog.errors import InvalidRequest
from arrowlog.splits import parse_query
from arrowlog.splits.query import And, Not, Or, Pattern, Range, Term


def term(text, position, field=None, **more):
    return Term(field, text, position, **more)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("spark", term("spark", 0)),
        ("  spark  ", term("spark", 2)),
        ('"two words"', term("two words", 0, quoted=True)),
        (r'"a \" b \\"', term('a " b \\', 0, quoted=True)),
        (r"C\+\+", term("C++", 0)),
        ("C++", term("C++", 0)),
        (r"wor\*", term("wor*", 0)),
        (r"\-5", term("-5", 0)),
        ("id:7", term("7", 3, "id")),
        ('title:"big data"', term("big data", 6, "title", quoted=True)),
        (r"a\:b:c", term("c", 5, "a:b")),
        ("and or not", And((term("and", 0), term("or", 4), term("not", 7)))),
        ("ANDROID ORACLE", And((term("ANDROID", 0), term("ORACLE", 8)))),
        ("a b", And((term("a", 0), term("b", 2)))),
        ("a AND b", And((term("a", 0), term("b", 6)))),
        ("a OR b AND c", Or((term("a", 0), And((term("b", 5), term("c", 11)))))),
        ("(a OR b) AND c", And((Or((term("a", 1), term("b", 6))), term("c", 13)))),
        ("NOT a AND b", And((Not(term("a", 4)), term("b", 10)))),
        ("NOT NOT a", Not(Not(term("a", 8)))),
        ("a AND NOT(b)", And((term("a", 0), Not(term("b", 10))))),
        ("((a))", term("a", 2)),
        ("wor*", Pattern(None, (("wor", False), ("*", True)), 0)),
        (
            "h?l*o",
            Pattern(None, (("h", False), ("?", True), ("l", False), ("*", True), ("o", False)), 0),
        ),
        ("t:*x", Pattern("t", (("*", True), ("x", False)), 2)),
        ("id:[1 TO 5]", Range("id", "1", "5", True, True, 3)),
        ("{-1 TO 5]", Range(None, "-1", "5", False, True, 0)),
        ("id:[* TO 5}", Range("id", None, "5", True, False, 3)),
        (
            "at:[2024-01-01T00:00:00Z TO *]",
            Range("at", "2024-01-01T00:00:00Z", None, True, True, 3),
        ),
        ('t:["a b" TO "c d"]', Range("t", "a b", "c d", True, True, 2)),
        ("id:>=5", Range("id", "5", None, True, True, 3)),
        ("id:>-5", Range("id", "-5", None, False, True, 3)),
        ("<5", Range(None, None, "5", True, False, 0)),
        ("id:<=5", Range("id", None, "5", True, True, 3)),
    ],
)
def test_supported_queries_are_parsed(text, query):
    assert parse_query(text) == query


@pytest.mark.parametrize(
    ("text", "position", "what"),
    [
        ("", 1, "empty"),
        ("   ", 1, "empty"),
        ("a AND", 6, "followed by nothing"),
        ("AND a", 1, "needs a term"),
        ("a OR OR b", 6, "needs a term"),
        ("NOT", 4, "followed by nothing"),
        ("(a", 1, "not closed"),
        ("a)", 2, "not expected"),
        ("()", 2, "cannot start|expected"),
        ('"a', 1, "not closed"),
        ('a "b', 3, "not closed"),
        ("+a", 1, "cannot start"),
        ("a -b", 3, "cannot start"),
        ("!a", 1, "cannot start"),
        ("a && b", 3, "cannot start"),
        ("a || b", 3, "cannot start"),
        ("/re/", 1, "cannot start"),
        ("'a b'", 1, "cannot start"),
        ("a~1", 2, "not supported"),
        ('"a b"~2', 6, "not supported"),
        ("a^2", 2, "not supported"),
        ("*", 1, "wildcard alone"),
        ("t:*", 3, "wildcard alone"),
        ("[* TO *]", 1, "without bounds"),
        ("id:[1 5]", 7, "TO is expected"),
        ("id:IN [1 2]", 10, "TO is expected"),
        ("id:[1 TO 5", 4, "not closed"),
        ("id:[1 TO", 9, "bound"),
        ("id:", 4, "a value is expected"),
        ("id: 5", 4, "a value is expected"),
        ("id:>", 5, "bound"),
        ("t:(a b)", 3, "before a group"),
        ("10:30:00", 6, "not expected"),
        ("a*:b", 1, "no wildcards"),
        ("a\\", 3, "escapes nothing"),
        ('a"b"', 2, "not expected"),
        ("(" * 65 + "a" + ")" * 65, 65, "nested deeper"),
        (" OR ".join(["a"] * 1025), 5121, "more than 1,024 terms"),
    ],
)
def test_unsupported_queries_raise_with_their_position(text, position, what):
    with pytest.raises(InvalidRequest, match=f"position {position}: .*(?:{what})"):
        parse_query(text)


def test_query_must_be_text_of_limited_length():
    with pytest.raises(InvalidRequest, match="at most 20,000 characters"):
        parse_query("a" * 20_001)
    with pytest.raises(InvalidRequest, match="is text, not int"):
        parse_query(5)
