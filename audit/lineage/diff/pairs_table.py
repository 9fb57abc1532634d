"""Everything known of each matched pair in one row: where it first diverges, what was predicted, and why it flipped.

The temporary table `compared` has that; all of a diff is counted from it. Stage digests are compared through DuckDB's
64-bit hash of them, which keeps millions of outputs small; that two different digests hash alike has a chance
of one in 10¹⁹ for each comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

from audit import values
from audit.lineage.diff.comparison_pieces import ComparisonPiece, PieceRows, split_pairs
from audit.lineage.diff.matching import Side
from audit.lineage.diff.stage_alignment import AlignmentStep
from audit.store.comparison import flip_query, pipeline_changed, scores
from audit.store.read.scratch import Scratch, TempTable
from audit.store.sql_literal import literal
from audit.store.views import GRADED_CONDITION

_JOINED_PAIRS = """
    SELECT p.*, x.* EXCLUDE (out_index_a, out_visit_a), y.* EXCLUDE (out_index_b, out_visit_b), nullif(x.a0, 0) AS loaded_a,
           nullif(y.b0, 0) AS loaded_b, m.* EXCLUDE (index, visit), n.* EXCLUDE (index, visit)
    FROM {pairs} p
    LEFT JOIN ({outputs_a}) x ON x.out_index_a = p.index_a AND x.out_visit_a = p.visit_a
    LEFT JOIN ({outputs_b}) y ON y.out_index_b = p.index_b AND y.out_visit_b = p.visit_b
    LEFT JOIN ({predictions_a}) m ON m.index = p.index_a AND m.visit = p.visit_a
    LEFT JOIN ({predictions_b}) n ON n.index = p.index_b AND n.visit = p.visit_b
"""

# A column that others are made of has a query of its own: DuckDB writes the expression of a column out wherever the same
# query names it, which makes planning take longer than the comparison of a small run.
_COMPARED_PAIRS = """
    WITH walked AS (
        SELECT *, {last_input} AS last_input, {last_target} AS last_target FROM ({judged})
    ), placed AS (
        SELECT *, coalesce({first_input}, {first_target}) AS parted, {uncompared} AS uncompared,
               lost_a AND lost_b AS lost_in_both FROM walked
    ), stepped AS (
        SELECT *, coalesce(parted, CASE WHEN lost_in_both AND error_a <> error_b
                                        THEN least(last_input + 1, {last_step}) END) AS step
        FROM placed
    ), lacking AS (
        SELECT *, CASE WHEN lost_in_both AND parted IS NULL THEN 'both' ELSE CASE step {missing} END END AS missing
        FROM stepped
    )
    SELECT source, renamed_to, how, index_a, visit_a, index_b, visit_b, label_a, label_b, label_name_a, label_name_b,
           failed_a, failed_b, source_changed, label_changed, predicted_a, predicted_b, name_a, name_b, correct_a,
           correct_b, right_a, right_b, flip, cause,
           CASE cause WHEN 'undetermined' THEN input_cause END AS input_cause, step, missing,
           CASE WHEN step IS NULL THEN uncompared END AS uncompared,
           CASE missing WHEN 'a' THEN error_a WHEN 'b' THEN error_b WHEN 'both' THEN hash(error_a, error_b) END AS error
    FROM lacking
"""

_SCORES_DIFFER = """
    SELECT bool_or(scores_a <> scores_b) FROM {pairs} p
    JOIN ({a}) m ON m.index = p.index_a AND m.visit = p.visit_a
    JOIN ({b}) n ON n.index = p.index_b AND n.visit = p.visit_b WHERE input_a = input_b
