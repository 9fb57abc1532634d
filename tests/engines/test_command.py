"""What a run keeps of the command that began it is for everybody who can read the store."""

from __future__ import annotations

import pytest

from audit.provenance import shown_command


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
    assert shown_command("/home/me/train.py", arguments) == shown
