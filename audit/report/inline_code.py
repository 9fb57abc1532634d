"""Text from outside as inline code of Markdown, which cannot end a table cell or begin HTML."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from audit.report.clean_text import clean


def code(value: Any) -> str:
    """Return any text as inline code that fits a table cell, whatever it contains."""
    text = clean(value).replace("|", "¦")
    ticks = "`" * (1 + max((len(run) for run in _runs_of_ticks(text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def _runs_of_ticks(text: str) -> Iterable[str]:
    return (run for run in "".join(c if c == "`" else " " for c in text).split() if run)
