"""What all requests share: the current store, confined queries, cached answers, small pictures."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from audit.lineage.queries import overview
from audit.lineage.queries.overview import Mistakes
from audit.records import Run
from audit.store.read.freshness import NewestReader
from audit.store.read.reader import Reader
from audit.store.sandbox.sandbox import Sandbox
from audit.web.answers import Answers
from audit.web.derivations import Derivations
from audit.web.neighbours import KnownNeighbours
from audit.web.picture_cache import Pictures
from audit.web.replays import Replays
from audit.web.warm_process import WarmProcess

T = TypeVar("T")

#: How long a page waits for an answer before it is sent without it.
PATIENCE = 0.08


class AppState:
    """The state of one server."""

    def __init__(
        self, location: str, *, replay: bool = True, trust: bool = False, write: bool = False, seconds: float = 20.0
    ) -> None:
        self._current = NewestReader(Reader, location)
        self.sandbox = Sandbox(location, seconds=seconds)
        self.answers = Answers()
        self.neighbours = KnownNeighbours()
        #: Whether pages may tag and rename.
        self.write = write
        self.pictures = Pictures()
        #: Runs pipelines; it starts at the first replay.
        self.process = WarmProcess()
        self.replays = Replays(self.store.location, self.process, trust=trust) if replay else None
        self.derivations = Derivations(self.store.location, self.process, trust=trust) if replay else None

    @property
    def store(self) -> Reader:
        """Return the store at its latest commit. Call it once per request: the next call may return a newer one."""
        return self._current.reader()

    def expire(self) -> None:
        """Look at the store again at the next request: something was changed here."""
        self._current.expire()

    def ask_about(
        self, store: Reader, run: Run, question: Hashable, answer: Callable[[], T], *, wait: float | None = PATIENCE
    ) -> T | None:
        """Return an answer about one commit of one run, or None if it is not ready."""
        return self.answers.ask_within(wait, (run.run_id, store.manifest(run.run_id).commit, question), answer)

    def epoch(self, store: Reader, run: Run) -> int:
        """Return the newest epoch of a run."""
        found = self.ask_about(store, run, "last epoch", lambda: overview.last_epoch(store, run), wait=None)
        return found or 0

    def mistakes(self, store: Reader, run: Run, epoch: int, *, wait: float | None = PATIENCE) -> Mistakes | None:
        """Return the wrong predictions of an epoch, once they are known; with `wait` None they are waited for."""
        if not run.graded or not run.wrong:
            return None
        return self.ask_about(store, run, ("mistakes", epoch), lambda: Mistakes(store, run, epoch), wait=wait)

    def close(self) -> None:
        """End every process that the server started."""
        self.sandbox.close()
        self.answers.close()
        self.process.close()
