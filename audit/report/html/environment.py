"""Templates to HTML: the one environment in which names, labels and errors are escaped.

The web app, the report file and notebooks all render here. It loads jinja2 when it is first asked for, never marks
text from a store as safe, and an undefined name in a template is an error rather than nothing.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audit.display import to_visible
from audit.errors import MissingExtra
from audit.report.html import charts

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = Path(__file__).resolve().parent
FILTERS = {
    "number": charts.number,
    "percent": charts.percent,
    "duration": charts.duration,
    "size": charts.size,
    "shape": charts.shape,
    "bar": charts.bar,
    "histogram": charts.histogram,
    "reliability": charts.reliability,
    "losses": charts.losses,
    "sparkline": charts.sparkline,
    "printable": to_visible,
}


@lru_cache(maxsize=4)
def environment(*folders: Path) -> Environment:
    """Return the environment that renders templates of these folders and of this one."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise MissingExtra("jinja2", "Making HTML") from None
    made = Environment(
        loader=FileSystemLoader([*folders, HERE / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS)
    return made


def render(template: str, *folders: Path, **data: Any) -> str:
    """Return one template with its data."""
    return environment(*folders).get_template(template).render(**data)


#: Style sheets and scripts that pages and reports share.
SHARED_ASSETS = ("audit.css", "viewer.css", "viewer.js")


def read_shared(name: str) -> str:
    """Return one of the files that pages and reports share."""
    return (HERE / "templates" / name).read_text(encoding="utf-8")


def style() -> str:
    """Return the style sheet that pages, reports and notebooks share."""
    return read_shared("audit.css")
