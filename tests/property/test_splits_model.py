"""Generated splits and queries, against tantivy's own documents and a naive search."""

import random
import re

import numpy as np
import pyarrow as pa
import pytest
import tantivy
from support.case_count import cases
from support.split_bundles import field, make_split
from support.split_cases import (
    FIELDS,
    NESTED_FIELDS,
    NESTED_SCHEMA,
    SCHEMA,
    expected,
    make_rows,
    open_split,
    read_rows,
)

from arrowlog.splits import RowDecoder, SplitSearch

WORDS = ["spark", "sql", "lake", "Table", "wörk", "x1", "run"]


@pytest.mark.promise("splits.rows_are_complete")
@pytest.mark.parametrize("seed", range(cases(12)))
def test_rows_equal_the_written_rows(tmp_path, seed):
    print("seed", seed)
    chance = random.Random(seed)
    nested = chance.random() < 0.3
    rows = make_rows(seed, chance.choice([0, 1, 3, 200, 1500]), nested=nested)
    cuts = sorted(chance.randrange(len(rows) + 1) for _ in range(chance.randrange(3)))
    segments = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    gone = chance.randrange(len(rows)) if rows and chance.random() < 0.5 else None
    fields = {**FIELDS, **NESTED_FIELDS} if nested else FIELDS
    data = make_split(fields, segments, delete=None if gone is None else ("id", gone))
    whole = NESTED_SCHEMA if nested else SCHEMA
    names = chance.sample(whole.names, chance.randrange(1, len(whole.names) + 1))
    schema = pa.schema([whole.field(name) for name in dict.fromkeys(["id", *names])])
    live = [row for row in expected(rows) if row["id"] != gone]
    with open_split(tmp_path, data, len(live)) as files:
        assert read_rows(files, schema) == [
            {name: row[name] for name in schema.names} for row in live
        ]
        total = sum(segment.max_doc for segment in files.meta.segments)
        chosen = np.array(sorted(chance.sample(range(total), total // 3)), np.int64)
        by_number = {
            number: row
            for numbers, batch in RowDecoder(files, schema).batches()
            for number, row in zip(numbers.tolist(), batch.to_pylist(), strict=True)
        }
        wanted = [by_number[n] for n in chosen.tolist() if n in by_number]
        assert read_rows(files, schema, chosen) == sorted(wanted, key=lambda row: row["id"])


@pytest.mark.promise("splits.rows_are_complete")
def test_columnar_decoder_equals_tantivy(tmp_path):
    rows = make_rows(77, 700)
    with open_split(tmp_path, make_split(FIELDS, [rows])) as files:
        decoder = RowDecoder(files, SCHEMA)
        (segment,) = files.meta.segments
        columnar = [arrays for _, arrays in decoder._read_store(segment, None)]
        documents = [arrays for _, arrays in decoder._read_documents(segment, None)]
    for name in SCHEMA.names:
        ours = pa.chunked_array([arrays[name] for arrays in columnar])
        theirs = pa.chunked_array([arrays[name] for arrays in documents])
        assert ours.to_pylist() == theirs.to_pylist()


# A naive search: rows as dicts, text divided by a regular expression.


def tokens(column, text):
    if text is None:
        return None
    return [text] if column == "name" else re.findall(r"\w+", text.lower())


def random_query(chance, depth=0):
    """A query as text, and the equivalent test of a row."""
    kind = chance.random()
    if depth < 3 and kind < 0.5:
        left, left_test = random_query(chance, depth + 1)
        right, right_test = random_query(chance, depth + 1)
        operator = chance.choice([" AND ", " OR ", " "])
        if operator == " OR ":
            return f"({left} OR {right})", lambda row: left_test(row) or right_test(row)
        return f"({left}{operator}{right})", lambda row: left_test(row) and right_test(row)
    if depth < 3 and kind < 0.65:
        inner, test = random_query(chance, depth + 1)
        return f"NOT {inner}", lambda row: not test(row)
    if kind < 0.75:
        low, high = sorted((chance.randrange(60), chance.randrange(60)))
        return f"id:[{low} TO {high}}}", lambda row: low <= row["id"] < high
    column = chance.choice(["body", "name"])
    prefix = "" if column == "body" else "name:"
    if kind < 0.85:
        words = [chance.choice(WORDS) for _ in range(2)]
        phrase = " ".join(words)

        def has_phrase(row):
            found = tokens(column, row[column]) or []
            wanted = tokens(column, phrase)
            return any(
                found[at : at + len(wanted)] == wanted for at in range(len(found) - len(wanted) + 1)
            )

        return f'{prefix}"{phrase}"', has_phrase
    word = chance.choice(WORDS)
    if kind < 0.93:
        pattern = chance.choice(
            [f"{word[:2]}*", f"?{word[1:]}", f"*{word[-1]}", f"{word[0]}*{word[-1]}"]
        )
        text = pattern.lower() if column == "body" else pattern
        regex = re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
        return f"{prefix}{pattern}", lambda row: any(
            regex.fullmatch(token) for token in tokens(column, row[column]) or []
        )
    wanted = tokens(column, word)[0]
    return f"{prefix}{word}", lambda row: wanted in (tokens(column, row[column]) or [])


@pytest.mark.promise("splits.search_is_exact")
def test_search_equals_a_naive_search(tmp_path):
    chance = random.Random(5)
    rows = [
        {
            "id": number,
            "name": chance.choice([None, *WORDS, "spark sql"]),
            "body": chance.choice([None, " ".join(chance.choices(WORDS, k=chance.randrange(6)))]),
        }
        for number in range(60)
    ]
    fields = {
        "id": field("i64"),
        "name": field("text"),
        "body": field("text", tokenizer_name="default", fast=False),
    }
    data = make_split(fields, [rows[:25], rows[25:]], delete=("id", 11))
    rows = [row for row in rows if row["id"] != 11]
    ids = pa.schema([("id", pa.int64())])
    hits = 0
    with open_split(tmp_path, data, 59) as files:
        search = SplitSearch(files)
        for number in range(cases(400)):
            text, test = random_query(chance)
            found = read_rows(files, ids, search.rows("body", text))
            wanted = [row["id"] for row in rows if test(row)]
            assert [row["id"] for row in found] == wanted, (number, text)
            hits += bool(wanted)
    assert hits > 100


def test_term_dictionary_search_equals_tantivy(tmp_path):
    """The splits of these tests are written by tantivy, so its index can be queried."""
    from support.split_bundles import write_index

    rows = make_rows(9, 300)
    index = tmp_path / "index"
    index.mkdir()
    write_index(index, FIELDS, [rows])
    opened = tantivy.Index.open(str(index))
    searcher = opened.searcher()
    with open_split(tmp_path, make_split(FIELDS, [rows])) as files:
        search = SplitSearch(files)
        for word in ("spark", "lake", "ÆØÅ", "東京", "naïve", "c", "the"):
            query = tantivy.Query.term_query(opened.schema, "body", word.lower())
            assert search.count("body", word) == searcher.search(query, limit=1).count > 0
