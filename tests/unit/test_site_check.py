"""The check of the built documentation finds exactly the problems of a site."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "docs" / "site_check.py"
GOOD = """
<link rel="stylesheet" href="assets/site.css"><link rel="canonical" href="https://example.org/">
<img src="data:image/png;base64,AAAA"><h1 id="top">A</h1>
<a href="#top">up</a> <a href="sub/b.html#part">b</a> <a href="sub/">b</a>
<a href="/sub/b.html">b</a>
<a href="https://example.org/page">elsewhere</a> <a href="mailto:a@example.org">mail</a>
"""


@pytest.fixture(scope="module")
def find_problems():
    spec = importlib.util.spec_from_file_location("site_check", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.find_problems


@pytest.fixture
def site(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text(GOOD)
    (tmp_path / "sub" / "b.html").write_text(
        '<h2 id="part">B</h2><a href="../index.html#top">a</a>'
    )
    (tmp_path / "sub" / "index.html").write_text("B")
    (tmp_path / "assets" / "site.css").write_text("a { background: url(../x.png) }")
    return tmp_path


def test_valid_site_has_no_problems(find_problems, site):
    assert find_problems(site) == []


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        ('<a href="c.html">c</a>', "index.html links to c.html: there is no such file"),
        ('<a href="#c">c</a>', "index.html links to #c: there is no such heading"),
        ('<a href="sub/b.html#c">c</a>', "links to sub/b.html#c: there is no such heading"),
        ('<img src="c.png">', "index.html loads c.png: there is no such file"),
        ('<script src="https://x.org/a.js"></script>', "index.html loads https://x.org/a.js"),
        ('<script src="//x.org/a.js"></script>', "index.html loads //x.org/a.js"),
        ('<link rel="preconnect" href="https://x.org">', "index.html loads https://x.org"),
        (
            '<p style="background: url(https://x.org/i.png)">',
            "index.html loads https://x.org/i.png",
        ),
    ],
)
def test_each_problem_is_found(find_problems, site, added, problem):
    (site / "index.html").write_text(GOOD + added)
    (found,) = find_problems(site)
    assert problem in found


def test_external_font_in_a_style_sheet_is_found(find_problems, site):
    (site / "assets" / "site.css").write_text('@import "https://x.org/font.css";')
    assert find_problems(site) == ["assets/site.css loads https://x.org/font.css"]
