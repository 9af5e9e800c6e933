"""The page on differences from the IndexTables documents: its tests and names exist."""

import re
from pathlib import Path

import pytest
from support.differences import DIFFERENCES

import arrowlog
from arrowlog.config import PREFIX, Config
from arrowlog.log_lines import EVENTS

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("item", [each for each in DIFFERENCES if each.proof], ids=lambda i: i.does)
def test_linked_test_of_each_difference_exists(item):
    file, _, name = item.proof.partition("::")
    assert f"def {name}(" in (TESTS / file).read_text()


def test_every_difference_has_a_reason_and_is_unique():
    assert all(item.says and item.does and item.reason for item in DIFFERENCES)
    assert len({item.says for item in DIFFERENCES}) == len(DIFFERENCES)
    assert sum(bool(item.proof) for item in DIFFERENCES) >= len(DIFFERENCES) / 2


def test_settings_named_on_the_page_exist():
    fields = Config.__dataclass_fields__.values()
    keys = {item.metadata["key"].removeprefix(PREFIX) for item in fields if "key" in item.metadata}
    text = " ".join(f"{item.does} {item.reason}" for item in DIFFERENCES)
    named = set(re.findall(r"`((?:checkpoint|transaction|cleanup)\.[\w.]+)`", text))
    assert named
    assert named <= keys
    assert "commit_landed" in EVENTS
    assert arrowlog.Table.add_columns
