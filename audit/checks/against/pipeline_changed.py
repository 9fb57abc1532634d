"""`pipeline_changed`: stages added, removed, reordered, or with other parameters than the baseline's."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.baseline import code_of
from audit.checks.context import Context
from audit.checks.shared.stage_pairs import stage_pairs
from audit.plainjson import JsonObject
from audit.records import Stage


class PipelineChanged(Check):
    """Report the stage and the parameter that differ, with both values."""

    description = "The pipeline's stages, parameters and code are those of the baseline; every difference is reported."
    needs = ("baseline",)
    options = settings(code=Option(True, "Also report changed code: of stages, and of the pipeline's own files."))

    def run(self, context: Context) -> Iterable[Finding]:
        baseline = context.facts.baseline
        assert baseline is not None
        sql = f"SELECT stage, path, name, parameters FROM stages WHERE run_id = {context.run_literal} ORDER BY stage"
        for old, new in stage_pairs(baseline.stages, context.facts.stages):
            if old is not None and new is not None:
                yield from self._compare_stage(context, old, new, sql)
            elif old is not None:
                yield Finding(f"The stage {old.name} ({old.path}) was removed: only {baseline.name} has it.", sql=sql)
            elif new is not None:
                yield Finding(
                    f"The stage {new.name} ({new.path}) was added: {baseline.name} does not have it.",
                    stage=new.stage,
                    sql=sql,
                )
        if context.options["code"]:
            yield from self._files(context)

    def _files(self, context: Context) -> Iterable[Finding]:
        """Compare whole files, because they also hold constants and functions that stages call."""
        baseline = context.facts.baseline
        assert baseline is not None
        now = code_of(context.run)
        for module, before in sorted(baseline.code.items()):
            if now.get(module, before) != before:
                yield Finding(
                    f"The code of the module {module} has changed: its SHA-256 is {now[module][:12]}…, in the baseline "
                    f"{before[:12]}….",
                    sql=f"SELECT recipe FROM runs WHERE run_id = {context.run_literal}",
                )

    def _compare_stage(self, context: Context, old: Stage, new: Stage, sql: str) -> Iterable[Finding]:
        was, has = _parameters(old), _parameters(new)
        for key in sorted(was.keys() | has.keys()):
            if was.get(key) != has.get(key):
                yield Finding(
                    f"{new.name} ({new.path}): {key} is {_setting_text(has, key)}, in the baseline {_setting_text(was, key)}.",
                    stage=new.stage,
                    value=_number(has.get(key)),
                    threshold=_number(was.get(key)),
                    sql=sql,
                )
        code = (old.source_code_digest, new.source_code_digest)
        if context.options["code"] and was == has and code[0] != code[1]:
            yield Finding(f"The code of {new.name} ({new.path}) has changed.", stage=new.stage, sql=sql)


def _parameters(stage: Stage) -> JsonObject:
    try:
        found = json.loads(stage.parameters or "{}")
    except ValueError:
        return {"parameters": stage.parameters}
    return found if isinstance(found, dict) else {"parameters": found}


def _setting_text(parameters: JsonObject, key: str) -> str:
    text = json.dumps(parameters[key], ensure_ascii=False) if key in parameters else "not set"
    return text if len(text) <= 80 else text[:79] + "…"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
