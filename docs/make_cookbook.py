"""Writes docs/COOKBOOK.md: records a small store, asks every question of it, and prints the answers.

python docs/make_cookbook.py
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
FIXTURES = DOCS.parent / "fixtures"

TRAINING_LOOP = """\
import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

import audit

torch.manual_seed(0)
stages = [transforms.Grayscale(), transforms.RandomRotation(10), transforms.ToTensor()]
digits = datasets.ImageFolder("fixtures/digits/train", transforms.Compose(stages))
loader = DataLoader(digits, batch_size=64, shuffle=True)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

with audit.record("lineage", name="training") as run:
    loader = run.loader(loader, split="train")
    model = run.model(model, layers=["1"])
    for epoch in run.epochs(3):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""

INTRODUCTION = f"""# Ask in SQL: 30 questions with their answers

Ask a question with `audit sql "QUERY"`, in Python with `audit.open("lineage").sql("QUERY")`, or on the SQL page of `audit ui`.
The dialect is DuckDB's. [FORMAT.md](FORMAT.md) describes every table, view and column.

A query reads all runs of the store. `run_of('NAME')` returns the id of the run with that name; `audit sql --run NAME` limits a query to
one run. This page shows at most five rows of each answer.

The store of this page holds four runs. Record the first three in a clone of the repository:

```
audit run --dataset fixtures/digits/test --model fixtures/digits.pt --pipeline pipelines/digits.py --name before
sed 's/Resize(16, antialias=True)/Resize(16, interpolation=0)/' pipelines/digits.py > nearest.py
audit run --dataset fixtures/digits/test --model fixtures/digits.pt --pipeline nearest.py --name after
cp -r fixtures/digits/test broken && truncate -s 60 broken/2/1364.png
audit run --dataset broken --model fixtures/digits.pt --pipeline pipelines/digits.py --name broken
```

The fourth is a training loop:

```python
{TRAINING_LOOP}```

`make docs` records these runs, asks each question, and writes this page.
"""

