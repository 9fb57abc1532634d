"""What mkdocs does besides: pages that lie outside of docs/ are part of the site, and links to them lead there."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
# Where each page of the repository lies in the site. Pages in docs/ keep their places.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "bench/README.md": "bench.md",
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside of docs/."""
    from mkdocs.structure.files import File

    for source, place in PAGES.items():
        files.append(File.generated(config, place, content=(REPOSITORY / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point the links of a page at the places that the pages have in the site."""
    place = page.file.src_uri
    source = next((source for source, target in PAGES.items() if target == place), f"docs/{place}")
    return re.sub(r"(\]\()([^)#:\s]+)", lambda link: link[1] + site_link(source, place, link[2]), markdown)


def site_link(source: str, place: str, target: str) -> str:
    """Give the address, as seen from `place` in the site, of the file that a page of the repository links to."""
    linked = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    linked = PAGES.get(linked, linked.removeprefix("docs/"))
    return posixpath.relpath(linked, posixpath.dirname(place) or ".")
