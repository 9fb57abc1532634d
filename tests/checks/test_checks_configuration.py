"""audit.toml: what it chooses, what it excuses, and how it says that it is wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pytest
from checks_contracts import outcome_of
from checks_world import World, grade, world

from audit.checks.config import load_configuration, parse_configuration
from audit.checks.registry import CHECKS
from audit.checks.runner import run_checks
from audit.checks.starter import starter
from audit.errors import UsageError
from audit.store.read.reader import Reader
from audit.tables import SampleRow

Plant = Callable[..., Path]


def judged(store: Path, text: str, **options: object) -> dict[str, str]:
    """Status of each check under a configuration."""
    report = run_checks(str(store), config=parse_configuration(tomllib.loads(text), None), **options)  # type: ignore[arg-type]
    return {outcome.check: outcome.status for outcome in report.outcomes}


def double(*indices: int) -> Callable[[World], None]:
    def edit(w: World) -> None:
        for index in indices:
            w.sample(index)["source_digest"] = w.sample(0)["source_digest"]

    return edit


@pytest.mark.slow
def test_select_skip_and_enabled(planted: Plant) -> None:
    store = planted()
    assert set(judged(store, 'select = ["finite", "blank"]')) == {"finite", "blank"}
    everything = set(judged(store, ""))
    assert everything == set(CHECKS) - {"sql"}
    assert set(judged(store, 'skip = ["finite"]')) == everything - {"finite"}
    assert set(judged(store, "[checks.finite]\nenabled = false")) == everything - {"finite"}
    assert set(judged(store, "", only=["finite"])) == {"finite"}
    assert set(judged(store, "", skip=["finite"])) == everything - {"finite"}


def test_severity_and_fail_on(planted: Plant) -> None:
    store = planted(double(41))
    configuration = parse_configuration({}, None)
    assert run_checks(str(store), config=configuration, only=["duplicates"]).passed
    assert not run_checks(str(store), config=configuration, only=["duplicates"], fail_on="warning").passed
    strict = parse_configuration({"checks": {"duplicates": {"severity": "error"}}}, None)
    assert not run_checks(str(store), config=strict, only=["duplicates"]).passed
    lenient = parse_configuration({"checks": {"duplicates": {"severity": "info"}}, "fail_on": "warning"}, None)
    assert run_checks(str(store), config=lenient, only=["duplicates"]).passed


def test_a_given_severity_outweighs_that_of_single_findings(planted: Plant) -> None:
    def edit(w: World) -> None:
        w.stage(1).update(random=True)

    assert outcome_of(planted(edit), "augmentation").severity == "warning"


@pytest.mark.slow
def test_splits_classes_and_stages_narrow_a_check(planted: Plant) -> None:
    def edit(w: World) -> None:
        for row in w.tables["samples"]:
            row["split"] = "train" if row["index"] < 30 else "test"
        for index in range(0, 60, 3):
            grade(w.prediction(index), 0, [0.0, 3.0, 0.0])
        w.output(9, 2)["nonfinite"] = 3

    store = planted(edit)
    assert outcome_of(store, "accuracy", {"min": 0.8}).status == "fail"
    assert outcome_of(store, "accuracy", {"min": 0.8, "classes": ["cat", "2"]}).status == "pass"
    assert outcome_of(store, "finite").status == "fail"
    assert outcome_of(store, "finite", {"splits": ["test"]}).status == "pass"
    assert outcome_of(store, "finite", {"stages": ["load", "Normalize"]}).status == "pass"
    assert outcome_of(store, "finite", {"stages": [2]}).status == "fail"
    with pytest.raises(UsageError, match="Did you mean Resize"):
        outcome_of(store, "finite", {"stages": ["Risize"]})


def test_what_is_allowed_is_not_reported_until_its_day_is_over(planted: Plant) -> None:
    store = planted(double(12, 24))
    digest = digest_of(store, 12)
    tomorrow, yesterday = (date.today() + timedelta(days=days) for days in (1, -2))
    allow = {"source": "bird/01*.png", "reason": "agreed", "expires": tomorrow}
    outcome = outcome_of(store, "duplicates", {"allow": [allow]})
    assert [finding.index for finding in outcome.findings] == [24]
    assert "allowed by the configuration: 1" in outcome.notes
    outcome = outcome_of(store, "duplicates", {"allow": [allow, {"source": "bird/024.png", "reason": "too"}]})
    assert outcome.status == "pass"
    assert outcome_of(store, "duplicates", {"allow": [{"digest": digest[:12], "reason": "known"}]}).status == "pass"
    late = parse_configuration({"checks": {"duplicates": {"allow": [allow | {"expires": yesterday}]}}}, None)
    report = run_checks(str(store), config=late, only=["duplicates"])
    assert report.outcome("duplicates").total == 2
    assert any("expired on" in note for note in report.notes)


def digest_of(store: Path, index: int) -> str:
    with Reader(str(store)) as reader:
        return str(reader.rows(SampleRow, reader.run().run_id, index=index)[0]["source_digest"])


def test_queries_of_ones_own(planted: Plant) -> None:
    store = planted()
    rows = '[[sql]]\nname = "large"\nquery = "SELECT index, source, source_bytes AS value FROM samples WHERE index = 7"'
    report = run_checks(str(store), config=parse_configuration(tomllib.loads(rows), None), only=["large"])
    finding = report.outcome("large").findings[0]
    assert (finding.index, finding.source, finding.value) == (7, "cat/007.png", 1007.0)
    assert judged(store, '[[sql]]\nquery = "FROM failures"', only=["sql-1"]) == {"sql-1": "pass"}
    for bound, status in (("max = 0.1", "fail"), ("max = 10", "pass"), ("min = 10", "fail")):
        text = f'[[sql]]\nname = "loss"\nquery = "SELECT avg(loss) FROM predictions"\n{bound}'
        assert judged(store, text, only=["sql"]) == {"loss": status}


@pytest.mark.slow
@pytest.mark.parametrize("query", ["SELEC 1", "FROM nowhere", "SELECT nothing FROM samples", "DELETE FROM samples"])
def test_a_broken_query_is_an_error_and_the_others_still_run(planted: Plant, query: str) -> None:
    found = judged(planted(), f'[[sql]]\nname = "mine"\nquery = "{query}"')
    assert found["mine"] == "error"
    assert found["finite"] == "pass"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[checks.finit]", "finite"),
        ("[checks.accuracy]\nmni = 0.9", "'min'"),
        ('[checks.accuracy]\nmin = "high"', "must be a number"),
        ("[checks.near_duplicates]\ndistance = 2.5", "must be a whole number"),
        ("[checks.near_duplicates]\ndistance = true", "must be a whole number"),
        ("[checks.accuracy]\nmin = nan", "not a number"),
        ('[checks.finite]\nseverity = "fatal"', "info, warning, error"),
        ('fail_on = "never"', "info, warning, error"),
        ("chekcs = 1", "checks"),
        ('select = ["cofverage"]', "coverage"),
        ("skip = 3", "must be a list"),
        ("[checks]\nfinite = 3", "must be a table"),
        ('[checks.duplicates]\nallow = [{ source = "x" }]', "no reason"),
        ('[checks.duplicates]\nallow = [{ reason = "x" }]', "a source or a digest"),
        ('[checks.duplicates]\nallow = [{ source = "x", reason = "y", expires = "soon" }]', "a date"),
        ('[checks.duplicates]\nallow = ["x"]', "holds 'x'"),
        ("[[sql]]\nname = 'x'", "no query"),
        ("[[sql]]\nname = 'finite'\nquery = 'FROM samples'", "which another check already has"),
        ("max_findings = 0", "at least 1"),
        ("[checks.sql]", "[[sql]]"),
        ("baseline = 5", "must be a text"),
    ],
)
def test_what_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_configuration(tomllib.loads(text), "audit.toml")
    assert says in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize("contract", ["3", "{ Normalize = 3 }", '{ Normalize = { colour = "red" } }'])
def test_a_wrong_contract_is_named(planted: Plant, contract: str) -> None:
    with pytest.raises(UsageError):
        judged(planted(), f"[checks.stage_contract]\ncontract = {contract}")


def test_where_the_configuration_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_configuration().path is None
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert load_configuration().path is None
    (tmp_path / "pyproject.toml").write_text('[tool.audit]\nfail_on = "warning"\n')
    assert load_configuration().fail_on == "warning"
    (tmp_path / "audit.toml").write_text('fail_on = "info"\n')
    assert load_configuration().fail_on == "info"
    (tmp_path / "audit.toml").write_text("fail_on = \n")
    with pytest.raises(UsageError, match="not valid TOML"):
        load_configuration()
    (tmp_path / "audit.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError):
        load_configuration()
    with pytest.raises(UsageError, match="cannot be read"):
        load_configuration("missing.toml")


@pytest.mark.slow
def test_the_first_configuration_is_valid_and_the_run_passes_it(planted: Plant) -> None:
    store = planted(lambda w: w.fail(3, "load", "OSError: truncated"))
    with Reader(str(store)) as reader:
        text = starter(reader)
    content = tomllib.loads(text)
    assert content["checks"]["stage_contract"]["contract"]["Normalize"]["shape"] == [3, 32, 42]
    assert run_checks(str(store), config=parse_configuration(content, None)).passed


def test_the_first_configuration_fails_no_other_pipeline_of_the_folder(tmp_path: Path) -> None:
    store = tmp_path / "lineage"
    first = world(name="first")
    first.run.recipe = {"kind": "run", "pipeline": "/home/me/eval.py:transform"}
    first.write(store)
    with Reader(str(store)) as reader:
        content = tomllib.loads(starter(reader, "first"))
    assert content["checks"]["accuracy"]["pipelines"] == ["eval.py"]
    other = world(name="other")
    other.run.recipe = {"kind": "run", "pipeline": "/home/me/train.py"}
    other.stage(3)["name"] = "Standardise"
    for row in other.tables["predictions"]:
        grade(row, row["label"], [1.0, 0.0, 0.0] if row["label"] == 1 else row["logits"])
    other.write(store)
    configuration = parse_configuration(content, None)
    report = run_checks(str(store), "other", config=configuration, only=["accuracy", "stage_contract"])
    assert {outcome.status for outcome in report.outcomes} == {"skip"}
    assert "eval.py" in report.outcome("accuracy").message
    # The same pipeline is held to it, also where a stage before has moved the others.
    worse = world(name="worse")
    worse.run.recipe = {"kind": "run", "pipeline": "/elsewhere/eval.py"}
    for row in worse.tables["predictions"]:
        grade(row, row["label"], [9.0, 0.0, 0.0])
    worse.stage(3)["name"] = "Standardise"
    worse.write(store)
    report = run_checks(str(store), "worse", config=configuration, only=["accuracy", "stage_contract"])
    assert {outcome.status for outcome in report.outcomes} == {"fail"}
    assert "does not have" in report.outcome("stage_contract").message


def test_a_contract_of_another_pipeline_is_noted(planted: Plant) -> None:
    store = planted()
    outcome = outcome_of(store, "stage_contract", {"contract": {"Tokenize": {"kind": "tokens"}}})
    assert outcome.status == "pass"
    assert any("Tokenize" in note for note in outcome.notes)
    with pytest.raises(UsageError, match="Did you mean Normalize"):
        outcome_of(store, "stage_contract", {"contract": {"Normalise": {"kind": "tensor"}}})


def test_findings_without_a_source_are_waived_by_message_or_stage(planted: Plant) -> None:
    def edit(w: World) -> None:
        for index in range(0, 60, 3):
            grade(w.prediction(index), 0, [0.0, 3.0, 0.0])
        w.output(9, 2)["nonfinite"] = 3

    store = planted(edit)
    allow = {"message": "The class bird is right in*", "reason": "no birds yet"}
    assert outcome_of(store, "per_class_accuracy").status == "fail"
    assert outcome_of(store, "per_class_accuracy", {"allow": [allow]}).status == "pass"
    other = {"message": "The class cat*", "reason": "another class"}
    assert outcome_of(store, "per_class_accuracy", {"allow": [other]}).status == "fail"
    assert outcome_of(store, "finite", {"allow": [{"stage": "ToTensor", "reason": "known"}]}).status == "pass"
    assert outcome_of(store, "finite", {"allow": [{"stage": "Resize", "reason": "known"}]}).status == "fail"
    both = {"stage": "ToTensor", "message": "nothing of the kind", "reason": "known"}
    assert outcome_of(store, "finite", {"allow": [both]}).status == "fail"


def test_a_plugin_that_raises_is_an_error_and_the_others_still_run(planted: Plant) -> None:
    from audit.checks.base import Check, Finding
    from audit.checks.context import Context

    class Broken(Check):
        """Raises."""

        name = "broken_plugin"
        description = "Raises."

        def run(self, context: Context) -> list[Finding]:
            raise RuntimeError("boom")

    CHECKS.add("broken_plugin", Broken)
    try:
        report = run_checks(str(planted()))
    finally:
        del CHECKS._members["broken_plugin"]
    assert report.outcome("broken_plugin").status == "error"
    assert "boom" in report.outcome("broken_plugin").message
    assert not report.passed
    assert len(report.with_status("pass")) > 15


@pytest.mark.parametrize("text", ["tool = 3", "[tool]\naudit = true"])
def test_a_section_that_is_no_table_is_not_ignored(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match="must be a table"):
        load_configuration()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[checks.duplicates]\nallow = [{ digest = "abc", reason = "short" }]', "digest 'abc'"),
        ('[checks.finite]\nclasses = ["brid"]', "class 'brid'.*"),
        ('[checks.finite]\nsplits = ["tset"]', "split 'tset'"),
        ('[checks.label_range]\nignore = ["x"]', "'x'"),
        ("[checks.stage_contract.contract.Resize]\nshape = [1.5]", r"\[1.5\]"),
    ],
)
def test_what_would_look_at_nothing_is_a_mistake(planted: Plant, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        judged(planted(), text)


def test_a_split_of_another_run_is_skipped_visibly(planted: Plant) -> None:
    assert judged(planted(), '[checks.finite]\nsplits = ["train"]', only=["finite"]) == {"finite": "skip"}


def test_what_is_allowed_hides_nothing(planted: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of many findings are excused: the rest is still looked at, or at least reported."""
    store = planted(double(*range(1, 30)))
    allow = '[checks.duplicates]\nseverity = "error"\nallow = [{ source = "*/00*.png", reason = "known" }]'
    monkeypatch.setattr("audit.checks.context.MOST_FETCHED", 5)
    assert judged(store, allow, only=["duplicates"]) == {"duplicates": "fail"}
    monkeypatch.setattr("audit.checks.runner.MOST_WITH_ALLOW_LIST", 5)
    assert judged(store, allow, only=["duplicates"]) == {"duplicates": "fail"}


