"""A Ray cluster to work on: the one at an address, or one of our own on this machine for the length of a run.

One of our own listens on the loopback alone, with a token of its own, without dashboard and usage statistics, and keeps
its files in a temporary folder: nothing of it is left afterwards.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from audit.errors import AuditError, MissingExtra, UsageError

#: Starting takes 3 to 20 seconds; one start in thirty was seen to hang.
_PATIENCE = 180.0
#: One that runs answers within seconds, or never: it is another's, with another token, or about to end.
_ANSWER = 60.0
_REACH = 10.0
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    # Whatever asks something of Ray after its end would start another cluster, without a word.
    "RAY_ENABLE_AUTO_CONNECT": "0",
}


@dataclass(frozen=True, slots=True)
class ClusterCapacity:
    """What a cluster has: cores in all, and GPUs machine by machine, as a model cannot be on two."""

    cores: int
    gpus: tuple[float, ...] = ()

    def actors(self, asked: int | None, each: float) -> int:
        """Return how many models, with so many GPUs for each: as asked, else all that fit, or one for every four cores.

        Raises where the cluster is too small: Ray would wait without end.
        """
        if not self.cores:
            raise UsageError(
                "The cluster has no core for a task.", hint="Start its nodes with cores: ray start --num-cpus N …"
            )
        if not each:
            return asked or max(1, self.cores // 4)
        fitting = sum(int(gpus // each) for gpus in self.gpus)
        if not fitting or (asked or 1) > fitting:
            has = " + ".join(f"{gpus:g}" for gpus in self.gpus if gpus) or "none"
            less = (
                f"Give --actors {fitting}, or less with --gpus-per-actor" if fitting else "Leave --gpus-per-actor out"
            )
            raise UsageError(
                f"{asked or 1} × {each:g} GPUs do not fit the cluster, whose machines have {has}.",
                hint=f"{less}{'' if fitting else ', or give less: without it the model runs on ordinary cores'}.",
            )
        return asked or fitting


class Cluster:
    """A connection to a cluster."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop: Callable[[], None] | None = stop

    def capacity(self) -> ClusterCapacity:
        """Return what its machines have, as it is now."""
        import ray

        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return ClusterCapacity(
            sum(int(node.get("CPU", 0)) for node in alive), tuple(node.get("GPU", 0) for node in alive)
        )

    def close(self) -> None:
        """Let go of it; a cluster of our own ends here, with whatever its workers were doing."""
        if self._stop is not None:
            stop, self._stop = self._stop, None
            stop()


@contextlib.contextmanager
def connect_cluster(address: str | None) -> Iterator[Cluster]:
    """Connect to the cluster at `address` (`auto`: the one that runs here), else start one; a cluster that this process is
    connected to already is taken, and left as it was."""
    if address is None:
        prepare_own()
    else:
        prepare()
    try:
        import ray.data  # noqa: F401
    except ImportError as error:
        raise MissingExtra("ray[data]", "--engine ray", "ray") from error
    cluster = _attach(address) if address is not None else _start_cluster()
    try:
        yield cluster
    finally:
        cluster.close()


def prepare() -> None:
    """Set what Ray reads from the environment, where it is not set already."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)


def _attach(address: str) -> Cluster:
    import ray

    if ray.is_initialized():
        return Cluster(lambda: None)
    _check_reachable(address)
    undo = contextlib.ExitStack()
    undo.callback(_silence_worker_logs())
    undo.callback(ray.shutdown)
    try:
        _init(_ANSWER, address=address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        undo.close()
        raise UsageError(
            f"No Ray cluster could be reached at {address}: {_first_line(error)}",
            hint="Start one with: ray start --head. Leave --address out to work on this machine alone.",
        ) from error
    except BaseException:
        undo.close()
        raise
    return Cluster(undo.close)


def prepare_own() -> None:
    """Set what Ray reads from the environment when it is imported, for a cluster that is this process's own."""
    prepare()
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        if "RAY_AUTH_MODE" not in os.environ:
            # Ray would make a token, too, and put it into the home directory.
            os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


def _start_cluster() -> Cluster:
    import ray

    if ray.is_initialized():
        return Cluster(lambda: None)
    undo = contextlib.ExitStack()
    folder = tempfile.mkdtemp(prefix="audit-ray-", dir=_short_folder())
    undo.callback(shutil.rmtree, folder, ignore_errors=True)
    undo.callback(_silence_worker_logs())
    undo.callback(ray.shutdown)
    try:
        _init(_PATIENCE, address="local", include_dashboard=False, _temp_dir=folder)
    except (ConnectionError, RuntimeError, ValueError) as error:
        undo.close()
        raise AuditError(
            f"Ray could not be started here: {_first_line(error)}", hint="Use --engine local on one machine."
        ) from error
    except BaseException:
        undo.close()
        raise
    return Cluster(undo.close)


def _init(patience: float, **options: Any) -> None:
    """Call `ray.init`, quiet and with a limit. Ray replaces the handler of SIGTERM; it is put back."""
    import ray

    logging.getLogger("ray").setLevel(logging.CRITICAL)
    before = signal.getsignal(signal.SIGTERM)
    with _capture_stderr() as said:
        done = _finish_in_time(
            patience,
            lambda: ray.init(log_to_driver=False, configure_logging=False, logging_level=logging.CRITICAL, **options),
        )
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
    if not done:
        raise AuditError(
            f"Ray did not answer within {patience:.0f} seconds.{said()}", hint="Try again; or use --engine local."
        )


def _silence_worker_logs() -> Callable[[], None]:
    """Keep Ray from printing about dead workers on standard output, where a program reads; `log_to_driver` does not prevent it.

    Returns a function that undoes it.
    """
    from ray._private import worker

    before = getattr(worker, "_worker_logs_enabled", True)
    worker._worker_logs_enabled = False
    return lambda: setattr(worker, "_worker_logs_enabled", before)


def _finish_in_time(seconds: float, work: Callable[[], object]) -> bool:
    """Do some work in another thread, for so long at most; False when it has not ended by then."""
    failed: list[BaseException] = []
    ended = threading.Event()

    def attempt() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
        ended.set()
        # Ray's processes end with the thread that started them, so that it must not end.
        threading.Event().wait()

    threading.Thread(target=attempt, name="audit-ray-start", daemon=True).start()
    done = ended.wait(seconds)
    if failed:
        raise failed[0]
    return done


@contextlib.contextmanager
def _capture_stderr() -> Iterator[Callable[[], str]]:
    """Keep what Ray's native code says while it starts off the terminal; it can be asked for afterwards."""
    with tempfile.TemporaryFile() as kept:
        terminal = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield lambda: _tail(said)
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
            kept.seek(0)
            said = kept.read()


def _tail(said: bytes) -> str:
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return f" It last said: {lines[-1][:300]}" if lines else ""


def _check_reachable(address: str) -> None:
    """Ask the port first: Ray itself tries for minutes, and may end the process."""
    if address.startswith("ray://"):
        raise UsageError(
            f"{address} is an address of Ray Client, which Ray Data does not support.",
            hint="Run audit on a machine of the cluster, with --address auto or HOST:PORT.",
        )
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"No Ray cluster could be reached at {address}: {error}.",
            hint="See where it is with: ray status. Leave --address out to work on this machine alone.",
        ) from error


def _short_folder() -> str | None:
    """Return a folder with a short name for Ray: its sockets lie below that folder, and their names may be no longer than about 100 characters."""
    return None if len(tempfile.gettempdir()) <= 30 else "/tmp"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
