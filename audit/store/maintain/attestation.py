"""A run as an in-toto statement: what data, what code, what model and what result, for a release to carry.

The form is https://in-toto.io/Statement/v1. With a key it is wrapped in a DSSE envelope, which tools of that family verify.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Any

from audit.errors import UsageError
from audit.identity import PROJECT_ADDRESS
from audit.store.maintain.signatures import content_digest, key_id, private_key
from audit.store.maintain.verify import require_whole
from audit.store.manifest import Manifest
from audit.store.read.reader import Reader

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = f"{PROJECT_ADDRESS}/run/v1"
_PAYLOAD = "application/vnd.in-toto+json"


def attest(reader: Reader, reference: str | None, key: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return the statement of a run, or with a key the signed envelope that holds it; StoreDamaged as for `sign`."""
    manifest = reader.manifest(reference)
    if manifest.run.status == "running":
        raise UsageError(f"The run {manifest.run.run_id} has not ended.", hint="Wait for it, or resume it.")
    require_whole(reader, reference, "attested")
    statement = statement_of(manifest)
    return statement if key is None else _envelope(statement, key)


def statement_of(manifest: Manifest) -> dict[str, Any]:
    """Return what a manifest says, as a statement."""
    run = manifest.run
    code = [{"uri": file["file"], "digest": {"sha256": file["sha256"]}} for file in run.recipe.get("code") or ()]
    predicate = {
        "run": {
            "id": run.run_id,
            "commit": manifest.commit,
            "content": {"sha256": content_digest(manifest)},
            "startedAt": run.started_at,
            "finishedAt": run.finished_at,
            "status": run.status,
            "command": run.command,
            "seed": run.seed,
        },
        "data": {"name": run.dataset, "digest": {"auditDataset": run.dataset_digest}, "classes": run.classes},
        "code": {"pipeline": {"auditPipeline": run.pipeline_digest}, "files": code, "gitCommit": run.git_commit},
        "model": {"name": run.model, "architecture": run.arch, "digest": {"sha256": run.model_digest}},
        "results": {
            "samples": run.samples,
            "failed": run.failed,
            "graded": run.graded,
            "wrong": run.wrong,
            "accuracy": run.accuracy,
            "warnings": list(run.warnings),
        },
        "environment": {"host": run.host, "versions": run.versions},
        "parts": [{"name": part.file, "rows": part.rows, "digest": {"sha256": part.sha256}} for part in manifest.parts],
    }
    subject = {"name": f"runs/{run.run_id}", "digest": {"sha256": manifest.head}}
    return {"_type": STATEMENT, "subject": [subject], "predicateType": PREDICATE, "predicate": predicate}


def _envelope(statement: dict[str, Any], key: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the statement in a DSSE envelope."""
    private = private_key(key)
    body = json.dumps(statement, sort_keys=True, allow_nan=False).encode()
    authenticated = b"DSSEv1 %d %s %d %s" % (len(_PAYLOAD), _PAYLOAD.encode(), len(body), body)
    signature = {
        "keyid": key_id(private.public_key()),
        "sig": base64.b64encode(private.sign(authenticated)).decode(),
    }
    return {"payloadType": _PAYLOAD, "payload": base64.b64encode(body).decode(), "signatures": [signature]}
