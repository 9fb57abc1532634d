"""Run a check in a process of its own, beside the others: one that imports torch, which takes as long as all others together.

The child is this same program, started without a shell. It gets what to do on its standard input, and sends one outcome
back; what the user's code prints goes to standard error. If the child fails for any reason, the check runs here.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from dataclasses import dataclass

from audit.checks.base import Skip
from audit.checks.config import Setting
from audit.checks.context import Context
from audit.checks.report import CheckOutcome
from audit.checks.shared_facts import RunFacts
from audit.errors import AuditError
from audit.store.bucket.location import is_remote


@dataclass(frozen=True, slots=True)
class _CheckTask:
    """What the child is to do."""

    path: list[str]
    location: str
    run_id: str
    setting: Setting
    max_findings: int
    trust: bool


class OwnProcess:
    """A check that runs in a child."""

    def __init__(self, facts: RunFacts, setting: Setting, max_findings: int) -> None:
        task = _CheckTask(sys.path, facts.reader.location, facts.run.run_id, setting, max_findings, facts.trust)
        command = [sys.executable, "-P", "-m", "audit.checks.own_process"]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(pickle.dumps(task))
            self._child.stdin.close()
        except OSError:
            self.stop()

    def outcome(self) -> CheckOutcome | None:
        """Wait for the child and return its outcome; None if it failed."""
        assert self._child.stdout is not None
        with self._child.stdout as answer:
            data = answer.read()
        if self._child.wait() != 0:
            return None
        found = pickle.loads(data)
        return found if isinstance(found, CheckOutcome) else None

    def stop(self) -> None:
        """End the child, if it still runs."""
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()


def start(facts: RunFacts, settings: list[Setting], max_findings: int) -> dict[str, OwnProcess]:
    """Start the checks that are worth a process: those that import torch, if there is other work meanwhile."""
    if "torch" in sys.modules or len(settings) < 2 or (os.cpu_count() or 1) < 2 or is_remote(facts.reader.location):
        return {}
    found = {}
    for setting in settings:
        if setting.check.imports_torch and _has_work(facts, setting):
            try:
                found[setting.name] = OwnProcess(facts, setting, max_findings)
            except OSError:
                # No process can be started: the check runs here.
                continue
    return found


def _has_work(facts: RunFacts, setting: Setting) -> bool:
    """Return whether the check has something to do; it says itself why not."""
    context = Context(facts, setting.options, setting.narrowing)
    try:
        if context.unmet_run() or context.unmet_split():
            return False
        setting.check().prepare(context)
    except (Skip, AuditError):
        return False
    return True


def main() -> None:
    """Do the task on standard input, and write its outcome to what was standard output."""
    from audit.checks.runner import judge
    from audit.store.read.reader import Reader

    # Ctrl-C reaches the whole group; the parent says what happened.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)
        task = pickle.load(sys.stdin.buffer)
        sys.path[:] = task.path
        with Reader(task.location) as reader:
            facts = RunFacts(reader, reader.run(task.run_id), trust=task.trust)
            answer.write(pickle.dumps(judge(facts, task.setting, task.max_findings)))


if __name__ == "__main__":
    from audit.checks import own_process

    # Pickled classes have the module's name, not `__main__`.
    own_process.main()
