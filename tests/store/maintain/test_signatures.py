"""A signed run cannot be changed unnoticed, even if every digest is computed again."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from store_cases import record, rewrite

import audit
from audit.cli.main import cli
from audit.errors import NotFound, StoreDamaged, UsageError
from audit.store.maintain.signatures import make_keys, public_key


@pytest.fixture
def key(tmp_path: Path) -> Path:
    make_keys(tmp_path / "release.key")
    return tmp_path / "release.key"


def falsify(store: Path, run_id: str) -> None:
    """Change one prediction, and compute every digest again, as somebody would who knows the format."""
    folder = store / "runs" / run_id
    part = next((folder / "predictions").glob("*.parquet"))
    table = pq.read_table(part)
    changed = [0.123, *table["confidence"].to_pylist()[1:]]
    place = table.schema.get_field_index("confidence")
    table = table.set_column(place, table.schema.field(place), pa.array(changed, table.schema.field(place).type))
    pq.write_table(table, part, write_page_checksum=True)
    data = part.read_bytes()

    def adjust(content: dict[str, object]) -> None:
        for row in content["parts"]:  # type: ignore[attr-defined]
            if row["file"] == f"predictions/{part.name}":
                row.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    rewrite(folder / "run.json", adjust)


def test_a_falsified_prediction_is_found_by_the_signature_alone(tmp_path: Path, key: Path) -> None:
    run = record(tmp_path / "s", samples=6)
    with audit.open(tmp_path / "s") as store:
        signed = store.sign(run.run_id, key=key)
        assert store.verify(key=f"{key}.pub") == []
        assert signed.run_id == run.run_id
    falsify(tmp_path / "s", run.run_id)
    with audit.open(tmp_path / "s") as store:
        assert store.verify() == [], "all digests were computed again"
        assert [item.problem for item in store.verify(key=f"{key}.pub")] == [
            f"was changed after the key {signed.key} signed it at commit {signed.commit}"
        ]


def test_what_may_and_what_may_not_change(tmp_path: Path, key: Path) -> None:
    run = record(tmp_path / "s", samples=6)
    other = record(tmp_path / "s", samples=2)
    with audit.open(tmp_path / "s") as store:
        store.sign(run.run_id, key=key)
        store.tag(run.run_id, {"purpose": "release"})
        store.rename(run.run_id, "v1")
        assert store.verify(run.run_id, key=f"{key}.pub") == []
        assert "is not signed by the key" in store.verify(other.run_id, key=f"{key}.pub")[0].problem
    folder = tmp_path / "s" / "runs"
    (folder / other.run_id / "signatures").mkdir()
    name = next((folder / run.run_id / "signatures").iterdir())
    (folder / other.run_id / "signatures" / name.name).write_bytes(name.read_bytes())
    with audit.open(tmp_path / "s") as store:
        assert "the signature of another run" in store.verify(other.run_id, key=f"{key}.pub")[0].problem
    content = json.loads(name.read_bytes())
    name.write_text(json.dumps(content | {"commit": 0}))
    with audit.open(tmp_path / "s") as store:
        assert "did not make" in store.verify(run.run_id, key=f"{key}.pub")[0].problem


def test_several_signatures_and_keys_of_openssl(tmp_path: Path, key: Path) -> None:
    second = tmp_path / "second.key"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(second)], check=True)
    subprocess.run(
        ["openssl", "pkey", "-in", str(second), "-pubout", "-out", f"{second}.pub"], check=True, capture_output=True
    )
    run = record(tmp_path / "s", samples=2)
    with audit.open(tmp_path / "s") as store:
        store.sign(run.run_id, key=key)
        store.sign(run.run_id, key=second)
        assert store.verify(key=f"{key}.pub") == store.verify(key=f"{second}.pub") == []


def test_a_statement_says_what_the_run_says(tmp_path: Path, key: Path) -> None:
    run = record(tmp_path / "s", samples=6)
    with audit.open(tmp_path / "s") as store:
        statement = store.attest()
        envelope = store.attest(key=key)
        head = store.reader.manifest(run.run_id).head
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [{"name": f"runs/{run.run_id}", "digest": {"sha256": head}}]
    assert statement["predicate"]["results"]["samples"] == 6
    assert set(statement["predicate"]) >= {"data", "code", "model", "results", "environment", "parts"}
    body = base64.b64decode(envelope["payload"])
    assert json.loads(body) == statement
    kind = envelope["payloadType"]
    signed = f"DSSEv1 {len(kind)} {kind} {len(body)} ".encode() + body
    public_key(f"{key}.pub").verify(base64.b64decode(envelope["signatures"][0]["sig"]), signed)


def test_the_commands(tmp_path: Path) -> None:
    record(tmp_path / "s", samples=3)
    call = CliRunner().invoke
    key, place = str(tmp_path / "k"), ["--store", str(tmp_path / "s")]
    assert call(cli, ["store", "keygen", key]).exit_code == 0
    assert stat.S_IMODE(Path(key).stat().st_mode) == 0o600
    assert call(cli, ["store", "keygen", key]).exit_code == 2
    assert call(cli, ["store", "verify", "--key", f"{key}.pub", *place]).exit_code == 1
    assert call(cli, ["store", "sign", "--key", key, *place]).exit_code == 0
    assert call(cli, ["store", "verify", "--key", f"{key}.pub", *place]).exit_code == 0
    assert call(cli, ["store", "attest", "--output", str(tmp_path / "a.json"), *place]).exit_code == 0
    assert json.loads((tmp_path / "a.json").read_text())["predicateType"]
    assert call(cli, ["store", "sign", "--key", str(tmp_path / "none"), *place]).exit_code == 2


def test_what_is_no_key(tmp_path: Path) -> None:
    record(tmp_path / "s", samples=1)
    (tmp_path / "no.pem").write_text("hello")
    with audit.open(tmp_path / "s") as store:
        with pytest.raises(UsageError, match="not a private key"):
            store.sign(key=tmp_path / "no.pem")
        with pytest.raises(UsageError, match="not a public key"):
            store.verify(key=tmp_path / "no.pem")
        with pytest.raises(NotFound, match="no key"):
            store.sign(key=tmp_path / "missing")


def test_a_damaged_run_is_neither_signed_nor_attested(tmp_path: Path, key: Path) -> None:
    """What a statement says of the results was computed from the parts."""
    record(tmp_path / "s", samples=9)
    part = next((tmp_path / "s").glob("runs/*/predictions/*.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    with audit.open(tmp_path / "s") as store:
        with pytest.raises(StoreDamaged, match="was not signed"):
            store.sign(key=key)
        with pytest.raises(StoreDamaged, match="was not attested"):
            store.attest()
    assert not list((tmp_path / "s").glob("runs/*/signatures/*"))