# A title, or a question with its query.
QUESTIONS: list[str | tuple[str, str]] = [
    "What was recorded",
    (
        "Which runs are there, and how good are they?",
        "SELECT name, status, samples, failed, wrong, round(accuracy, 3) AS accuracy FROM runs ORDER BY sequence",
    ),
    (
        "Which stages does the pipeline of a run have?",
        "SELECT stage, name, random, parameters FROM stages WHERE run_id = run_of('training') ORDER BY stage",
    ),
    (
        "How many samples does each split and class have?",
        "SELECT split, label_name, count(*) AS samples FROM samples\nWHERE run_id = run_of('training') AND epoch = 0\nGROUP BY ALL ORDER BY samples, label_name",
    ),
    (
        "What could not be recorded?",
        "SELECT name, len(unrecorded) AS unrecorded, len(warnings) AS warnings FROM runs ORDER BY sequence",
    ),
    "Mistakes",
    (
        "Which mistakes had the highest confidence?",
        "SELECT index, source, label_name, predicted_name, round(confidence, 3) AS confidence\nFROM wrong_predictions WHERE run_id = run_of('before') ORDER BY confidence DESC",
    ),
    (
        "Which classes are confused most often?",
        "SELECT label_name, predicted_name, count FROM confusion\nWHERE run_id = run_of('after') AND label <> predicted ORDER BY count DESC, label, predicted",
    ),
    (
        "Which classes are worst?",
        "SELECT label_name, samples, round(accuracy, 3) AS accuracy, round(mean_loss, 3) AS loss\nFROM per_class WHERE run_id = run_of('after') ORDER BY accuracy, label",
    ),
    (
        "How often is the right class among the first two?",
        "SELECT round(avg((label_rank <= 2)::INT), 3) AS top2 FROM graded_predictions WHERE run_id = run_of('after')",
    ),
    (
        "Which right answers were close calls?",
        "SELECT index, source, predicted_name, round(margin, 3) AS margin FROM lineage\nWHERE run_id = run_of('before') AND correct ORDER BY margin",
    ),
    (
        "Does the confidence match the accuracy?",
        "SELECT least(floor(confidence * 5) / 5, 0.8) AS from_confidence, count(*) AS samples, round(avg(correct::INT), 2) AS accuracy\nFROM graded_predictions WHERE run_id = run_of('after') GROUP BY 1 ORDER BY 1 DESC",
    ),
    (
        "Which folder holds the most mistakes?",
        "SELECT regexp_extract(source, '^[^/]+') AS folder, count(*) AS mistakes FROM wrong_predictions\nWHERE run_id = run_of('after') GROUP BY 1 ORDER BY mistakes DESC, folder",
    ),
    "Files",
    (
        "What failed, where, and why?",
        "SELECT source, failed_stage, error FROM failures WHERE run_id = run_of('broken')",
    ),
    (
        "Which files have the same bytes?",
        "SELECT source_digest[:8] AS digest, count(DISTINCT source) AS files, min(source) AS one, max(source) AS another\nFROM samples WHERE run_id = run_of('training') GROUP BY 1 HAVING files > 1 ORDER BY digest",
    ),
    (
        "Is a test file also in the training data?",
        "SELECT test.source AS test_file, train.source AS training_file\nFROM samples test JOIN samples train USING (source_digest)\nWHERE test.run_id = run_of('before') AND train.run_id = run_of('training') AND train.epoch = 0",
    ),
    (
        "Which are the smallest files?",
        "SELECT source, source_bytes FROM samples WHERE run_id = run_of('before') ORDER BY source_bytes, source",
    ),
    "Stages",
    (
        "What did each stage do to one sample?",
        "SELECT stage, name, shape, round(mean, 3) AS mean, round(std, 3) AS std, changed FROM stage_outputs\nWHERE run_id = run_of('before') AND index = 108 ORDER BY stage",
    ),
    (
        "Which stage changed nothing in any sample?",
        "SELECT name, count(*) AS outputs FROM stage_outputs WHERE run_id = run_of('before')\nGROUP BY stage, name HAVING NOT bool_or(changed) AND stage > 0",
    ),
    (
        "What is the distribution of the model's inputs?",
        "SELECT round(avg(mean), 3) AS mean, round(sqrt(avg(std * std + mean * mean) - avg(mean) ** 2), 3) AS std, min(min) AS least, max(max) AS greatest\nFROM stage_outputs WHERE run_id = run_of('before') AND name = 'Normalize'",
    ),
    (
        "Which samples are darkest after loading?",
        "SELECT s.source, round(o.mean, 1) AS mean FROM stage_outputs o JOIN samples s USING (run_id, epoch, index, visit)\nWHERE run_id = run_of('before') AND o.stage = 0 ORDER BY o.mean, s.source",
    ),
    (
        "Which angle did the rotation draw for a sample in each epoch?",
        "SELECT epoch, round((params->>'angle')::DOUBLE, 2) AS angle FROM stage_outputs\nWHERE run_id = run_of('training') AND name = 'RandomRotation' AND index = 17 ORDER BY epoch",
    ),
    (
        "Do large rotations make the model wrong?",
        "SELECT abs((o.params->>'angle')::DOUBLE) > 7 AS large_angle, count(*) AS samples, round(avg(p.correct::INT), 3) AS accuracy\nFROM stage_outputs o JOIN graded_predictions p USING (run_id, epoch, index, visit)\nWHERE run_id = run_of('training') AND o.name = 'RandomRotation' AND epoch = 2 GROUP BY 1 ORDER BY 1",
    ),
    (
        "Does any output hold a NaN or an infinity?",
        "SELECT r.name AS run, o.name AS stage, count(*) AS outputs FROM stage_outputs o JOIN runs r USING (run_id)\nWHERE nonfinite > 0 GROUP BY ALL",
    ),
    "Two runs",
    (
        "Which predictions flipped between two runs, and why?",
        "SELECT source, predicted_a, predicted_b, flip, cause FROM flips('before', 'after') ORDER BY flip DESC, source",
    ),
    (
        "How many flips of each kind and cause are there?",
        "SELECT flip, cause, count(*) AS samples FROM flips('before', 'after') GROUP BY ALL ORDER BY samples DESC, flip",
    ),
    (
        "Which right answers lost the most confidence?",
        "SELECT a.source, round(a.confidence, 3) AS before, round(b.confidence, 3) AS after\nFROM lineage a JOIN lineage b USING (source)\nWHERE a.run_id = run_of('before') AND b.run_id = run_of('after') AND a.correct AND b.correct\nORDER BY a.confidence - b.confidence DESC",
    ),
    "Trainings",
    (
        "How did loss and accuracy change over the epochs?",
        "SELECT epoch, round(avg(loss), 3) AS loss, round(avg(correct::INT), 3) AS accuracy\nFROM graded_predictions WHERE run_id = run_of('training') GROUP BY epoch ORDER BY epoch",
    ),
    (
        "Which samples were learned and later forgotten?",
        "SELECT source, forgetting_events, first_learned_epoch, last_correct FROM forgetting\nWHERE run_id = run_of('training') AND forgetting_events > 0 ORDER BY forgetting_events DESC, source",
    ),
    (
        "Which labels may be wrong, judged by the whole training?",
        "SELECT source, label_name, round(aum, 2) AS aum FROM aum WHERE run_id = run_of('training') ORDER BY aum",
    ),
    (
        "Which step had the highest loss, and which samples were in it?",
        "WITH worst AS (\n  SELECT run_id, step FROM steps WHERE run_id = run_of('training') AND epoch > 0 ORDER BY loss DESC LIMIT 1)\nSELECT step, source, round(loss, 2) AS loss, label_name, predicted_name\nFROM lineage JOIN worst USING (run_id, step) ORDER BY lineage.loss DESC",
    ),
    (
        "How large are a layer's activations in each epoch?",
        "SELECT epoch, layer, round(avg(mean), 3) AS mean, round(avg(std), 3) AS std, round(avg(norm), 1) AS norm\nFROM activations WHERE run_id = run_of('training') AND direction = 'forward' AND port LIKE 'output%'\nGROUP BY ALL ORDER BY epoch",
    ),
]  # fmt: skip


