"""Write the answer to a query as table, csv, json, jsonl, markdown or Parquet."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TextIO

from audit import plainjson
from audit.display import to_visible
from audit.errors import UsageError
from audit.output_file import replace_file
from audit.report.clean_text import clean

_SHOWN_ROWS = 100
_WIDEST_CELL = 40
#: Cells may be as wide as this where all columns then fit.
_WIDE_CELL = 120
#: The columns to show first if not all fit.
_FIRST = (
    *("index", "source", "label", "label_name", "predicted", "predicted_name", "confidence", "loss", "correct", "name"),
    *("status", "failed_stage", "error", "stage", "kind", "shape", "digest", "run_id"),
)


class QueryResult(Protocol):
    """The part of a relation that the writers use."""

    def batches(self, size: int = ...) -> Iterator[tuple[list[str], list[tuple[Any, ...]]]]: ...
    def arrow(self) -> Any: ...


def write_stream(answer: QueryResult, out: TextIO, form: str) -> int:
    """Write the rows and return their number."""
    return WRITERS[form](answer, out)


def write_file(answer: QueryResult, path: str, form: str) -> int:
    """Write the rows to a file whose ending decides the format. The file appears only when it is complete."""
    ending = os.path.splitext(path)[1].lower().lstrip(".")
    chosen = {"csv": "csv", "json": "json", "jsonl": "jsonl", "ndjson": "jsonl", "md": "markdown", "txt": "table"}
    known = {"parquet", *chosen}
    if ending not in known and form == "table":
        raise UsageError(
            f"The ending of {path} does not name a known format.",
            hint=f"Use one of the endings {', '.join(f'.{name}' for name in sorted(known))}, or pass --format.",
        )
    with replace_file(path) as part:
        if ending == "parquet":
            from audit.store.tabular import write_table

            table = answer.arrow()
            write_table(table.rename_columns(_make_distinct(table.column_names)), part)
            return int(table.num_rows)
        with open(part, "w", encoding="utf-8", newline="") as out:
            return write_stream(answer, out, chosen.get(ending, form))


def _csv(answer: QueryResult, out: TextIO) -> int:
    writer = csv.writer(out)
    count = 0
    # A file and a pipe get the text as it is, a terminal nothing that it would obey.
    shown: Callable[[str], str] = to_visible if out.isatty() else str
    for position, (names, rows) in enumerate(answer.batches()):
        if position == 0:
            writer.writerow(names)
        writer.writerows([shown(_text(cell)) for cell in row] for row in rows)
        count += len(rows)
    return count


def _json(answer: QueryResult, out: TextIO) -> int:
    count = 0
    out.write("[")
    for names, rows in answer.batches():
        keys = _make_distinct(names)
        for row in rows:
            out.write((",\n " if count else "\n ") + plainjson.dumps(dict(zip(keys, row, strict=True))))
            count += 1
    out.write("\n]\n" if count else "]\n")
    return count


def _jsonl(answer: QueryResult, out: TextIO) -> int:
    count = 0
    for names, rows in answer.batches():
        keys = _make_distinct(names)
        for row in rows:
            out.write(plainjson.dumps(dict(zip(keys, row, strict=True))) + "\n")
            count += 1
    return count


def _make_distinct(names: Sequence[str]) -> list[str]:
    """Return distinct names, because a second column of the same name would replace the first in JSON."""
    found: list[str] = []
    for name in names:
        number, chosen = 0, name
        while chosen in found:
            number += 1
            chosen = f"{name}_{number}"
        found.append(chosen)
    return found


def _markdown(answer: QueryResult, out: TextIO) -> int:
    count = 0
    for position, (names, rows) in enumerate(answer.batches()):
        if position == 0:
            out.write("| " + " | ".join(_cell(name) for name in names) + " |\n")
            out.write("|" + " --- |" * len(names) + "\n")
        for row in rows:
            out.write("| " + " | ".join(_cell(_text(cell)) for cell in row) + " |\n")
        count += len(rows)
    return count


#: What Markdown would take for a border, markup, a link or HTML. A backslash too, or it would undo the next escape.
_MARKDOWN = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", **{c: f"\\{c}" for c in "\\|`[]*"}})


def _cell(text: str) -> str:
    return clean(text).translate(_MARKDOWN)


def _table(answer: QueryResult, out: TextIO) -> int:
    """Write as many rows and columns as fit, and a line that says what is not shown."""
    names: list[str] = []
    kept: list[tuple[Any, ...]] = []
    count = 0
    for names, rows in answer.batches():  # noqa: B007 - the names are needed afterwards
        kept.extend(rows[: max(0, _SHOWN_ROWS - len(kept))])
        count += len(rows)
    names = [clean(name) for name in names]
    width = shutil.get_terminal_size((160, 24)).columns if out.isatty() else 160
    shown = [[_shorten(cell, _WIDE_CELL) for cell in row] for row in kept]
    chosen = _fit_columns(names, shown, width)
    if len(chosen) < len(names) or max((sum(map(len, row)) for row in shown), default=0) > width:
        shown = [[_shorten(cell) for cell in row] for row in kept]
        chosen = _fit_columns(names, shown, width)
    widths = {c: max([len(names[c]), *(len(row[c]) for row in shown)]) for c in chosen}
    numeric = {c for c in chosen if shown and all(_is_number(row[c]) for row in shown)}
    for line in ([names[c] for c in range(len(names))], ["─" * widths.get(c, 0) for c in range(len(names))], *shown):
        cells = [line[c].rjust(widths[c]) if c in numeric else line[c].ljust(widths[c]) for c in chosen]
        out.write("  ".join(cells).rstrip() + "\n")
    notes = [f"{count:,} row{'' if count == 1 else 's'}"]
    if count > len(shown):
        notes.append(f"{len(shown)} shown")
    if len(chosen) < len(names):
        notes.append(f"{len(chosen)} of {len(names)} columns shown: --format json shows all")
    out.write(f"({', '.join(notes)})\n")
    return count


def _fit_columns(names: list[str], rows: list[list[str]], width: int) -> list[int]:
    """Return the columns that fit: those with values first, and the important ones among them."""
    empty = {c for c in range(len(names)) if rows and all(row[c] == "" for row in rows)}
    order = sorted(
        range(len(names)),
        key=lambda c: (c in empty, _FIRST.index(names[c]) if names[c] in _FIRST else len(_FIRST), c),
    )
    chosen: list[int] = []
    used = 0
    for column in order:
        needed = max([len(names[column]), *(len(row[column]) for row in rows)]) + 2
        if chosen and used + needed > width:
            break
        chosen.append(column)
        used += needed
    return sorted(chosen)


def _is_number(text: str) -> bool:
    return text == "" or text.replace(",", "").replace(".", "").lstrip("-").replace("e-", "").isdigit()


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else _scalar(cell)


def _scalar(cell: Any) -> str:
    if isinstance(cell, (list, dict, tuple, bytes)):
        return plainjson.dumps(cell)
    return repr(cell) if isinstance(cell, float) else str(plainjson.as_plain_json(cell))


def _shorten(cell: Any, most: int = _WIDEST_CELL) -> str:
    if isinstance(cell, bool) or cell is None:
        return "" if cell is None else str(cell).lower()
    if isinstance(cell, float):
        return f"{cell:.4g}"
    if isinstance(cell, Sequence) and not isinstance(cell, (str, bytes)):
        inner = ", ".join(_shorten(item) for item in cell[:4])
        return f"[{inner}{', …' if len(cell) > 4 else ''}]"[:_WIDEST_CELL]
    text = clean(_text(cell))
    return text if len(text) <= most else text[: most - 1] + "…"


WRITERS: dict[str, Callable[[QueryResult, TextIO], int]] = {
    "table": _table,
    "csv": _csv,
    "json": _json,
    "jsonl": _jsonl,
    "markdown": _markdown,
}