def test_samples_without_files_are_excused_by_their_content(planted: Plant) -> None:
    def edit(w: World) -> None:
        for row in w.tables["samples"]:
            row.update(source=f"dataset://{row['index']}", root=None, source_digest=None)
        w.output(7, 0)["digest"] = w.output(1, 0)["digest"] = "0123456789abcdef" * 2

    store = planted(edit)
    text = '[checks.duplicates]\nallow = [{{ digest = "{}", reason = "known" }}]'
    assert judged(store, text.format("89abcdef"), only=["duplicates"]) == {"duplicates": "fail"}
    assert judged(store, text.format("0123456789"), only=["duplicates"]) == {"duplicates": "pass"}


def test_a_path_is_not_taken_for_a_number(planted: Plant) -> None:
    """With a nested stage, path 2 is stage 3: a contract for it must not bind stage 2."""

    def edit(w: World) -> None:
        for number, path in ((1, "1.1"), (2, "1"), (3, "2")):
            w.stage(number)["path"] = path

    store = planted(edit)
    with Reader(str(store)) as reader:
        written = starter(reader)
    assert 'contract."Normalize"' in written
    assert judged(store, written, only=["stage_contract"]) == {"stage_contract": "pass"}
    by_path = '[checks.stage_contract.contract."2"]\nkind = "tensor"\nmin = -3'
    assert judged(store, by_path, only=["stage_contract"]) == {"stage_contract": "pass"}
