"""Hooks of the documentation site: pages from outside of `docs/`, and links to them.

The pages of `PROJECT_PAGES` are copied into the site; notebooks become pages with their stored
output. Links are resolved as a code host resolves them; those to files that the site does not have,
such as tests, become plain text.
"""

import html
import json
import logging
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PROJECT_PAGES = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    **{
        f"notebooks/{path.name}": f"notebooks/{path.stem}.md"
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    },
}
_SOURCES = {page: source for source, page in PROJECT_PAGES.items()}
# Material loads a script for search on file:// from another host. The site has one of its own.
_REMOTE_WORKER, _OWN_WORKER = "https://unpkg.com/iframe-worker/shim", "assets/frame-worker.js"
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]*\\\|[^`\n]*)`")
_log = logging.getLogger("mkdocs.hooks.links")


def on_files(files, config):
    """Add the pages from outside of `docs/`, and the charts of notebooks."""
    for source, page in PROJECT_PAGES.items():
        text = (ROOT / source).read_text()
        if source.endswith(".ipynb"):
            text, charts = _notebook_page(json.loads(text), Path(page).stem)
            for name, svg in charts.items():
                files.append(File.generated(config, f"notebooks/{name}", content=svg))
        files.append(File.generated(config, page, content=text))
    return files


def _notebook_page(book, stem):
    """Return a notebook as Markdown, and its charts as SVG files by name."""
    parts, charts = [], {}
    for cell in book["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/svg+xml" in data:
                name = f"{stem}-{len(charts) + 1}.svg"
                charts[name] = "".join(data["image/svg+xml"])
                title = html.escape(_chart_title(charts[name]))
                parts.append(f'<p><img src="{name}" alt="{title}"></p>')
            elif "text/html" in data:
                shown = "".join(data["text/html"])
                parts.append(f'<div class="notebook-output">\n{shown}\n</div>')
            else:
                shown = "".join(output.get("text") or data.get("text/plain", []))
                parts.append(f"```text\n{shown.rstrip()}\n```")
    return "\n\n".join(parts), charts


def _chart_title(svg):
    """Return the title of a chart: its last bold text, because axes are drawn before it."""
    bold = re.findall(r'font-weight="bold"[^>]*>([^<]+)</text>', svg)
    return f"Chart: {html.unescape(bold[-1])}" if bold else "Chart"


def on_page_markdown(markdown, page, **_):
    """Rewrite the links of a page, except in code blocks, and the language of blocks for Spark."""
    uri = page.file.src_uri
    source = _SOURCES.get(uri, f"docs/{uri}")
    parts = _FENCE.split(markdown)
    for number in range(0, len(parts), 2):
        linked = _LINK.sub(lambda link: _rewrite(link, source, uri), parts[number])
        parts[number] = _CODE.sub(_spell_pipes, linked)
    # Which tests run a block is of no concern to its highlighting.
    return "".join(parts).replace("```python spark\n", "```python\n")


def on_post_page(output, page, **_):
    """Replace the one script of another host."""
    relative = posixpath.relpath(_OWN_WORKER, posixpath.dirname(page.url) or ".")
    return output.replace(_REMOTE_WORKER, relative)


def on_post_template(output_content, **_):
    """Do the same for the page of missing pages."""
    return output_content.replace(_REMOTE_WORKER, _OWN_WORKER)


def _spell_pipes(code):
    """Write code with escaped pipes as HTML: Python-Markdown would show the backslashes."""
    text = code[1].replace("\\|", "|")
    return f"<code>{''.join(f'&#{ord(c)};' if c in '|[]<>&*_' else c for c in text)}</code>"


def _rewrite(link, source, uri):
    image, text, target = link.groups()
    if "://" in target or target.startswith(("#", "mailto:")):
        return link[0]
    path, mark, heading = target.partition("#")
    found = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if not (ROOT / found).exists():
        _log.warning("%s links to %s, which does not exist", source, target)
        return link[0]
    if found in PROJECT_PAGES:
        inside = PROJECT_PAGES[found]
    elif found.startswith("docs/") and (ROOT / found).is_file():
        inside = found.removeprefix("docs/")
    elif (ROOT / found / "index.md").is_file():
        inside = f"{found.removeprefix('docs/')}/index.md"
    else:
        return text
    relative = posixpath.relpath(inside, posixpath.dirname(uri) or ".")
    return f"{image}[{text}]({relative}{mark}{heading})"