"""


def compare_pairs(scratch: Scratch, pairs: TempTable, a: Side, b: Side, steps: Sequence[AlignmentStep]) -> TempTable:
    """Return a temporary table `compared` with one row for each row of `pairs`."""
    pieces = split_pairs(scratch, pairs, a, b)
    differences = {
        "model": _to_sql(_model_changed(scratch, pieces, a, b)),
        "pipeline": _to_sql(scratch.row(f"SELECT {pipeline_changed(a.run_literal, b.run_literal)}")[0]),
    }
    main = [step for step in steps if not step.is_target]
    target = [step for step in steps if step.is_target]
    compared = TempTable("")
    for piece in pieces:
        joined = _JOINED_PAIRS.format(
            pairs=piece.pairs,
            outputs_a=_outputs(a, "a", b, piece.a),
            outputs_b=_outputs(b, "b", a, piece.b),
            predictions_a=_predictions("a", piece.a),
            predictions_b=_predictions("b", piece.b),
        )
        query = _COMPARED_PAIRS.format(
            judged=flip_query(joined, **differences),
            last_input=_last_equal(main),
            last_target=_last_equal(target),
            first_input=_first_other(main, "last_input"),
            first_target=_first_other(target, "last_target"),
            last_step=main[-1].number if main else "NULL",
            uncompared=_first_uncompared(main, "last_input"),
            missing=_missing_side(steps),
        )
        if compared:
            scratch.change(f"INSERT INTO {compared} {query}")
        else:
            compared = scratch.keep("compared", query)
    return compared


def _to_sql(value: bool | None) -> str:
    """Return a truth value as SQL."""
    return "NULL" if value is None else str(value).lower()


def _model_changed(scratch: Scratch, pieces: Sequence[ComparisonPiece], a: Side, b: Side) -> bool | None:
    """Return whether the runs used different models, as `comparison.model_changed` says it; None where that is not known."""
    if a.run.model_digest is not None and b.run.model_digest is not None:
        return a.run.model_digest != b.run.model_digest
    found = None
    for piece in pieces:
        scored = [_predictions(*side, scored=True) for side in (("a", piece.a), ("b", piece.b))]
        (changed,) = scratch.row(_SCORES_DIFFER.format(pairs=piece.pairs, a=scored[0], b=scored[1]))
        if changed:
            return True
        found = changed if found is None else found
    return found


def _outputs(side: Side, name: str, other: Side, rows: PieceRows) -> str:
    """Return one row for each visit, with a column for each stage: far smaller than a row for each stage."""
    wanted = {0, *(stage.stage for stage in side.stages)}
    # NULL: there is no output, because the sample failed before. 0: there is one, but no digest that both runs have.
    known = "digest IS NOT NULL"
    if side.run.digest_version != other.run.digest_version:
        known += f" AND {_same_value_condition(min(side.run.digest_version, other.run.digest_version))}"
    digest = f"CASE WHEN {known} THEN hash(digest) ELSE 0::UBIGINT END"
    columns = [f"any_value({digest}) FILTER (stage = {n}) AS {name}{n}" for n in sorted(wanted)]
    columns += [
        f"any_value(changed) FILTER (stage = {stage.stage}) AS {name}{stage.stage}_changed"
        for stage in side.stages
        if stage.is_target
    ]
    return (
        f"SELECT index AS out_index_{name}, visit AS out_visit_{name}, {', '.join(columns)} "
        f"FROM {rows.outputs} WHERE {rows.condition} GROUP BY index, visit"
    )


def _same_value_condition(older: int) -> str:
    """Return a condition for the values of which this version of the recipe and the later ones say the same."""
    other = ["mapping", "sequence", "other", *(kind.name for kind in values.KINDS.values() if kind.since > older)]
    classes = "mode IS NULL OR starts_with(mode, 'tv_tensors.')" if older >= 2 else "mode IS NULL"
    # The size of a picture with a transparency entry, which version 3 digests, is more than that of its pixels.
    pixels = "CASE mode WHEN '1' THEN (shape[2] + 7) // 8 * shape[1] WHEN 'I' THEN 4 * shape[1] * shape[2] "
    pixels += "WHEN 'RGB' THEN 3 * shape[1] * shape[2] ELSE shape[1] * shape[2] END"
    opaque = f"mode NOT IN ('1', 'L', 'I', 'P', 'RGB') OR bytes = {pixels}"
    return (
        f"kind NOT IN ({', '.join(map(literal, other))}) "
        f"AND (kind <> 'tensor' OR {classes}) AND (kind <> 'image' OR {opaque})"
    )


def _predictions(name: str, rows: PieceRows, *, scored: bool = False) -> str:
    facts = f"predicted AS predicted_{name}, predicted_name AS name_{name}, correct AS correct_{name}"
    return (
        f"SELECT index, visit, {f'{scores()} AS scores_{name}' if scored else facts}, true AS seen_{name}, "
        f"CASE WHEN input_digest IS NOT NULL THEN hash(input_digest) END AS input_{name} "
        f"FROM {rows.predictions} AS graded_predictions WHERE {GRADED_CONDITION} AND {rows.condition}"
    )


def _states(step: AlignmentStep) -> tuple[str, str]:
    """Return whether both sides are alike after a step, and whether they are not; neither, where they were not compared."""
    if step.at_a is not None and step.at_b is not None:
        a, b = f"a{step.at_a}", f"b{step.at_b}"
        return f"{a} = {b} AND {a} > 0", f"({a} <> {b} AND {a} > 0 AND {b} > 0) OR ({a} IS NULL) <> ({b} IS NULL)"
    # Only one side does anything to the label: what it was given is not recorded, but whether it changed it is.
    column = f"a{step.at_a}_changed" if step.at_a is not None else f"b{step.at_b}_changed"
    return f"NOT {column}", column


def _last_equal(steps: Sequence[AlignmentStep]) -> str:
    """Return the last step after which both sides are alike: a difference that a later stage undoes is none."""
    cases = [f"CASE WHEN {_states(step)[0]} THEN {step.number} END" for step in steps]
    return f"coalesce(greatest({', '.join(cases)}), -1)" if cases else "-1"


def _first_other(steps: Sequence[AlignmentStep], last: str) -> str:
    cases = [f"CASE WHEN {last} < {step.number} AND ({_states(step)[1]}) THEN {step.number} END" for step in steps]
    return f"least({', '.join(cases)})" if cases else "NULL"


def _first_uncompared(steps: Sequence[AlignmentStep], last: str) -> str:
    """Return the first step after the last equal one of which both sides have an output, but no digest to compare it by."""
    cases = [
        f"CASE WHEN {last} < {step.number} AND least(a{step.at_a}, b{step.at_b}) = 0 "
        f"AND a{step.at_a} IS NOT NULL AND b{step.at_b} IS NOT NULL THEN {step.number} END"
        for step in steps
        if step.at_a is not None and step.at_b is not None
    ]
    return f"least({', '.join(cases)})" if cases else "NULL"


def _missing_side(steps: Sequence[AlignmentStep]) -> str:
    """Return which side has no output of the step where the two part: its sample failed there."""
    cases = [
        f"WHEN {step.number} THEN CASE WHEN b{step.at_b} IS NULL THEN 'b' WHEN a{step.at_a} IS NULL THEN 'a' END"
        for step in steps
        if step.at_a is not None and step.at_b is not None
    ]
    return " ".join(cases) or "WHEN -1 THEN NULL"
