"""Write a first, commented audit.toml whose limits come from a run."""

from __future__ import annotations

import glob
import json
import os
from typing import TypedDict

from audit.checks.config import FILE
from audit.checks.narrowing import dataset_name, pipeline_name
from audit.errors import UsageError
from audit.records import Run, Stage
from audit.store.read.reader import Reader

_HEAD = """\
# The requirements of `audit check`. Written by `audit check --init` from the run {run}; edit it freely.
# Every check and its options: audit check --list, and docs/CHECKS.md.

fail_on = "error"        # or "warning", which is stricter
max_findings = 100       # how many findings of one check are listed; the rest is counted
# baseline = "baseline.json"   # or a run; write the file with: audit baseline export -o baseline.json
# skip = ["image_quality"]
# select = ["coverage", "finite"]   # only these
"""
_TAIL = """\
# Known and accepted findings, each with a reason and a last day:
# [checks.duplicates]
# severity = "error"
# splits = ["train"]
# allow = [
#   {{ source = "some/folder/*.png", reason = "copies on purpose", expires = {year}-01-31 }},
#   {{ digest = "the first digits of a file's SHA-256", reason = "agreed" }},
# ]

# Your own rules: a query that must return no rows, or a value within bounds.
# [[sql]]
# name = "large-files"
# query = "SELECT index, source, source_bytes AS value FROM samples WHERE source_bytes > 10000000"
# message = "larger than 10 MB"
#
# [[sql]]
# name = "mean-loss"
# query = "SELECT avg(loss) FROM predictions"
# max = 0.5
"""


def starter(reader: Reader, reference: str | None = None) -> str:
    """Return the text of a first configuration that the run itself passes."""
    run = reader.run(reference)
    pieces = [_HEAD.format(run=run.run_id)]
    scope = _scope(run)
    if run.accuracy is not None:
        floor = max(0.0, int((run.accuracy - 0.02) * 100) / 100)
        # Without a scope the limit would fail every other run of the folder that is less accurate.
        pieces.append(
            f"[checks.accuracy]\n{scope}{'' if scope else '# '}min = {floor}             # the run has {run.accuracy:.4f}\n"
            "# max_drop = 0.02        # against the baseline\n"
        )
    if run.failed:
        pieces.append(f"[checks.unreadable]\n{scope}max_failed = {run.failed}         # as many failed in the run\n")
    if contract := _contract(reader, run.run_id):
        pieces.append(f"[checks.stage_contract]\n{scope}\n{contract}" if scope else contract)
    pieces.append(_TAIL.format(year=int(run.started_at[:4]) + 1))
    return "\n".join(pieces)


def write_starter(reader: Reader, reference: str | None = None, path: str = FILE) -> str:
    """Write the configuration; raise UsageError if the file exists."""
    text = starter(reader, reference)
    try:
        with open(path, "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise UsageError(
            f"{path} already exists.", hint="Remove it, or write to another file with --config FILE --init."
        ) from None
    except OSError as error:
        raise UsageError(f"{path} could not be written: {error.strerror}.") from error
    return path


def _scope(run: Run) -> str:
    """Return a line that limits a check to runs of the same pipeline, or else of the same dataset."""
    for key, name in (("pipelines", pipeline_name(run)), ("datasets", dataset_name(run))):
        if name and name.isprintable() and glob.escape(name) == name:
            return f"{key} = [{json.dumps(name, ensure_ascii=False)}]   # limits of other runs differ\n"
    return ""


class _OutputRange(TypedDict):
    kind: str
    dtype: str | None
    shape: list[int] | None
    low: float | None
    high: float | None


def _contract(reader: Reader, run_id: str) -> str | None:
    """Return a contract for the last stage's output; None if its shape varies."""
    stages = [stage for stage in reader.rows(Stage, run_id, order="stage") if not stage.is_target]
    if len(stages) < 2:
        return None
    last = stages[-1]
    # By its name, which survives a stage that is added before it; by its path where several stages have the name.
    named = [stage.name for stage in stages].count(last.name) == 1
    known = last.name if named else last.path
    if not named and [stage.path for stage in stages].count(last.path) > 1:
        return None  # several loaders: a path does not identify one of their pipelines
    rows = reader.sql(
        "SELECT kind, dtype, shape, min(min) AS low, max(max) AS high FROM stage_outputs WHERE stage = ? "
        "GROUP BY kind, dtype, shape",
        run=[run_id],
        parameters=[last.stage],
    ).rows(_OutputRange)
    if len(rows) != 1 or not rows[0]["shape"]:
        return None
    row = rows[0]
    lines = [
        f"[checks.stage_contract.contract.{json.dumps(known)}]   # {_comment_text(last.name)}, the model's input",
        f"kind = {json.dumps(row['kind'])}",
        f"shape = {json.dumps(row['shape'])}",
    ]
    if row["dtype"]:
        lines.insert(2, f"dtype = {json.dumps(row['dtype'])}")
    if row["low"] is not None and row["high"] is not None:
        span = max(row["high"] - row["low"], 1e-6)
        lines.append(f"min = {row['low'] - span:.4g}           # the run reaches from {row['low']:.4g}")
        lines.append(f"max = {row['high'] + span:.4g}           # to {row['high']:.4g}")
    return "\n".join(lines) + "\n"


def _comment_text(text: object) -> str:
    """Return a name that cannot end its comment."""
    return "".join(c if c.isprintable() else " " for c in os.fspath(str(text)))
