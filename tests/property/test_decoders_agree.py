"""The columnar decoder accepts exactly the lines the row decoder accepts, with the same result.

Regular lines are damaged in random places. Both decoders must return the same actions, or raise the
same error for the same line.
"""

import json
import random
from collections.abc import Sequence

import pyarrow as pa
import pytest
from support.case_count import cases

from arrowlog import testing
from arrowlog.decode import LineBuffer, decode_buffer, decoder
from arrowlog.decode.row_decoder import build_info_table, flatten_map_columns
from arrowlog.errors import LogCorrupt

LIMIT = 1 << 20
ROUNDS = cases(1500)
KEYS = ("day", "id", "name", "x")
SPICE = [
    b'"',
    b"\\",
    b",",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b"\n",
    b"\r",
    b"\t",
    b"\0",
    b" ",
    b"0",
    b"-",
]
SPICE += [b"e", b".", b"\xff", b"\xc3\xa9", b"null", b'\\"', b"\\u00e9", b"\\ud800", b"00", b"1e3"]
SPICE += [b'","', b'"},', b'"path":"twice",', b"\xef\xbb\xbf", b"\x7f", b"\x1f", b"9" * 25]


def regular(rng: random.Random) -> list[bytes]:
    """Lines of one writer."""
    nested = rng.random() < 0.5
    whole = [
        testing.add(
            f"day=2024-01-01/part-{i}.parquet",
            {"day": "2024-01-01"},
            size=1000 + i,
            stats=json.dumps(
                {"numRecords": 5, "nullCount": {"id": i % 2}} | _bounds(i, nested=nested)
            ),
            minValues={"id": str(i), "name": f"a{i}"},
            maxValues={"id": str(i + 9), "name": f"z{i}"},
            tags={"run": str(i // 7)},
            numRecords=10,
            docMappingJson='{"a":[1,2]}',
            hasFooterOffsets=True,
            footerStartOffset=i,
        )
        for i in range(60)
    ]
    removes = [testing.remove(f"old-{i}", size=i, tags={"why": "merge"}) for i in range(50)]
    skips = [
        {"mergeskip": {"path": f"s{i}", "skipTimestamp": i, "reason": "r", "operation": "merge"}}
        for i in range(50)
    ]
    infos = [testing.commit_info(i, readVersion=i, operationMetrics={"n": i}) for i in range(50)]
    kind = rng.choice([whole, whole, whole, removes, skips, infos, whole[:30] + removes[:30]])
    return testing.lines(kind).splitlines(keepends=True)


def _bounds(i: int, *, nested: bool) -> dict:
    return {"minValues": {"id": i, "x": i + 0.5}, "maxValues": {"name": "q"}} if nested else {}


def damage(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    lines = list(lines)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 5])):
        number = rng.randrange(len(lines))
        text = bytearray(lines[number])
        at = rng.randrange(len(text))
        what = rng.randrange(4)
        if what == 0:
            text[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            text[at:at] = rng.choice(SPICE)
        elif what == 2:
            del text[at : at + rng.choice([1, 1, 3, 20])]
        else:
            text[at : at + 1] = rng.choice(SPICE)
        lines[number] = bytes(text)
    return lines


def outcome(data: bytes, *, columnar: bool, keys: Sequence[str] = KEYS) -> object:
    window = LineBuffer(LIMIT)
    window.append("file", 3, data)
    try:
        actions = decode_buffer(window, columnar=columnar)
    except LogCorrupt as error:
        return ("LogCorrupt", error.file, error.what if columnar is None else None)
    tables = {name: actions.table(name) for name in actions.tables}
    if tables["add"].num_rows:
        tables["add"] = flatten_map_columns(tables["add"], keys)
    return {name: rows(table) for name, table in tables.items()}


def rows(table: pa.Table) -> list[dict]:
    plain = [name for name in table.column_names if name not in ("raw", "partitionValues")]
    plain = [name for name in plain if name not in ("minValues", "maxValues")]
    found = table.select(plain).sort_by("seq").to_pylist()
    for row in found:
        for name in ("tags", "operationMetrics"):
            if row.get(name) is not None:
                row[name] = json.loads(row[name])
    return [{k: v for k, v in row.items() if v is not None and v != {}} for row in found]


@pytest.mark.promise("snapshot.decoders_agree")
@pytest.mark.parametrize("batch", range(10))
def test_both_decoders_agree_on_damaged_lines(batch):
    for seed in range(batch * ROUNDS // 10, (batch + 1) * ROUNDS // 10):
        print("seed", seed)
        rng = random.Random(seed)
        data = b"".join(damage(rng, regular(rng)))
        if data.strip():
            assert outcome(data, columnar=True) == outcome(data, columnar=False), seed


WIDE_KEYS = [f"c{number}" for number in range(40)] + ['quo"ted', "back\\slash", "é", "a.b", ""]
# As they are in the log, which may have them of any form that JSON allows.
WIDE_BOUNDS = [b"0", b"-0", b"1", b"1e5", b"-1.50E-07", b"0.0", b"9223372036854775807", b"true"]
WIDE_BOUNDS += [b"-9223372036854775808", b"9223372036854775808", b'\\"1\\"', b'\\"x\\"', b"null"]
WIDE_BOUNDS += [
    b'{\\"in\\":1}',
    b"[1,2]",
    b'\\"\\\\u0031\\"',
    b'{\\"in\\":{\\"deep\\":-0}}',
    b"007",
]


def wide(rng: random.Random) -> list[bytes]:
    """Lines with statistics of many columns; a few have a value or a key of an unusual form."""
    keys = rng.sample(WIDE_KEYS, rng.randint(20, len(WIDE_KEYS)))
    if rng.random() < 0.5:
        keys = [key for key in keys if key.startswith("c")]
    texts = [json.dumps(json.dumps(key)).encode()[1:-1] for key in keys]
    unusual = {rng.randrange(len(keys)): rng.choice(WIDE_BOUNDS) for _ in range(rng.choice([0, 2]))}
    odd_count = rng.choice(WIDE_BOUNDS) if rng.random() < 0.3 else None
    start = b'{"add":{"path":"part-%d","size":%d,"modificationTime":1,"dataChange":true,"stats":"'
    lines = []
    for i in range(60):
        values = [unusual.get(column, b"%d" % (i * column)) for column in range(len(keys))]
        if rng.random() < 0.05:
            values[rng.randrange(len(keys))] = rng.choice(WIDE_BOUNDS)
        members = [b":".join(pair) for pair in zip(texts, values, strict=True)]
        if rng.random() < 0.02:
            members.append(rng.choice(members))  # a key twice
        counts = [b"%s:%d" % (text, rng.choice([0, 0, 0, 3])) for text in texts]
        if odd_count is not None:
            counts[0] = b":".join((texts[0], odd_count))
        stats = b'{\\"numRecords\\":%d,\\"minValues\\":{%s},\\"nullCount\\":{%s}}' % (
            i,
            b",".join(members),
            b",".join(counts),
        )
        lines.append(start % (i, i) + stats + b'"}}\n')
    return lines


@pytest.mark.promise("snapshot.decoders_agree")
def test_both_decoders_agree_on_wide_lines():
    num_columnar = num_rows = 0
    for seed in range(cases(200)):
        print("seed", seed)
        rng = random.Random(seed)
        data = b"".join(damage(rng, wide(rng)))
        found = outcome(data, columnar=True, keys=WIDE_KEYS)
        assert found == outcome(data, columnar=False, keys=WIDE_KEYS), seed
        window = LineBuffer(LIMIT)
        window.append("file", 3, b"".join(wide(rng)))
        adds = decode_buffer(window).table("add")
        num_columnar += adds["raw"].null_count if "raw" in adds.column_names else adds.num_rows
        num_rows += adds.num_rows
    assert num_rows // 4 < num_columnar < num_rows  # both decoders have taken part


def test_undamaged_lines_are_decoded_columnar():
    for seed in range(20):
        rng = random.Random(seed)
        window = LineBuffer(LIMIT)
        window.append("file", 3, b"".join(regular(rng)))
        actions = decode_buffer(window)
        adds = actions.table("add")
        assert "raw" not in adds.column_names, seed


def test_error_names_file_and_line():
    lines = regular(random.Random(1))
    for number in (0, 1, 30, len(lines) - 1):
        broken = list(lines)
        broken[number] = broken[number][:40] + b"\n"
        window = LineBuffer(LIMIT)
        window.append("_transaction_log/7.json", 7, b"".join(broken))
        with pytest.raises(LogCorrupt) as caught:
            decode_buffer(window)
        assert caught.value.file == "_transaction_log/7.json"
        assert caught.value.line == number + 1


def odd_infos(rng: random.Random) -> list[dict]:
    """CommitInfos of one writer, of which some have values that no column can hold."""
    odd = [None, "text", 7, -(2**70), 1.5, True, [], {}, {"a": None}, 'é\\"', "\u2028"]
    infos, share = [], rng.choice([0, 0.02, 0.3])
    notes = {"userMetadata": "note"} if rng.random() < 0.2 else {}
    for i in range(rng.choice([60, 200])):
        info = {"timestamp": 10**12 + i, "operation": "WRITE", "operationParameters": {}}
        info |= {
            "txnId": f"id-{i}",
            **notes,
            "readVersion": i,
            "operationMetrics": {"files": str(i), "bytes": i * i},
        }
        info |= {"txn": {"appId": "app", "version": i}, "numActions": 1, "checksum": "crc32:0"}
        for _ in range(rng.choice([1, 3]) if rng.random() < share else 0):
            info[rng.choice(list(info))] = rng.choice(odd)
        if rng.random() < share / 4:
            del info[rng.choice(list(info))]
        infos.append(info)
    return infos


@pytest.mark.promise("snapshot.decoders_agree")
def test_commit_infos_decoded_as_columns_are_those_decoded_one_by_one(monkeypatch):
    one_by_one, total = [], 0

    def counted(seq, lines, fields):
        one_by_one.append(len(seq))
        return build_info_table(seq, lines, fields)

    monkeypatch.setattr(decoder, "build_info_table", counted)
    for seed in range(cases(60)):
        print("seed", seed)
        rng = random.Random(seed)
        data = testing.lines({"commitInfo": info} for info in odd_infos(rng))
        lines = data.splitlines(keepends=True)
        window = LineBuffer(LIMIT)
        ends = [sum(map(len, lines[: i + 1])) for i in range(len(lines))]
        window.put([f"f{i}" for i in range(len(lines))], range(len(lines)), data, ends)
        actions = decode_buffer(window)
        model = [infos.table() for infos in actions.infos]
        expected = pa.concat_tables(model, promote_options="default").sort_by("seq")
        found = actions.table("commitInfo").sort_by("seq")
        assert present(found) == present(expected)
        assert found.num_rows == len(lines)
        total += len(lines)
    assert 0 < sum(one_by_one) < 3 * total // 4  # both decoders have taken part


def present(table: pa.Table) -> list[dict]:
    return [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]
