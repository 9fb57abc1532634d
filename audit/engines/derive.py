"""One visit's stage outputs, derived again from the source: the exact values, or an error that says which differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from audit import values
from audit.engines.assemble import assemble
from audit.engines.request import RunRequest
from audit.errors import AuditError, NotFound
from audit.recorders.dataset import CaptureLevel, RecordedDataset
from audit.recorders.randomness import Seeder
from audit.records import Run


def derive(run: Run, store: str, sample: Mapping[str, Any], digests: Mapping[int, str]) -> dict[int, Any]:
    """Every stage's output of one visit; each must have its recorded digest."""
    request = RunRequest.from_recipe(run.recipe, store)
    assembly = assemble(request, with_model=request.pipeline is None)
    recorded = RecordedDataset(
        assembly.dataset,
        assembly.pipeline,
        level=CaptureLevel("full"),
        seeder=Seeder(assembly.dataset, request.seed),
        want_inputs=False,
        epoch=sample["epoch"],
    )
    visit, _, _ = recorded.visit(sample["index"])
    found: dict[int, Any] = {}
    for stage, digest in digests.items():
        row = visit.rows.get(stage)
        if row is None or row.full is None:
            raise NotFound(f"Stage {stage} of sample {sample['index']} could not be derived again: {visit.error}.")
        if row.facts.digest != digest:
            raise AuditError(
                f"Stage {stage} of sample {sample['index']} no longer gives what was recorded "
                f"(digest {row.facts.digest}, recorded {digest}).",
                hint="The source, the pipeline or a library has changed since; audit trace shows the source's state.",
            )
        kind, encoded = row.full
        found[stage] = values.decode(kind, encoded)
    return found
