"""docs/CHECKS.md, made from what the checks declare: a test holds the file against this, so that neither can lie."""

from __future__ import annotations

from audit.checks.registry import all_checks

_HEAD = """\
# Checks

<!-- Made by `python -m audit.checks.documentation > docs/CHECKS.md`; a test holds it against the code. -->

A check judges what was recorded; it records nothing and needs no torch (but `reproducible`, which replays). Each says
`pass`, `fail`, `skip` (with the reason) or `error` (the check itself broke; the others still run).

```
audit check                          the newest run, the default checks
audit check RUN --only finite        one run, one check
audit check --list                   this page, in the terminal
audit check --init                   write audit.toml from what the run shows
audit sql "FROM findings"            what was found, with evidence that can be run
```

## Configuration

`audit.toml`, or `[tool.audit]` in `pyproject.toml`. A key or a check that is not known is an error, never ignored.

```toml
fail_on = "error"              # from which severity on `audit check` exits with 1: error, warning, info
baseline = "baseline.json"     # a file of `audit baseline export`, or a run of the store
max_findings = 100             # listed for each check; the rest is counted
skip = ["image_quality"]       # or select = [...]: these and no others

[checks.accuracy]
min = 0.95
severity = "error"             # every check: enabled, severity, splits, classes, stages, allow
classes = ["cat", "dog"]

[checks.duplicates]
splits = ["train"]
allow = [
  { source = "scans/*.png", reason = "both sides of one sheet", expires = 2027-06-30 },
  { digest = "9f86d081884c7d65", reason = "test card" },
]

[checks.stage_contract.contract.Normalize]
kind = "tensor"
dtype = "float32"
shape = [3, -1, -1]            # -1 is any length
min = -5
max = 5

[[sql]]                        # your own rule: a query that must return no rows ...
name = "large-files"
query = "SELECT index, source, source_bytes AS value FROM samples WHERE source_bytes > 10000000"

[[sql]]                        # ... or a value within bounds
name = "mean-loss"
query = "SELECT avg(loss) FROM predictions"
max = 0.5
```

In Python: `run_checks("lineage", only=["finite"])` of `audit.checks.runner`, or `store.check()`.

## What `coverage` asks of a loop of your own

`audit run` asks for every sample. A loop recorded with `run.loader` asks for every sample in each epoch whose pass went to its end, where the
sampler is torch's `SequentialSampler`, `RandomSampler` without replacement, or `DistributedSampler` (all ranks together): a sample that is then missing was lost, and is a finding.
What `drop_last` leaves out is said beside the outcome. So is, and no more, what no epoch drew with other samplers (subset, weighted, your own),
in loops that break off, or with `run.dataset`: leaving samples out is not a fault there. `every_sample = true` makes it one.

## Your own, in Python

```python
from audit.checks.base import Check, Finding, Option, settings


class Tiny(Check):
    name = "tiny"
    description = "Files of next to no bytes."
    severity = "warning"
    options = settings(bytes=Option(100, "Smaller files are told."))

    def run(self, context):
        limit = context.options["bytes"]
        query = f"SELECT index, source, source_bytes FROM {context.samples} WHERE source_bytes < {limit}"
        for row in context.offenders(query):
            yield Finding(
                f"{row['source']} has {row['source_bytes']} bytes.",
                index=row["index"],
                source=row["source"],
                sql=context.evidence("samples", row["index"]),
            )
```

```toml
[project.entry-points."audit.checks"]      # in your package's pyproject.toml
tiny = "my_package.checks:Tiny"
```
"""

_GROUPS = {
    "integrity": "Integrity: is the record whole and true?",
    "values": "Values: is each stage's output what it is meant to be?",
    "data": "Data: is the dataset sound?",
    "model": "Labels and model",
    "against": "Against a baseline",
    "yours": "Yours",
}


def checks_page() -> str:
    """The whole page."""
    lines = [_HEAD]
    group = None
    for check in all_checks():
        if not check.__module__.startswith("audit.checks."):
            continue  # a plugin that happens to be installed
        if check.group != group:
            group = check.group
            lines += [f"## {_GROUPS[group]}", ""]
        needs = f" Needs: {', '.join(check.needs)}." if check.needs else ""
        lines += [f"### `{check.name}`", "", f"{check.description} Severity `{check.severity}`.{needs}", ""]
        if check.options:
            lines += ["| option | default | |", "| --- | --- | --- |"]
            lines += [
                f"| `{key}` | {_shown(option.default)} | {option.help} |" for key, option in check.options.items()
            ]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _shown(default: object) -> str:
    return "none" if default is None else f"`{default!r}`"


if __name__ == "__main__":
    import sys

    sys.stdout.write(checks_page())
