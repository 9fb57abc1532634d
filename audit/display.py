"""How a result shows itself: as HTML in a notebook, as text on a terminal.

Whatever renders a result lies far above the result. So it is registered from the top, by `audit/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable

Html = Callable[[object], str | None]
Print = Callable[[object], None]

_KEPT_CHARACTERS = "\n\u200c\u200d"  # static/partial.js keeps the same

_html: Html | None = None
_print: Print | None = None


def register(*, html: Html, text: Print) -> None:
    """Set how results are rendered as HTML and printed as text."""
    global _html, _print
    _html, _print = html, text


def to_visible(value: object) -> str:
    """Return the text with control and direction characters shown as escapes, which a terminal would obey.

    Line breaks stay, and so do joiners: composed emoji and the words of several scripts need them.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT_CHARACTERS else c.encode("unicode_escape").decode() for c in text)


class NotebookView:
    """A value that a notebook shows as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        return _html(self) if _html is not None else None


class PrintableView(NotebookView):
    """A value that a terminal shows as text too."""

    __slots__ = ()

    def show(self) -> None:
        """Print it as text on the terminal: a trace as a tree."""
        if _print is not None:
            _print(self)
