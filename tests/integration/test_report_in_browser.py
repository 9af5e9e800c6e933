"""A report in a real browser: sorting, filtering, themes, keyboard, narrow screens, print."""

import json

import pyarrow as pa
import pytest
from support import browser

import arrowlog
from arrowlog import testing

# Chromium is not a Python package. `dev.py test` installs it in continuous integration.
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        browser.find() is None,
        reason="needs a browser: install chromium, for example with apt-get install chromium",
    ),
]
DAY = 86_400_000
DASH = "\N{EN DASH}"  # of an unknown value
HOSTILE = "<img src='https://example.com/x' onerror='document.title=1'>"


def build(root):
    """A table of 30 partitions and 20 columns, with markup in an operation name."""
    columns = [(f"c{number:02d}", pa.int64()) for number in range(19)]
    schema = pa.schema([("p", pa.string()), *columns, (HOSTILE, pa.int64())])
    opening = [testing.protocol(), testing.metadata(schema, ["p"])]
    for version in range(30):
        bounds = {f"c{n:02d}": str(version * n) for n in range(12)}
        wide = {f"c{n:02d}": str(version * n + n * n * 9) for n in range(12)}
        action = testing.add(
            f"f{version}.parquet",
            {"p": f"part {version}"},
            size=1000 * (version * 7 % 30 + 1),
            minValues=bounds,
            maxValues=wide,
            numRecords=10,
        )
        info = testing.commit_info(1_700_000_000_000 + version * DAY, HOSTILE)
        testing.write_commit(root, version, [info, *([] if version else opening), action])
    return root


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    target = folder / "report.html"
    arrowlog.Table(build(folder / "events")).report(target)
    return target


@pytest.fixture(scope="module")
def chromium():
    running = browser.Browser(browser.find())
    yield running
    running.close()


@pytest.fixture
def page(chromium, path):
    opened = chromium.page()
    opened.open(path)
    yield opened
    assert opened.errors == []
    assert {url.partition(":")[0] for url in opened.requests} == {"file"}
    opened.call("Page.close")


def column(page, table, number, *, shown=True):
    """The texts of a table column in the visible rows."""
    return page.evaluate(
        f"Array.from(document.getElementById('{table}').tBodies[0].rows)"
        f".filter((row) => !({json.dumps(shown)} && row.hidden))"
        f".map((row) => row.cells[{number}].innerText.trim())"
    )


def sort_order(page, table):
    return page.evaluate(
        f"Array.from(document.querySelectorAll('#{table} th[aria-sort]'))"
        ".map((cell) => [cell.innerText.trim(), cell.ariaSort])"
    )


def test_tables_sort_by_any_column_in_both_directions(page):
    head = "#partition-table thead th:nth-child({}) button"
    sizes = column(page, "partition-table", 1, shown=False)
    assert sizes[0] == "30.0 kB"
    page.click(head.format(2))
    assert sort_order(page, "partition-table") == [["Bytes", "ascending"]]
    assert column(page, "partition-table", 1, shown=False) == sizes[::-1]
    page.click(head.format(1))
    assert sort_order(page, "partition-table") == [["Partition", "ascending"]]
    names = column(page, "partition-table", 0, shown=False)
    assert names == [f"p=part {number}" for number in range(30)]  # 2 before 10
    page.click(head.format(1))
    assert column(page, "partition-table", 0, shown=False) == names[::-1]


def test_unknown_values_sort_last_in_both_directions(page):
    head = "#pruning-table thead th:nth-child(4) button"
    for _ in range(2):
        page.click(head)
        values = column(page, "pruning-table", 3, shown=False)
        unknown = values.count(DASH)
        assert unknown == 8
        assert values[-unknown:] == [DASH] * unknown
        numbers = [float(value) for value in values[:-unknown]]
        assert numbers in (sorted(numbers), sorted(numbers, reverse=True))


def test_tables_are_filtered_and_truncated(page):
    assert len(column(page, "partition-table", 0)) == 12
    page.evaluate("document.getElementById('partition-table-q').focus()")
    page.type("part 2")
    assert sorted(column(page, "partition-table", 0)) == sorted(
        f"p=part {number}" for number in (2, *range(20, 30))
    )
    count = "document.getElementById('partition-table-n').value"
    assert page.evaluate(count) == "11 of 30"
    page.press("Escape")
    assert page.evaluate("document.getElementById('partition-table-q').value") == ""
    assert len(column(page, "partition-table", 0)) == 12
    more = "#partitions button.more"
    assert page.evaluate(f"document.querySelector('{more}').innerText") == "Show all 30 rows"
    page.click(more)
    assert len(column(page, "partition-table", 0)) == 30
    assert page.evaluate(f"document.querySelector('{more}').ariaExpanded") == "true"
    page.click(more)
    assert len(column(page, "partition-table", 0)) == 12


def test_filter_and_sort_order_are_independent(page):
    page.evaluate("document.getElementById('partition-table-q').focus()")
    page.type("PART 1")
    page.click("#partition-table thead th:nth-child(1) button")
    expected = [f"p=part {number}" for number in (1, *range(10, 20))]
    assert column(page, "partition-table", 0) == expected


BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.mark.parametrize("dark", [False, True])
def test_theme_follows_the_system_until_changed(page, path, dark):
    page.open(path, dark=dark)
    pressed = "document.getElementById('theme').ariaPressed"
    assert page.evaluate(pressed) == str(dark).lower()
    before = page.evaluate(BACKGROUND)
    page.click("#theme")
    assert page.evaluate(pressed) == str(not dark).lower()
    after = page.evaluate(BACKGROUND)
    brightness = [sum(map(int, colour[4:-1].split(","))) for colour in (before, after)]
    assert (brightness[0] < brightness[1]) is dark
    page.click("#theme")
    assert page.evaluate(BACKGROUND) == before


CONTRAST = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const low = [];
  const texts = "p, td, th, caption, dt, dd, .pill, .tag, .badge, a, .note, button, label";
  for (const e of document.querySelectorAll(texts)) {
    if (!e.innerText || !e.getClientRects().length) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push([e.className, e.innerText.slice(0, 30), ratio]);
  }
  return low;
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_texts_have_enough_contrast(page, path, dark):
    page.open(path, dark=dark)
    assert page.evaluate(CONTRAST) == []


FOCUSED = """(() => { const e = document.activeElement; const style = getComputedStyle(e);
  return [e.tagName, e.id || e.className || e.innerText.slice(0, 30), style.outlineStyle]; })()"""


def test_all_controls_are_usable_with_the_keyboard(page):
    seen = []
    page.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(400):
        seen.append(tuple(page.evaluate(FOCUSED)))
        page.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
    assert all(outline != "none" for _, _, outline in seen), seen
    names = [name for _, name, _ in seen]
    assert "theme" in names
    assert "partition-table-q" in names
    assert "scroll" in names  # regions that scroll
    page.evaluate("document.querySelector('#commit-table thead button').focus()")
    page.press("Enter")
    assert sort_order(page, "commit-table") == [["Version", "ascending"]]
    page.press("Space")
    assert sort_order(page, "commit-table") == [["Version", "descending"]]
    page.evaluate("document.getElementById('theme').focus()")
    page.press("Space")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("width", [320, 390, 768, 1280, 1920])
def test_page_fits_the_window_width(page, path, width):
    page.open(path, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    clipped = page.evaluate(
        "Array.from(document.querySelectorAll('.tiles .value'))"
        ".filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.innerText)"
    )
    assert clipped == []


def test_charts_are_drawn_and_have_a_name_and_a_description(page):
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    images = [node for node in nodes if node.get("role", {}).get("value") == "image"]
    named = [node for node in images if "over time" in node["name"].get("value", "")]
    assert len(named) == 2
    assert "From" in named[0]["name"]["value"]
    for roles in ("banner", "navigation", "main", "contentinfo"):
        assert sum(node.get("role", {}).get("value") == roles for node in nodes) == 1
    boxes = page.evaluate(
        "Array.from(document.querySelectorAll('.bar-up')).map((e) => e.getBBox().height)"
    )
    assert len(boxes) > 20
    assert min(boxes) >= 1


def test_markup_in_names_is_escaped(page):
    assert page.evaluate("document.title") == "events: table report"
    assert HOSTILE in column(page, "commit-table", 2)
    assert page.evaluate("document.images.length") == 0


def test_tooltip_shows_the_values_of_a_bar(page):
    place = page.evaluate(
        "(() => { const e = document.querySelector('#growth .hit');"
        "e.scrollIntoView({block: 'center', behavior: 'instant'});"
        "const r = e.getBoundingClientRect(); return [r.x + 1, r.y + r.height / 2]; })()"
    )
    move = {"type": "mouseMoved", "x": place[0], "y": place[1]}
    page.call("Input.dispatchMouseEvent", move)
    page.wait("!document.getElementById('tip').hidden")
    assert "files" in page.evaluate("document.getElementById('tip').innerText")


def test_page_without_scripts_shows_all_rows(page, path):
    page.call("Emulation.setScriptExecutionDisabled", {"value": True})
    page.open(path)
    assert len(column(page, "partition-table", 0)) == 30
    assert page.evaluate("getComputedStyle(document.querySelector('.tools')).display") == "none"


def test_page_prints_in_light_colors_without_controls(page, path):
    page.open(path, dark=True)
    page.click("#theme")
    page.click("#theme")
    assert page.print_pdf().startswith(b"%PDF")
    page.call("Emulation.setEmulatedMedia", {"media": "print"})
    assert page.evaluate(BACKGROUND) == "rgb(255, 255, 255)"
    for control in ("nav", "#theme", ".tools"):
        shown = f"getComputedStyle(document.querySelector('{control}')).display"
        assert page.evaluate(shown) == "none"


def test_notebook_frame_works_and_is_sandboxed(chromium, tmp_path, path):
    """The page also works in the sandbox in which a notebook shows it."""
    table = arrowlog.Table(path.parent / "events")
    (tmp_path / "notebook.html").write_text(
        f"<!doctype html><meta charset='utf-8'>{table.report()._repr_html_()}"
    )
    opened = chromium.page()
    opened.open(tmp_path / "notebook.html")
    opened.wait("document.querySelector('iframe').clientHeight > 500")
    assert opened.errors == []
    assert opened.evaluate("document.querySelector('iframe').contentDocument") is None
