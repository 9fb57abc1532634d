"""What a run keeps of the command that began it is for everybody who can read the store."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

import audit
from audit.provenance import describe_command, git_commit


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--lr", "0.1", "--password", "hunter2"], "train.py --lr 0.1 --password ***"),
        (["--api-key=hunter2", "--epochs", "3"], "train.py --api-key=*** --epochs 3"),
        (["--wandb-api_key", "hunter2"], "train.py --wandb-api_key ***"),
        (["db_password=hunter2", "trainer.max_epochs=3"], "train.py db_password=*** trainer.max_epochs=3"),
        (["--aws-secret-access-key", "hunter2"], "train.py --aws-secret-access-key ***"),
        (["--data", "https://me:hunter2@host/x"], "train.py --data https://***@host/x"),
        (["s3://bucket/hunter2-is-public"], "train.py s3://bucket/***-is-public"),
        (["--token", "--epochs", "3"], "train.py --token --epochs 3"),
        (["--tokenizer", "bert", "--author", "me", "--keys", "4"], "train.py --tokenizer bert --author me --keys 4"),
        (["--max-tokens", "512", "it's"], "train.py --max-tokens 512 'it'\"'\"'s'"),
    ],
)
def test_secrets_are_not_shown(arguments: list[str], shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "hunter2")
    assert describe_command("/home/me/train.py", arguments) == shown


def test_asking_for_the_commit_leaves_the_repository_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`git status` writes what it found about changed times into the repository's index, unless an option forbids it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    for command in (("init", "-q"), ("add", "train.py"), (*who, "commit", "-q", "-m", "first")):
        subprocess.run(["git", *command], check=True, capture_output=True)
    os.utime("train.py", (1, 1))
    index = tmp_path / ".git" / "index"
    before = index.read_bytes()
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert git_commit() == head
    assert index.read_bytes() == before
    (tmp_path / "train.py").write_text("changed\n")
    assert git_commit() == f"{head}+changes"
    with audit.record(tmp_path / "lineage") as recording:
        recording.log(indices=[0], logits=torch.ones(1, 2))
    with audit.open(tmp_path / "lineage") as store:
        assert store.run().git_commit == f"{head}+changes"