def cookbook(folder: Path) -> str:
    """Record the runs in a folder, ask every question, and give the page."""
    store = record(folder)
    try:
        return "\n".join([INTRODUCTION, *_sections(store)])
    finally:
        store.close()


def record(folder: Path):  # type: ignore[no-untyped-def]
    """Record the four runs that the page is about."""
    import audit

    (folder / "fixtures").symlink_to(FIXTURES)
    text = (DOCS.parent / "pipelines" / "digits.py").read_text(encoding="utf-8")
    (folder / "digits.py").write_text(text)
    (folder / "nearest.py").write_text(text.replace("Resize(16, antialias=True)", "Resize(16, interpolation=0)"))
    shutil.copytree(FIXTURES / "digits" / "test", folder / "broken")
    with (folder / "broken" / "2" / "1364.png").open("r+b") as file:
        file.truncate(60)
    before = Path.cwd()
    os.chdir(folder)
    try:
        for name, dataset in (
            ("before", "fixtures/digits/test"),
            ("after", "fixtures/digits/test"),
            ("broken", "broken"),
        ):
            pipeline = "nearest.py" if name == "after" else "digits.py"
            audit.run(dataset, model="fixtures/digits.pt", pipeline=pipeline, name=name, store="lineage", workers=0)
        exec(compile(TRAINING_LOOP, "training.py", "exec"), {"__name__": "__main__"})
        return audit.open(folder / "lineage")
    finally:
        os.chdir(before)


def _sections(store):  # type: ignore[no-untyped-def]
    from audit.report.results import write_stream

    number = 0
    for entry in QUESTIONS:
        if isinstance(entry, str):
            yield f"## {entry}\n"
            continue
        number += 1
        question, query = entry
        out = io.StringIO()
        write_stream(store.sql(f"FROM ({query}) LIMIT 5"), out, "table")
        answer = "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())
        yield f"### {number}. {question}\n\n```sql\n{query}\n```\n\n```\n{answer}\n```\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        page = cookbook(Path(made))
    (DOCS / "COOKBOOK.md").write_text(page, encoding="utf-8")
    print(f"wrote {DOCS / 'COOKBOOK.md'}", file=sys.stderr)
