"""What a notebook asks of a value: HTML. The one place below `report` that points at it."""

from __future__ import annotations


class NotebookView:
    """A value that a notebook shows as HTML, where `report` knows how to."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        # It lies far above, so it is imported only when it is asked for.
        from audit.report.html.notebook import as_html

        return as_html(self)
