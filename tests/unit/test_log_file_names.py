"""File names in a log: every width is read, one is written."""

import pytest

from arrowlog.errors import LogCorrupt
from arrowlog.formats import MAX_VERSION
from arrowlog.formats.indextables import classify_names, commit_name, is_json_part, is_parquet_part

TWENTY = "00000000000000000007"
LOG = "_transaction_log"


def forms(listing):
    """Return the kinds and file names of all forms, by version."""
    found = listing.checkpoints.items()
    return {version: [(form.kind, form.names) for form in forms] for version, forms in found}


@pytest.mark.parametrize("digits", [1, 2, 10, 18, 19, 20, 21, 40, 200])
def test_commit_version_is_read_from_names_of_any_width(digits):
    name = f"{7:0{digits}d}.json"
    assert classify_names([name]).commits == {7: f"{LOG}/{name}"}


@pytest.mark.parametrize("digits", [1, 18, 20, 21])
def test_json_checkpoint_version_is_read_from_names_of_any_width(digits):
    name = f"{7:0{digits}d}.checkpoint.json"
    listing = classify_names([name])
    assert listing.checkpoints == {7: (("json", (f"{LOG}/{name}",)),)}
    assert listing.commits == {}


def test_widths_may_be_mixed_in_one_log():
    names = [f"{0:018d}.json", f"{1:020d}.json", "2.json"]
    assert classify_names(names).commits == {v: f"{LOG}/{name}" for v, name in enumerate(names)}


@pytest.mark.parametrize("suffix", [".json", ".checkpoint.json"])
@pytest.mark.parametrize("widths", [(18, 20), (20, 18), (20, 21), (1, 2), (18, 19)])
def test_two_names_for_one_version_are_refused(widths, suffix):
    names = [f"{7:0{digits}d}{suffix}" for digits in widths]
    with pytest.raises(LogCorrupt, match="both version 7") as caught:
        classify_names(names)
    assert caught.value.version == 7
    usual = f"{7:020d}.json"  # the other one does not belong
    assert caught.value.file == f"_transaction_log/{names[0] if names[1] == usual else names[1]}"
    assert all(name in str(caught.value) for name in names)


def test_duplicate_name_in_a_listing_is_one_file():
    once = [f"{TWENTY}.json", "8.json"]
    again = [name.encode().decode() for name in once]  # equal, not the same object
    assert classify_names(once + again).commits == {7: f"{LOG}/{once[0]}", 8: f"{LOG}/{once[1]}"}


def test_largest_version_is_accepted():
    names = [f"{MAX_VERSION:020d}.json", f"{MAX_VERSION}.checkpoint.json"]
    listing = classify_names(names)
    assert listing.newest == MAX_VERSION
    assert list(listing.checkpoints) == [MAX_VERSION]


@pytest.mark.parametrize(
    "stem", [str(MAX_VERSION + 1), f"{MAX_VERSION + 1:020d}", "9" * 20, "9" * 21, "9" * 5000]
)
@pytest.mark.parametrize("suffix", [".json", ".checkpoint.json"])
def test_too_large_version_is_refused(stem, suffix):
    with pytest.raises(LogCorrupt, match="larger than a log can have") as caught:
        classify_names([stem + suffix])
    assert caught.value.file.startswith(f"_transaction_log/{stem[:20]}")
    assert len(str(caught.value)) < 300


def test_parquet_checkpoint_of_a_too_large_version_is_refused():
    with pytest.raises(LogCorrupt, match="larger than a log can have"):
        classify_names([], [f"{'9' * 20}.checkpoint.parquet"])


@pytest.mark.parametrize(
    "stem",
    ["٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٧", "0000000000000000000７", "0000000000000000000²", "٧", "७", "²"],  # noqa: RUF001
)
@pytest.mark.parametrize("suffix", [".json", ".checkpoint.json"])
def test_non_ascii_digits_are_not_a_version(stem, suffix):
    assert classify_names([stem + suffix]).empty


@pytest.mark.parametrize(
    "name",
    [
        f"{TWENTY}.json.tmp",
        f".{TWENTY}.json",
        f"_{TWENTY}.json",
        f"{TWENTY}.json.crc",
        f".{TWENTY}.json.crc",
        f"{TWENTY}.json~",
        f"{TWENTY}.JSON",
        f"{TWENTY}.json ",
        f" {TWENTY}.json",
        f"{TWENTY}.json\n",
        f"-{TWENTY}.json",
        f"+{TWENTY[1:]}.json",
        "1_000.json",
        "0x07.json",
        "7.0.json",
        "tmp_7.json",
        ".json",
        ".checkpoint.json",
        f"{TWENTY}.checkpoint.json.tmp",
        f"{TWENTY}.checkpoint.0123456789ab.00001.json",
        f"{TWENTY}.checkpoint.parquet",
        f"{TWENTY}.compacted.json",
        "_last_checkpoint",
        "_checkpoints",
        "readme.json",
        "",
    ],
)
def test_other_names_in_the_log_folder_are_ignored(name):
    assert classify_names([name]).empty


