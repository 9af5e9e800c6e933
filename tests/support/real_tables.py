"""Tables that IndexTables itself wrote, where they are at hand."""

import os
from pathlib import Path

import pytest


def _find():
    given = os.environ.get("ARROWLOG_FIXTURES")
    places = (
        [Path(given)]
        if given
        else [parent / "shared" / "fixtures" for parent in Path(__file__).resolve().parents]
    )
    return next((p / "indextables" for p in places if (p / "indextables").is_dir()), None)


FOLDER = _find()
# They are data of another project and cannot be installed. Tables made by the project's own writers
# and by tantivy cover the same code everywhere.
needed = pytest.mark.skipif(FOLDER is None, reason="needs ARROWLOG_FIXTURES, tables of IndexTables")
