"""Run the checks of one run and store their outcomes.

A check that raises an exception has the status `error`, and the others still run. A check without anything to check is
skipped, with the reason. Only the run's table `findings` is written; if the store is read-only, the report has a note.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from threadpoolctl import threadpool_limits

from audit.checks import own_process
from audit.checks.base import SEVERITIES, Check, Finding, Severity, Skip, Status
from audit.checks.baseline import Baseline, open_baseline
from audit.checks.config import Configuration, Setting, load_configuration
from audit.checks.context import MOST_WITH_ALLOW_LIST, Context
from audit.checks.report import CheckOutcome, Report
from audit.checks.shared.renumbered_labels import why_not_judged
from audit.checks.shared_facts import RunFacts
from audit.errors import AuditError, MissingExtra, StoreError, UsageError
from audit.records import Progress
from audit.store.maintain.amend import append_findings
from audit.store.read.reader import Reader


def run_checks(
    store: Reader | str | os.PathLike[str],
    run: str | None = None,
    *,
    config: Configuration | str | os.PathLike[str] | None = None,
    baseline: str | os.PathLike[str] | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    checks: Sequence[str | os.PathLike[str]] = (),
    fail_on: Severity | None = None,
    record: bool = True,
    progress: Callable[[Progress], None] | None = None,
    trust: bool = False,
    probe: bool = False,
) -> Report:
    """Run the checks on one run, as `audit check` does. `only` and `skip` name checks; `record` stores the findings.

    `checks` names Python files with checks of your own. `probe` runs the model again on a few hundred samples. `trust`
    allows `reproducible` and `probe` to run code that this machine did not record, and the configuration to load Python files with checks.
    """
    files = [os.fspath(file) for file in checks]
    configuration = (
        config if isinstance(config, Configuration) else load_configuration(config, checks=files, trust=trust)
    )
    settings = configuration.choose_settings(only, skip)
    if isinstance(store, Reader):
        return _run(store, run, configuration, settings, baseline, fail_on, record, progress, trust, probe)
    with Reader(os.fspath(store)) as reader:
        return _run(reader, run, configuration, settings, baseline, fail_on, record, progress, trust, probe)


def _run(
    reader: Reader,
    reference: str | None,
    configuration: Configuration,
    settings: list[Setting],
    baseline: str | os.PathLike[str] | None,
    fail_on: Severity | None,
    record: bool,
    progress: Callable[[Progress], None] | None,
    trust: bool,
    probe: bool,
) -> Report:
    run = reader.run(reference)
    facts = RunFacts(
        reader, run, _baseline(reader, run.run_id, baseline or configuration.baseline), trust=trust, probe=probe
    )
    # Threads of OpenBLAS wait for each other in a loop: small products take four times the processor time on a busy machine.
    with threadpool_limits(1, user_api="blas"):
        outcomes = _judge_all(facts, settings, configuration.max_findings, progress)
    _mark_consequences(outcomes, settings)
    report = Report(
        run_id=run.run_id,
        run_name=run.name,
        samples=run.samples,
        outcomes=sorted(outcomes, key=lambda outcome: outcome.rank),
        fail_on=fail_on or configuration.fail_on,
        baseline=facts.baseline.name if facts.baseline else None,
        root=_answer_or_none(lambda: _folder(facts.root)),
        place=_place(run.recipe.get("pipeline"), configuration.path),
        notes=list(configuration.notes),
    )
    if run.status != "complete":
        report.notes.append(f"The run is {run.status}: only the samples recorded so far were checked.")
    if record:
        _record(reader, report)
    return report


def _judge_all(
    facts: RunFacts, settings: list[Setting], max_findings: int, progress: Callable[[Progress], None] | None
) -> list[CheckOutcome]:
    """Return the outcomes in the order of the settings; checks in separate processes are collected last."""
    outcomes: dict[str, CheckOutcome] = {}
    beside = own_process.start(facts, settings, max_findings)
    try:
        for setting in sorted(settings, key=lambda setting: setting.name in beside):
            if progress is not None:
                progress(Progress(len(outcomes), len(settings), doing=setting.name))
            outcome = beside[setting.name].outcome() if setting.name in beside else None
            outcomes[setting.name] = outcome or judge(facts, setting, max_findings)
    finally:
        for child in beside.values():
            child.stop()
    return [outcomes[setting.name] for setting in settings]


def _baseline(reader: Reader, run_id: str, wanted: str | os.PathLike[str] | None) -> Baseline | None:
    if wanted is None:
        return None
    found = open_baseline(reader, wanted)
    if found.run_id == run_id and found.reader is not None:
        raise UsageError(
            f"The baseline {os.fspath(wanted)} is the run that is checked.", hint="Pass another run with --baseline."
        )
    return found


def _place(pipeline: object, configuration: str | None) -> str | None:
    """Return the file that CI marks for a finding without a source file: the pipeline or the configuration.

    None if neither lies below the working directory.
    """
    here = os.getcwd()
    for path in (pipeline, configuration):
        if isinstance(path, str):
            file = path.rpartition(":")[0] if not os.path.exists(path) and ":" in path else path
            relative = os.path.relpath(os.path.abspath(file), here)
            if os.path.exists(file) and not relative.startswith(".."):
                return relative
    return None


def _record(reader: Reader, report: Report) -> None:
    try:
        append_findings(reader, report.run_id, list(report.rows()))
        report.is_stored = True
    except StoreError as error:
        report.notes.append(f"The findings could not be stored: {error.message}")


def _answer_or_none(ask: Callable[[], str | None]) -> str | None:
    """Return the answer; None if the store is damaged, because a check reports that already."""
    try:
        return ask()
    except AuditError:
        return None


def _folder(root: str | None) -> str | None:
    """Return the root if it is a folder; None for a bucket."""
    return root if root is not None and os.path.isdir(root) else None


@dataclass(slots=True)
class _Verdict:
    """The part of a `CheckOutcome` that its findings decide."""

    status: Status
    message: str
    findings: list[Finding]
    total: int
    severity: Severity


def judge(facts: RunFacts, setting: Setting, max_findings: int) -> CheckOutcome:
    """Run one check, and return its outcome with at most `max_findings` findings."""
    begun = time.perf_counter()
    context = Context(facts, setting.options, setting.narrowing)
    if setting.allow.entries:
        context.most = MOST_WITH_ALLOW_LIST
    verdict = _verdict(context, setting, max_findings)
    return CheckOutcome(
        check=setting.name,
        group=setting.check.group,
        description=setting.check.description,
        severity=verdict.severity,
        status=verdict.status,
        message=verdict.message,
        findings=verdict.findings,
        total=verdict.total,
        notes=context.notes,
        seconds=time.perf_counter() - begun,
    )


def _mark_consequences(outcomes: list[CheckOutcome], settings: list[Setting]) -> None:
    """Lower a check, or single findings, to `info` if the check that reports their cause failed, so that one cause is reported once.

    An error becomes a note only if its cause is an error too, so that the build still fails.
    """
    failed = {outcome.check: outcome.severity for outcome in outcomes if outcome.status == "fail"}
    for outcome, setting in zip(outcomes, settings, strict=True):
        if outcome.status != "fail" or setting.given_severity is not None:
            continue
        causes = [name for name in setting.check.follows if _explains(failed, name, outcome.check, outcome.severity)]
        if causes and SEVERITIES.index(outcome.severity):
            outcome.severity = "info"
            outcome.findings = [_without_severity(finding) for finding in outcome.findings]
            outcome.notes.append(f"probably a consequence of what {causes[0]} reports")
        elif any(finding.causes for finding in outcome.findings):
            _lower_findings(outcome, failed)


def _explains(failed: Mapping[str, Severity], cause: str, check: str, severity: Severity) -> bool:
    """Return whether another check failed that reports the cause of findings of this severity."""
    weight = SEVERITIES.index(failed.get(cause, "info"))
    return cause != check and weight >= max(1, SEVERITIES.index(severity))


def _lower_findings(outcome: CheckOutcome, failed: Mapping[str, Severity]) -> None:
    """Lower the findings whose cause another check reports, and the outcome to what is left."""
    made, named = [], dict[str, None]()
    for finding in outcome.findings:
        own = outcome.severity_of(finding)
        found = next((name for name in finding.causes if _explains(failed, name, outcome.check, own)), None)
        made.append(replace(finding, severity=own if found is None else "info"))
        if found is not None and own != "info":
            named[found] = None
    if not named:
        return
    made.sort(key=lambda finding: -SEVERITIES.index(finding.severity or "info"))
    outcome.findings = made
    outcome.severity = made[0].severity or "info"
    outcome.message = (
        made[0].message if outcome.total == 1 else f"{outcome.total:,} findings, the first: {made[0].message}"
    )
    outcome.notes.append(f"partly a consequence of what {', '.join(named)} reports")


def _verdict(context: Context, setting: Setting, max_findings: int) -> _Verdict:
    """Run the check and return its verdict; an exception is the verdict `skip` or `error`."""
    try:
        if reason := context.unmet_run() or context.unmet_split() or _unmet_need(context, setting.check):
            raise Skip(reason)
        found: list[Finding] = []
        try:
            for finding in setting.check().run(context):
                found.append(finding)  # noqa: PERF402 -- keeps what came before a Skip
        except Skip as skipped:
            # What it found before it had nothing more to check counts.
            if not found:
                raise
            context.note(str(skipped))
        return _weigh(context, setting, found, max_findings)
    except (Skip, MissingExtra) as skipped:
        return _Verdict("skip", str(skipped), [], 0, setting.severity)
    except UsageError:
        raise
    except AuditError as error:
        return _Verdict("error", error.message, [], 0, setting.severity)
    except Exception as error:
        return _Verdict("error", f"{type(error).__name__}: {error}", [], 0, setting.severity)


def _weigh(context: Context, setting: Setting, found: list[Finding], max_findings: int) -> _Verdict:
    """Return the verdict that the findings lead to: without those that the configuration allows, most severe first."""
    is_accepted = setting.allow.accepts(context)
    kept = [finding for finding in found if not is_accepted(finding)]
    if len(kept) < len(found):
        context.note(f"allowed by the configuration: {len(found) - len(kept)}")
    total = len(kept) + context.unlisted
    if setting.given_severity is not None:
        kept = [_without_severity(finding) for finding in kept]
    if not kept and context.unlisted:
        kept = [
            Finding(f"{context.unlisted:,} further findings were not compared with the allow-list: there are too many.")
        ]
    if not kept:
        return _Verdict("pass", "; ".join(context.notes), [], 0, setting.severity)
    weights = [finding.severity or setting.severity for finding in kept]
    worst = max(weights, key=SEVERITIES.index)
    kept.sort(key=lambda finding: -SEVERITIES.index(finding.severity or setting.severity))
    message = kept[0].message if total == 1 else f"{total:,} findings, the first: {kept[0].message}"
    return _Verdict("fail", message, kept[:max_findings], total, worst)


def _without_severity(finding: Finding) -> Finding:
    return replace(finding, severity=None)


def _unmet_need(context: Context, check: type[Check]) -> str | None:
    """Return why the check must be skipped, or None."""
    counts = context.facts.counts
    for need in check.needs:
        if need == "model" and not counts.get("predictions"):
            return "the run has no predictions; record it with --model"
        if need == "activations" and not counts.get("activations"):
            return "the run recorded no layers"
        if need == "baseline" and context.facts.baseline is None:
            return "there is no baseline; pass one with --baseline"
        if need == "labels" and not any(row["labels"] for row in context.facts.epochs):
            return "the run has no labels"
        if need == "labels" and counts.get("predictions") and context.facts.regression:
            return "the model has one output, and the labels are not classes"
        if need == "same_labels" and (reason := why_not_judged(context)):
            return reason
        if need == "pictures" and not any(r["stage"] == 0 and r["kind"] == "image" for r in context.profile):
            return "the samples are not pictures"
        if need == "files" and context.facts.root is None:
            return "the source files do not exist here, or cannot be read"
    return None
