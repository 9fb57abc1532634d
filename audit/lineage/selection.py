"""Write chosen samples of a run as a file that `--dataset` takes, or as a folder of links. The user's files are not changed."""

from __future__ import annotations

import csv
import io
import json
import os
import tarfile
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from audit import plainjson
from audit.errors import NotFound, UsageError
from audit.lineage.queries.overview import last_epoch
from audit.output_file import FORMULA, explain_write_errors, replace_file
from audit.records import Run
from audit.store.read.condition import require_condition
from audit.store.read.items import LISTED_ITEMS, SampleIdentity, as_parameters, is_tagged, same_item
from audit.store.read.reader import Reader

Form = Literal["csv", "jsonl"]


class SelectedSample(TypedDict):
    """A sample that was chosen, as it is written to a file."""

    path: str | None
    label: int | None
    label_name: str | None
    index: int
    epoch: int
    visit: int
    predicted_name: str | None
    confidence: float | None
    correct: bool | None
    loss: float | None
    tags: str | None
    notes: str | None


class ChosenRow(SelectedSample):
    """A sample that was chosen, as the query returns it: `path` is not known yet."""

    root: str | None
    source: str | None
    source_raw: bytes | None


_COLUMNS = tuple(SelectedSample.__annotations__)


def choose_rows(
    reader: Reader,
    run: Run,
    where: str = "",
    *,
    items: Collection[SampleIdentity] | None = None,
    tag: str | None = None,
) -> list[SelectedSample]:
    """Return samples with their tags and notes: those of the last epoch that meet an SQL condition or have a tag, or these items.

    Items are returned as they were visited last.
    """
    if where:
        require_condition(reader, "lineage", where)
    conditions = [f"(\n{where or 'true'}\n)"]
    parameters: list[Any] = []
    chosen = "lineage"
    if items is not None:
        chosen += f" SEMI JOIN ({LISTED_ITEMS}) wanted ON {same_item('lineage', 'wanted')}"
        parameters += as_parameters(items)
    parameters.append(run.run_id)
    if items is None:
        conditions.append("epoch = ?")
        parameters.append(last_epoch(reader, run))
    if tag is not None:
        conditions.append(
            f"EXISTS (FROM tags t WHERE t.run_id = lineage.run_id AND t.tag = ? AND {is_tagged('t', 'lineage')})"
        )
        parameters.append(tag)
    newest = "QUALIFY epoch = max(epoch) OVER (PARTITION BY index, split, root)" if items is not None else ""
    rows = reader.sql(
        f"""
        WITH chosen AS (SELECT * FROM {chosen} WHERE run_id = ? AND {" AND ".join(conditions)} {newest})
        SELECT l.root, l.source, any_value(s.source_raw) AS source_raw, NULL AS path, l.label, l.label_name, l.index, l.epoch, l.visit,
            l.predicted_name, l.confidence, l.correct, l.loss, string_agg(t.tag, ' ' ORDER BY t.tag) AS tags,
            string_agg(t.note, ' ' ORDER BY t.tag) AS notes
        FROM chosen l LEFT JOIN samples s USING (run_id, epoch, index, visit)
            LEFT JOIN (FROM tags WHERE run_id = ?) t ON {is_tagged("t", "l")}
        GROUP BY ALL ORDER BY l.index, l.visit
        """,
        run=run.run_id,
        parameters=[*parameters, run.run_id],
    ).rows(ChosenRow)
    return [_with_path(row) for row in rows]


def _with_path(row: ChosenRow) -> SelectedSample:
    values: Mapping[str, Any] = row
    sample = cast("SelectedSample", {name: values[name] for name in _COLUMNS})
    # `source` is printable; the file may have a name that is not.
    source = os.fsdecode(row["source_raw"]) if row["source_raw"] else row["source"]
    root = row["root"]
    sample["path"] = os.path.join(root, source) if root and source is not None and "://" not in source else source
    return sample


