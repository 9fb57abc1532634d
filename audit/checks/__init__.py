"""Judge what was recorded: one small file per check, facts in, findings out.

    base        Check, Finding, Option: what a check is
    registry    every check by name; plugins through the entry points `audit.checks`
    config      audit.toml: which checks, thresholds, severities, allow-lists
    context     the input of a check: this run's rows as SQL, its options, the baseline
    runner      run the checks; an error in one does not stop the others
    report      the outcomes
    baseline    a run to compare with, as a small JSON file
    starter     a first audit.toml, from what a run shows
    shared/     what several checks use: small pictures, hashes, statistical tests
    integrity, values, data, model, against, yours   the checks, by group

Nothing here imports torch, except `reproducible`, which replays.
"""
