"""A writer into a bucket (moto's server, on loopback) is killed at a random moment: what it had committed is there."""

from __future__ import annotations

import logging
import os
import signal
import time

from audit.errors import AuditError
from audit.store.maintain.verify import verify
from audit.store.read.reader import Reader
from audit.store.write.writer import RunWriter
from bench.campaign.stores import BATCH, read_indices, visits
from bench.campaign.trial import Trial

GOAL = 500
COUNTS = "kills of a writer into a bucket"
_COMMITS = 8
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "campaign", "AWS_SECRET_ACCESS_KEY": "campaign", "AWS_DEFAULT_REGION": "us-east-1"}


def run(trial: Trial) -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ.update({**_CREDENTIALS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"})
    boto3.client("s3").create_bucket(Bucket="campaign")
    try:
        while trial.more():
            place = f"s3://campaign/{trial.tried}"
            run_id, samples = _killed_writer(place, trial.chance.uniform(0.0, 3.0))
            trial.tried += 1
            trial.counts["commits before the kill"] += samples // BATCH
            if run_id is not None and (wrong := _lost(place, run_id, samples)) is not None:
                trial.fail(f"try {trial.tried}: {wrong}")
    finally:
        server.stop()


def _killed_writer(place: str, seconds: float) -> tuple[str | None, int]:
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            writer = RunWriter.create(place)
            os.write(theirs, f"{writer.run.run_id} 0 ".encode())
            for number in range(_COMMITS):
                writer.append(visits(writer.run.run_id, number * BATCH))
                writer.flush()
                os.write(theirs, f"{(number + 1) * BATCH} ".encode())
            writer.finish("complete")
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(theirs)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with open(ours, "rb") as told:
        words = told.read().decode().split()
    return (words[0], int(words[-1])) if words else (None, 0)


def _lost(place: str, run_id: str, samples: int) -> str | None:
    try:
        with Reader(place) as reader:
            if damage := verify(reader):
                return f"verify: {damage[0]}"
            indices = read_indices(reader, run_id, "samples") if samples else []
    except AuditError as error:
        return f"{type(error).__name__}: {error}"
    if len(indices) < samples or sorted(indices) != list(range(len(indices))):
        return f"{samples} samples were committed, {len(indices)} are there"
    return None
