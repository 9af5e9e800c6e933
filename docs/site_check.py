"""Check a built documentation site: every link leads somewhere, and nothing needs a network.

`python docs/site_check.py site` prints the problems and exits with 1 if there are any. It looks at
the pages as they were built, so it also sees links that templates and docstrings made.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes whose target a browser loads with the page. Of `link`, only some relations.
_LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
    "input": "src",
}
_LOADED_RELATIONS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "manifest"}
_CSS_TARGET = re.compile(r"""(?:url\(|@import )\s*["']?((?:https?:)?//[^"')\s;]+)""")


class _Page(HTMLParser):
    """What a page links to, what it loads, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the targets and anchors of an element."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and _LOADED_RELATIONS & set(given.get("rel", "").split()):
            self.loaded.append(given.get("href", ""))
        elif given.get(_LOADED.get(tag, "")):
            self.loaded.append(given[_LOADED[tag]])
        self.loaded += _CSS_TARGET.findall(given.get("style", ""))


def find_problems(site: Path) -> list[str]:
    """Return what is wrong with a site, one text per problem."""
    pages = {path.resolve(): _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    problems = []
    for path, page in pages.items():
        where = path.relative_to(site.resolve())
        for target in page.loaded:
            if _is_external(target):
                problems.append(f"{where} loads {target}")
            elif problem := _broken(site, path, target, pages):
                problems.append(f"{where} loads {target}: {problem}")
        problems += [
            f"{where} links to {target}: {problem}"
            for target in page.links
            if not _is_external(target) and (problem := _broken(site, path, target, pages))
        ]
    for path in sorted(site.rglob("*.css")):
        found = _CSS_TARGET.findall(path.read_text())
        problems += [f"{path.relative_to(site)} loads {target}" for target in found]
    return problems


def _is_external(target: str) -> bool:
    parts = urlsplit(target)
    return bool(parts.netloc) or parts.scheme in ("http", "https", "mailto")


def _broken(site: Path, path: Path, target: str, pages: dict[Path, _Page]) -> str | None:
    """Return why a relative target does not exist, or None if it does."""
    parts = urlsplit(target)
    if parts.scheme in ("data", "javascript"):
        return None
    # The page of missing pages is served for any address, so its links begin at the root.
    base = site if parts.path.startswith("/") else path.parent
    linked = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
    if linked.is_dir():
        linked /= "index.html"
    if not linked.is_file():
        return "there is no such file"
    anchor = unquote(parts.fragment)
    known = pages.get(linked)
    # Material's own scripts answer anchors that begin with two underscores.
    if anchor and known is not None and anchor not in known.anchors and anchor[:2] != "__":
        return "there is no such heading"
    return None


def main() -> int:
    """Check the site that is named on the command line; return the exit code."""
    found = find_problems(Path(sys.argv[1]))
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
