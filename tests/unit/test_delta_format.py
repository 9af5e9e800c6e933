"""The Delta format: names, paths, protocol, column mapping, commit times."""

import json

import pyarrow as pa
import pytest

from arrowlog.errors import UnsupportedProtocol
from arrowlog.formats.delta import (
    DELTA,
    check_delta_readable,
    check_type_changes,
    decode_path,
    decode_paths,
    deletion_vector_ids,
    field_id,
    file_keys,
    in_commit_timestamps_since,
    mapping_mode,
    monotonic_times,
    parse_delta_schema,
    physical_schema,
    sidecar_name,
    stored_name,
    uses_column_mapping,
)
from arrowlog.formats.delta.column_mapping import is_supported_widening
from arrowlog.snapshot.log_segment import plan_segment

UUID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"


def name(version, rest):
    return f"{version:020d}.{rest}"


def part(version, number, count):
    return name(version, f"checkpoint.{number:010d}.{count:010d}.parquet")


def test_only_commit_names_of_exactly_20_digits_are_accepted():
    odd = ["1.json", f"{1:019d}.json", f"{1:021d}.json", name(1, f"{UUID}.json"), ".tmp.json"]
    found = DELTA.classify([name(0, "json"), *odd, "_staged_commits", "x.json.tmp"])
    assert found.commits == {0: DELTA.key(name(0, "json"))}
    assert not found.checkpoints


def test_multi_part_checkpoint_requires_all_parts():
    complete = [part(3, 1, 2), part(3, 2, 2)]
    broken = [part(4, 1, 3), part(4, 3, 3), part(4, 1, 2), part(4, 3, 2), part(4, 0, 0)]
    found = DELTA.classify([*broken, *reversed(complete)])
    assert list(found.checkpoints) == [3]
    assert found.checkpoints[3][0].names == tuple(complete)


def test_checkpoint_forms_of_a_version_are_alternatives_parquet_first():
    json_form, parquet_form = (name(7, f"checkpoint.{UUID}.{k}") for k in ("json", "parquet"))
    classic = name(7, "checkpoint.parquet")
    found = DELTA.classify([json_form, part(7, 1, 1), parquet_form, classic])
    forms = found.checkpoints[7]
    assert forms[-1].names == (json_form,)
    assert forms[-1].kind == "delta-json"
    assert {form.names for form in forms[:-1]} == {(classic,), (parquet_form,), (part(7, 1, 1),)}


def test_names_that_look_like_checkpoints_are_ignored():
    odd = [name(1, "checkpoint.json"), name(1, "checkpoint.xyz.parquet"), "1.checkpoint.parquet"]
    assert not DELTA.classify(odd).checkpoints


def segment(names, version=None):
    listing = DELTA.classify(names)
    found = plan_segment(listing, version)
    return [(file.version, "compacted" in file.key) for file in found.commits], found.gap


def test_log_compaction_files_replace_missing_commits_only():
    compacted = [name(2, f"{5:020d}.compacted.json"), name(2, f"{3:020d}.compacted.json")]
    every = [name(v, "json") for v in range(8)]
    assert segment([*every, *compacted]) == ([(v, False) for v in range(8)], None)
    without = [name(v, "json") for v in (0, 1, 2, 4, 5, 6, 7)] + compacted
    assert segment(without)[0] == [(0, False), (1, False), (5, True), (6, False), (7, False)]
    assert segment(without, 4)[0] == [(0, False), (1, False), (3, True), (4, False)]
    cleaned = [name(v, "json") for v in (0, 1, 6)] + compacted[:1]
    assert segment(cleaned)[0] == [(0, False), (1, False), (5, True), (6, False)]
    assert segment(cleaned, 5)[0] == [(0, False), (1, False), (5, True)]
    # A version in the middle cannot be read from the compacted commit.
    assert segment(cleaned, 4)[0] == [(0, False), (1, False)]
    gap = segment([name(v, "json") for v in (0, 1, 7)] + compacted)[1]
    assert (gap.missing, gap.next) == (6, 7)


PATHS = {
    "a.parquet": "a.parquet",
    "a%20b%2Fc": "a b/c",
    "%252521": "%2521",
    "a+b": "a+b",
    "100%": "100%",
    "%C3%A4": "ä",
    "file:/x/y": "/x/y",
    "file:///x/y%20z": "/x/y z",
    "s3://bucket/x%3D1": "s3://bucket/x=1",
    "/abs/x": "/abs/x",
}


@pytest.mark.parametrize(("stored", "shown"), PATHS.items())
def test_path_is_url_decoded_once(stored, shown):
    assert decode_path(stored) == shown


def test_path_columns_are_decoded_like_single_paths():
    column = pa.chunked_array([list(PATHS)[:4], [None, *list(PATHS)[4:]]])
    assert decode_paths(column).to_pylist() == [
        None if path is None else decode_path(path) for path in column.to_pylist()
    ]
    plain = pa.chunked_array([["a", "b"]])
    assert decode_paths(plain) is plain


def test_file_key_distinguishes_deletion_vectors_and_offsets():
    paths = pa.chunked_array([["p"] * 4])
    ids = deletion_vector_ids(
        pa.chunked_array([["u", "u", "u", None]]),
        pa.chunked_array([["x", "x", "x", None]]),
        pa.chunked_array([[0, None, 1, None]], pa.int64()),
    )
    assert ids.to_pylist() == ["ux@0", "ux", "ux@1", None]
    keys = file_keys(paths, ids).to_pylist()
    assert keys == ["p\0ux@0", "p\0ux", "p\0ux@1", "p"]
    assert file_keys(paths, None) is paths