def as_text(rows: Sequence[SelectedSample], form: Form, *, defused: bool = False) -> str:
    """Return the rows as CSV, which `--dataset` takes, or as one JSON object per line.

    With `defused`, a spreadsheet takes no cell of the CSV for a formula.
    """
    if form == "jsonl":
        return "".join(_as_json(row) + "\n" for row in rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, _COLUMNS)
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _defuse(name, cell) for name, cell in row.items()} if defused else row)
    return out.getvalue()


def _as_json(row: SelectedSample) -> str:
    if row["path"] is None or row["path"].isprintable():
        return plainjson.dumps(row)
    # A path that is not UTF-8 is written with escapes, which give the same bytes back.
    return json.dumps({**plainjson.as_plain_json(row), "path": row["path"]}, allow_nan=False)


def _defuse(name: str, cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(FORMULA):
        return cell
    # The same file by another spelling; other texts get the mark that a spreadsheet does not show.
    return f"./{cell}" if name == "path" else f"'{cell}"


def write_selection(rows: Sequence[SelectedSample], target: str) -> int:
    """Write FILE.csv, FILE.jsonl, or a folder with a link to each file, by class. Return how many samples it has."""
    if target.endswith((".csv", ".jsonl")):
        text = as_text(rows, "jsonl" if target.endswith(".jsonl") else "csv")
        with replace_file(target) as part:
            Path(part).write_bytes(text.encode("utf-8", "surrogateescape"))  # a file's name need not be UTF-8
        return len(rows)
    folder = Path(target)
    if folder.suffix and not folder.is_dir():
        raise UsageError(
            f"A selection cannot be written to {target}: its ending is {folder.suffix}.",
            hint="Name FILE.csv or FILE.jsonl, or a new folder without an ending.",
        )
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{target} exists and is not empty.", hint="Name a new folder, or a .csv or .jsonl file.")
    linked = 0
    links = _links(rows)
    with explain_write_errors(target, "Choose another folder with -o."):
        for name, path in links:
            link = folder / name
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(path)
                linked += 1
    return linked


def as_links(rows: Sequence[SelectedSample]) -> bytes:
    """Return a tar archive that unpacks to a folder with a link to each file, by class."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in _links(rows):
            link = tarfile.TarInfo(f"selection/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, path
            archive.addfile(link)
    return out.getvalue()


class UnlinkedWarning(UserWarning):
    """Warn that some of the selected samples have no file that a link could lead to."""


def _links(rows: Sequence[SelectedSample]) -> list[tuple[str, str]]:
    """Return the name of each link in its folder, and the file that it leads to. Raise if samples were selected and none
    has a file; warn if some have none."""
    found = [row for row in rows if _is_file(row["path"])]
    if len(found) < len(rows):
        gone = next(row for row in rows if not _is_file(row["path"]))
        why = f"sample {gone['index']} is {gone['path'] or 'not a file'}"
        if not found:
            raise NotFound(
                f"None of the {len(rows):,} selected samples has a file on this machine to link to: {why}.",
                hint="Write a list of them instead, to FILE.csv or FILE.jsonl.",
            )
        count = len(rows) - len(found)
        text = f"audit: {count:,} of {len(rows):,} selected samples have no file on this machine to link to: {why}."
        warnings.warn(text, UnlinkedWarning, stacklevel=4)
    return [_link(row, str(row["path"])) for row in found]


def _is_file(path: str | None) -> bool:
    return path is not None and "://" not in path and os.path.exists(path)


def _link(row: SelectedSample, path: str) -> tuple[str, str]:
    label = str(row["label_name"] if row["label_name"] is not None else "unlabelled")
    label = label.replace(os.sep, "_").replace("\0", "_")
    if label in ("", ".", ".."):
        label = "_"  # a class may have any name, and its folder must stay inside
    return f"{label}/{row['index']}-{os.path.basename(path)}", os.path.abspath(path)
