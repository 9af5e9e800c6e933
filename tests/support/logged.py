"""Log lines of a test, checked against their declarations, and a small table to make some."""

import logging

import arrowlog
from arrowlog.log_lines import EVENTS
from support import small_table

SECONDS_MAX = 60
_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def lines_of(name, records):
    """Return the records of an event; each has its level, its logger and exactly its fields."""
    event = EVENTS[name]
    found = [record for record in records if getattr(record, "event", None) == name]
    for record in found:
        assert record.levelno == event.level
        assert record.name == event.logger.name
        assert set(vars(record)) - _STANDARD == {"event", *event.fields}
        assert record.getMessage()
    return found


def create(root, **settings):
    """Create a table without checkpoints in the background, unless the settings say otherwise."""
    options = {"checkpoint.enabled": False, **settings}
    return arrowlog.Table.create(root, small_table.SCHEMA, ["day"], options=options)


def append(table, path="a", note=None):
    """Commit one file that does not exist; `note` makes the commit larger."""
    add = arrowlog.add_file(path, {"day": None}, size=1, modification_time=0)
    return table.append([add], user_metadata=note)