def test_sidecar_paths_are_reduced_to_names():
    assert sidecar_name("a%20b.parquet") == "a b.parquet"
    assert sidecar_name("s3://b/t/_delta_log/_sidecars/x.parquet") == "x.parquet"


def test_every_unknown_feature_is_named():
    with pytest.raises(UnsupportedProtocol, match="features alpha, zeta;") as caught:
        check_delta_readable(3, ["zeta", "deletionVectors", "alpha"], "t")
    assert "deletionVectors, alpha" not in str(caught.value)
    with pytest.raises(UnsupportedProtocol, match="columnmapping"):
        check_delta_readable(3, ["columnmapping"], "t")  # names are compared exactly
    with pytest.raises(UnsupportedProtocol, match="reader version 4"):
        check_delta_readable(4, [], "t")
    for feature in ("catalogManaged", "catalogOwned-preview", "variantShredding-preview"):
        with pytest.raises(UnsupportedProtocol, match=feature):
            check_delta_readable(3, [feature], "t")
    check_delta_readable(3, ["columnMapping", "v2Checkpoint", "typeWidening"], "t")
    check_delta_readable(1, [], "t")


def test_column_mapping_requires_reader_2_or_the_feature():
    assert uses_column_mapping(2, ())
    assert uses_column_mapping(3, ("columnMapping",))
    assert not uses_column_mapping(1, ())
    assert not uses_column_mapping(3, ("deletionVectors",))


@pytest.mark.parametrize(
    ("old", "new", "supported"),
    [
        ("byte", "long", True),
        ("long", "integer", False),
        ("integer", "double", True),
        ("long", "double", False),
        ("float", "double", True),
        ("date", "timestamp_ntz", True),
        ("date", "timestamp", False),
        ("integer", "decimal(10,0)", True),
        ("integer", "decimal(10,2)", False),
        ("long", "decimal(20,0)", True),
        ("long", "decimal(19,0)", False),
        ("decimal(10,2)", "decimal(10,2)", True),
        ("decimal(10,2)", "decimal(11,3)", True),
        ("decimal(10,2)", "decimal(10,3)", False),
        ("decimal(10,2)", "decimal(12,1)", False),
        ("string", "binary", False),
    ],
)
def test_supported_type_widenings(old, new, supported):
    assert is_supported_widening(old, new) is supported
    kind = {"type": "array", "elementType": {"type": "struct", "fields": []}, "containsNull": True}
    change = {"delta.typeChanges": [{"fromType": old, "toType": new}]}
    kind["elementType"]["fields"] = [{"name": "b", "type": new, "metadata": change}]
    schema = {"type": "struct", "fields": [{"name": "a", "type": kind, "metadata": {}}]}
    if supported:
        check_type_changes(schema, "t")
    else:
        with pytest.raises(UnsupportedProtocol, match=r"'a\.element\.b'.*typeWidening"):
            check_type_changes(schema, "t")


def column(name, kind, number=None):
    metadata = {}
    if number is not None:
        metadata = {
            "delta.columnMapping.id": number,
            "delta.columnMapping.physicalName": f"col-{number}.x",
        }
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


NESTED = {
    "type": "struct",
    "fields": [
        column("a", {"type": "struct", "fields": [column("b", "long", 2)]}, 1),
        column("c", {"type": "map", "keyType": "string", "valueType": "long"}, 3),
        column("d", {"type": "array", "elementType": {"type": "struct", "fields": []}}, 4),
    ],
}
NESTED["fields"][2]["type"]["elementType"]["fields"] = [column("e", "string", 5)]


@pytest.mark.parametrize("mode", ["name", "id"])
def test_physical_names_and_ids_are_kept_at_every_level(mode):
    text = json.dumps(NESTED)
    config = {"delta.columnMapping.mode": mode}
    schema = parse_delta_schema(text, config, "t", mapping_enabled=True)
    assert mapping_mode(schema) == mode
    assert schema.names == ["a", "c", "d"]
    assert [stored_name(item) for item in schema] == ["col-1.x", "col-3.x", "col-4.x"]
    inner = schema.field("a").type.field("b")
    assert (stored_name(inner), field_id(inner)) == ("col-2.x", 2)
    physical = physical_schema(schema)
    assert physical.names == ["col-1.x", "col-3.x", "col-4.x"]
    assert physical.field("col-4.x").type.value_type.field(0).name == "col-5.x"


def test_column_mapping_is_ignored_unless_the_protocol_enables_it():
    config = {"delta.columnMapping.mode": "name"}
    schema = parse_delta_schema(json.dumps(NESTED), config, "t", mapping_enabled=False)
    assert mapping_mode(schema) == "none"
    assert [stored_name(item) for item in schema] == ["a", "c", "d"]


def test_missing_physical_name_and_unknown_mapping_mode_raise():
    plain = json.dumps({"type": "struct", "fields": [column("a", "long")]})
    with pytest.raises(ValueError, match="physicalName"):
        parse_delta_schema(plain, {"delta.columnMapping.mode": "id"}, "t", mapping_enabled=True)
    with pytest.raises(ValueError, match="'both'"):
        parse_delta_schema(plain, {"delta.columnMapping.mode": "both"}, "t", mapping_enabled=True)


def test_commit_times_are_monotonic():
    assert monotonic_times([10, 10, 5, 30]) == [10, 11, 12, 30]
    assert in_commit_timestamps_since({}) is None
    on = {"delta.enableInCommitTimestamps": "true"}
    assert in_commit_timestamps_since(on) == 0
    later = {**on, "delta.inCommitTimestampEnablementVersion": "4"}
    assert in_commit_timestamps_since(later) == 4
