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
from bench.campaign.children import Child
from bench.campaign.stores import BATCH, find_missing, visits
from bench.campaign.trial import Trial

GOAL = 500
COUNTS = "kills of a writer into a bucket"
_COMMITS = 4
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "campaign", "AWS_SECRET_ACCESS_KEY": "campaign", "AWS_DEFAULT_REGION": "us-east-1"}


def run(trial: Trial) -> None:
    import boto3

    ours, theirs = os.pipe()
    # In a process of its own: its threads must not live in the one that forks the writers.
    server = Child(lambda _: _serve(theirs))
    try:
        address = os.read(ours, 100).decode()
        os.environ.update({**_CREDENTIALS, "AWS_ENDPOINT_URL": address})
        boto3.client("s3").create_bucket(Bucket="campaign")
        lasts = _time_of("s3://campaign/whole")
        while trial.more():
            lasts = _try(trial, f"s3://campaign/{trial.tried}", lasts)
    finally:
        server.kill()
        server.end()


def _serve(out: int) -> None:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.write(out, f"http://{host}:{port}".encode())
    signal.pause()


def _try(trial: Trial, place: str, lasts: float) -> float:
    """Kill one writer; return how long one takes that nobody kills."""
    begun = time.monotonic()
    child = Child(lambda out: _write(place, out))
    if child.wait(trial.chance.uniform(0.0, 1.05 * lasts)):
        lasts = 0.7 * lasts + 0.3 * (time.monotonic() - begun)
    child.kill()
    code, words = child.end()
    if code != -signal.SIGKILL:
        trial.counts["ended before the kill, not counted"] += 1
        return lasts
    trial.tried += 1
    samples = int(words[-1]) if words else 0
    trial.counts["commits before the kill"] += samples // BATCH
    if words and (wrong := _find_loss(place, words[0], samples)) is not None:
        trial.fail(f"try {trial.tried}: {wrong}")
    return lasts


def _time_of(place: str) -> float:
    begun = time.monotonic()
    code, _ = Child(lambda out: _write(place, out)).end()
    assert code == 0, f"the writer ended with {code}"
    return time.monotonic() - begun


def _write(place: str, out: int) -> None:
    writer = RunWriter.create(place)
    os.write(out, f"{writer.run.run_id} 0 ".encode())
    for number in range(_COMMITS):
        writer.append(visits(writer.run.run_id, number * BATCH))
        writer.flush()
        os.write(out, f"{(number + 1) * BATCH} ".encode())
    writer.finish("complete")


def _find_loss(place: str, run_id: str, samples: int) -> str | None:
    try:
        with Reader(place) as reader:
            damage = verify(reader)
            return f"verify: {damage[0]}" if damage else find_missing(reader, run_id, samples)
    except AuditError as error:
        return f"{type(error).__name__}: {error}"
