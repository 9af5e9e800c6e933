"""Hooks of the documentation site: pages from the root of the project, and links out of `docs/`.

The pages of `PROJECT_PAGES` are copied into the site. Links are resolved as a code host resolves
them; those to files that the site does not have, such as tests, become plain text.
"""

import html
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
}
_SOURCES = {page: source for source, page in PROJECT_PAGES.items()}
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]*\\\|[^`\n]*)`")
_log = logging.getLogger("mkdocs.hooks.links")


def on_files(files, config):
    """Add the pages from the root of the project."""
    for source, page in PROJECT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown, page, **_):
    """Rewrite the links of a page, except in code blocks."""
    uri = page.file.src_uri
    source = _SOURCES.get(uri, f"docs/{uri}")
    parts = _FENCE.split(markdown)
    for number in range(0, len(parts), 2):
        linked = _LINK.sub(lambda link: _rewrite(link, source, uri), parts[number])
        parts[number] = _CODE.sub(_spell_pipes, linked)
    return "".join(parts)


def _spell_pipes(code):
    """Write code with escaped pipes as HTML: Python-Markdown would show the backslashes."""
    return f"<code>{html.escape(code[1]).replace(chr(92) + '|', '&#124;')}</code>"


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