def test_parquet_checkpoint_is_found_in_its_folder():
    name = f"{TWENTY}.checkpoint.parquet"
    listing = classify_names([], [name, f"{TWENTY}.checkpoint.json"])
    assert forms(listing) == {7: [("parquet", (f"{TWENTY}.checkpoint.json", name))]}
    assert listing.checkpoints[7][0].keys[1] == f"{LOG}/_checkpoints/{name}"
    assert not listing.empty
    assert listing.newest == 7


def test_parts_of_a_parquet_checkpoint_are_sorted():
    parts = [f"{TWENTY}.checkpoint.{n:05d}-of-00011.parquet" for n in range(1, 12)]
    listing = classify_names([], reversed(parts))
    assert forms(listing) == {7: [("parquet", tuple(parts))]}


def test_parquet_form_is_preferred():
    json, parquet = f"{TWENTY}.checkpoint.json", f"{TWENTY}.checkpoint.parquet"
    listing = classify_names([json], [parquet])
    assert forms(listing) == {7: [("parquet", (parquet,)), ("json", (json,))]}
    assert listing.checkpoint_form(7, "json") == ("json", (f"{LOG}/{json}",))
    assert listing.checkpoint_form(7, "avro") is None
    assert listing.checkpoint_form(8, "json") is None


@pytest.mark.parametrize(
    "name",
    [
        f"{TWENTY}.checkpoint.1-of-2.parquet",
        f"{TWENTY}.checkpoint.00001.parquet",
        f"{TWENTY}.checkpoint.00001-of-00002.parquet.tmp",
        f"{TWENTY}.checkpoint.00001-of-00002.json",
        f".{TWENTY}.checkpoint.parquet",
        f"{TWENTY}.parquet",
        f"{TWENTY}.json",
        "\N{ARABIC-INDIC DIGIT SEVEN}.checkpoint.parquet",
        f"{TWENTY}.checkpoint.parquet\n",
    ],
)
def test_other_names_in_the_folder_of_checkpoints_are_ignored(name):
    assert classify_names([], [name]).empty


def test_newest_is_the_highest_version_of_all_files():
    assert classify_names([]).newest == -1
    assert classify_names(["3.json"], ["5.checkpoint.parquet"]).newest == 5
    assert classify_names(["3.json", "4.checkpoint.json"]).newest == 4
    assert classify_names(["9.json", "4.checkpoint.json"], ["5.checkpoint.parquet"]).newest == 9


@pytest.mark.parametrize("version", [0, 7, 10**17, MAX_VERSION])
def test_written_names_have_20_digits_and_round_trip(version):
    assert commit_name(version) == f"{version:020d}.json"
    listing = classify_names([commit_name(version), f"{version:020d}.checkpoint.json"])
    assert listing.commits == {version: f"{LOG}/{commit_name(version)}"}
    assert list(listing.checkpoints) == [version]


@pytest.mark.parametrize(
    ("name", "yes"),
    [
        (f"{TWENTY}.checkpoint.0123456789ab.00001.json", True),
        ("7.checkpoint.0123456789ab.00001.json", True),
        ("8.checkpoint.0123456789ab.00001.json", False),
        (f"../{TWENTY}.checkpoint.0123456789ab.00001.json", False),
        (f"{TWENTY}.checkpoint.0123456789AB.00001.json", False),
        (f"{TWENTY}.checkpoint.0123456789ab.1.json", False),
        (f"{TWENTY}.checkpoint.json", False),
        (f"{TWENTY}.json", False),
        ("/etc/passwd", False),
    ],
)
def test_manifest_may_name_only_parts_of_its_own_version(name, yes):
    assert is_json_part(name, 7) is yes


@pytest.mark.parametrize("rest", [".checkpoint.0123456789ab.00001.json", ".checkpoint.parquet"])
def test_part_with_too_many_digits_raises_log_corrupt(rest):
    check = is_json_part if rest.endswith(".json") else is_parquet_part
    with pytest.raises(LogCorrupt, match="version number"):
        check("1" * 5000 + rest, 1)
