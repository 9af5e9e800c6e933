"""Every code block of the README and the documentation runs as shown."""

import inspect
import os
import re
from dataclasses import replace

import pytest
from support import doc_tables, reference_pages
from support.doc_pages import (
    DOCS,
    ROOT,
    SHOWN,
    blocks,
    codes_in_source,
    name_of,
    pages,
    run_python,
    run_shell,
)

import arrowlog
from arrowlog.scan.explain import REASON_TEXTS

README = ROOT / "README.md"
KNOWN = SHOWN | {"python", "python spark", "bash"}
RUN = [page for page in pages() if any(each.info in ("python", "bash") for each in blocks(page))]


def _parameter(page):
    marks = [pytest.mark.s3] if page.stem == "run-on-s3" else []
    return pytest.param(page, id=name_of(page), marks=marks)


@pytest.fixture
def replaced():
    """Texts of a page and their replacements when it is run."""
    return {}


@pytest.mark.parametrize("page", [_parameter(page) for page in RUN])
def test_code_blocks_run_with_the_shown_output(
    page, request, replaced, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    names = doc_tables.prepare(name_of(page), request)
    printed = ""
    for block in blocks(page):
        text = block.text
        for old, new in replaced.items():
            text = text.replace(old, new)
        if block.info == "python":
            run_python(page, replace(block, text=text), names)
        elif block.info == "bash":
            run_shell(page, block)
        elif block.info in ("text", "sql") and printed:  # the output of the block before
            assert _without_figures(text) in _without_figures(printed)
        printed = capsys.readouterr().out


def _without_figures(text):
    """Return a text with single spaces and normalized figures."""
    return " ".join(re.sub(r"\d[\d,.]*", "0", text).split())


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_block_has_a_known_language(page):
    assert {each.info for each in blocks(page)} <= KNOWN


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_point_to_existing_files_and_headings(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "http://")):
            continue
        path, _, heading = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if heading:
            assert heading in _anchors(linked), target


def _anchors(page):
    """Return the anchors of the headings of a page, as MkDocs and GitHub name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", each.replace("`", "")).strip().lower() for each in headings]
    return {re.sub(r"[\s]+", "-", each) for each in plain}


def test_readme_is_short_and_starts_with_the_formats():
    lines = README.read_text().splitlines()
    assert len(lines) <= 160
    first_screen = "\n".join(lines[:25])
    assert "protocols 1 to 4" in first_screen
    assert ".split" in first_screen
    assert "Delta" in first_screen
    assert lines.index("## Two commands") < lines.index("## First minute: a notebook")
    text = README.read_text()
    assert text.index("Table.create(") < text.index("arrowlog.Table(")


def test_readme_names_the_demo_and_test_commands():
    text = README.read_text()
    assert "python3 dev.py demo" in text
    assert "python3 dev.py test" in text
    assert "python3 dev.py test" in (ROOT / ".ci" / "run").read_text()


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text()
    listed = set(re.findall(r"[\w/.-]+\.md", text))
    numbered = {each for each in listed if each.startswith("decisions/0")}
    on_disk = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    decisions = {each for each in on_disk if re.match(r"decisions/\d", each)}
    assert not numbered  # decisions/index.md lists them
    assert on_disk - decisions <= listed
    index = (DOCS / "decisions" / "index.md").read_text()
    for decision in decisions:
        assert os.path.basename(decision) in index


def test_reference_matches_the_code():
    for page, whole in reference_pages.pages().items():
        assert page.read_text() == whole, "run `python tests/support/reference_pages.py`"


def test_every_public_name_is_in_the_reference():
    page = (DOCS / "reference" / "api.md").read_text()
    listed = {each.rpartition(".")[2] for each in re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)}
    public = set(arrowlog.__all__) | set(arrowlog.spark.__all__)
    errors = {name for name in public if inspect.isclass(_find(name)) and _is_problem(_find(name))}
    assert public - errors - listed == {"__version__", "spark"}
    explained = (DOCS / "reference" / "errors.md").read_text()
    assert [name for name in errors if f"`{name}`" not in explained] == []


def _find(name):
    return getattr(arrowlog, name, None)


def _is_problem(kind):
    return issubclass(kind, Exception)


def test_every_explain_reason_is_documented():
    page = (DOCS / "guides" / "why-a-query-reads-everything.md").read_text()
    explained = re.findall(r"^\| `([\w :]+)` \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
    assert sorted(explained) == sorted(set(REASON_TEXTS) - {"dropped"})


def test_every_doctor_code_is_documented():
    page = (DOCS / "reference" / "doctor-codes.md").read_text()
    explained = {
        code
        for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
        for code in re.findall(r"`([a-z-]+)`", row)
    }
    source = codes_in_source()
    assert source - explained == set()
    assert explained - source == set()
