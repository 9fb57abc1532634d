"""Print a result on the terminal, as its `show` does."""

from __future__ import annotations

from audit.errors import UsageError
from audit.lineage.diff.diff import Diff
from audit.lineage.trace import Trace
from audit.report.diff.text import diff_text
from audit.report.trace_text import trace_tree


def print_result(value: object) -> None:
    """Print a trace as a tree, a diff as text."""
    from rich.console import Console

    if isinstance(value, Trace):
        Console().print(trace_tree(value))
    elif isinstance(value, Diff):
        Console(highlight=False).print(diff_text(value))
    else:
        raise UsageError(f"A {type(value).__name__} cannot be printed.")
