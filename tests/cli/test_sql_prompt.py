"""The prompt of `audit sql` on a real terminal: answers, completion, history, and errors that do not end it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_cases import record

pytestmark = pytest.mark.workers

ROOT = Path(__file__).parents[2]
_STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """One `audit sql` behind a pseudo-terminal."""

    def __init__(self, place: Path, state: Path) -> None:
        ours, theirs = pty.openpty()
        environment = {
            **os.environ,
            "XDG_STATE_HOME": str(state),
            "TERM": "xterm",
            "COLUMNS": "160",
            "INPUTRC": "/dev/null",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "audit", "sql", "--store", str(place)],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self._terminal = ours
        self._heard = ""

    def until(self, text: str, seconds: float = 60.0) -> str:
        """What it says up to and with `text`; what comes after it is kept for the next time."""
        if not self.says(text, seconds):
            pytest.fail(f"{text!r} never came; it said {self._heard!r}")
        said, _, self._heard = self._heard.partition(text)
        return said + text

    def says(self, text: str, seconds: float) -> bool:
        """Whether it says this within so many seconds."""
        end = time.monotonic() + seconds
        while text not in self._heard:
            if not select.select([self._terminal], [], [], max(0.0, end - time.monotonic()))[0]:
                return False
            try:
                data = os.read(self._terminal, 65536)
            except OSError:
                data = b""
            if not data:
                pytest.fail(f"it ended before {text!r}; it said {self._heard!r}")
            self._heard = _STYLES.sub("", self._heard + data.decode("utf-8", "replace")).replace("\r\n", "\n")
        return True

    def interrupt(self) -> None:
        """Press Ctrl-C until the prompt comes. Python's readline misses a signal that arrives while it handles a key."""
        for _ in range(20):
            os.kill(self.process.pid, signal.SIGINT)
            if self.says("audit> ", 3.0):
                break
        self.until("audit> ")

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def ask(self, line: str) -> str:
        """One line, and all that is said until the next prompt."""
        self.type(line + "\n")
        self.until("\n")
        return self.until("audit> ")

    def leave(self) -> int:
        self.type("\x04")
        return self.process.wait(timeout=30)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._terminal)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("prompt") / "s"
    record(place, samples=10)
    return place


@pytest.fixture
def terminal(place: Path, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(place, tmp_path)
    try:
        terminal.until("audit> ")
        yield terminal
    finally:
        terminal.close()


def test_a_session(terminal: Terminal, tmp_path: Path) -> None:
    assert "42" in terminal.ask("SELECT 40 + 2 AS answer;")
    assert "nowhere" in terminal.ask("FROM nowhere;")
    assert "read-only" in terminal.ask("DROP TABLE runs;")
    assert "10" in terminal.ask("SELECT count(*) FROM lineage;")
    terminal.type("SELECT count(*)\n")
    terminal.until("... ")
    assert "2" in terminal.ask("FROM wrong_predictions;")
    assert "wrong_predictions" in terminal.ask(".tables")
    assert "input_digest" in terminal.ask(".columns predictions")
    assert ".exit" in terminal.ask(".nonsense")
    assert "(1 row)" in terminal.ask("SELECT '\\x1b[2J' AS x;")
    assert terminal.leave() == 0
    history = (tmp_path / "audit" / "sql_history").read_text()
    assert "SELECT 40 + 2 AS answer;" in history
    assert (tmp_path / "audit" / "sql_history").stat().st_mode & 0o077 == 0


def test_tab_completes_tables_columns_and_keywords(terminal: Terminal) -> None:
    terminal.type("FROM wrong_p\t")
    assert "wrong_predictions" in terminal.until("wrong_predictions")
    terminal.type(" WHERE predicted_n\t")
    terminal.until("predicted_name")
    terminal.type(" IS NULL;\n")
    assert "(2 rows" in terminal.until("audit> ")
    terminal.type("desc\t")
    terminal.until("DESCRIBE")


def test_history_is_there_the_next_time(place: Path, tmp_path: Path) -> None:
    first = Terminal(place, tmp_path)
    try:
        first.until("audit> ")
        first.ask("SELECT 123456 AS remembered;")
        assert first.leave() == 0
    finally:
        first.close()
    second = Terminal(place, tmp_path)
    try:
        second.until("audit> ")
        second.type("\x1b[A")
        second.until("SELECT 123456 AS remembered;")
        second.type("\n")
        second.until("(1 row)")
        second.until("audit> ")
        second.type(".exit\n")
        assert second.process.wait(timeout=30) == 0
    finally:
        second.close()


def test_control_c_forgets_the_line_and_stays(terminal: Terminal) -> None:
    terminal.type("SELECT oops")
    terminal.until("SELECT oops")
    terminal.interrupt()
    assert "(1 row)" in terminal.ask("SELECT 1;")
    terminal.type("SELECT count(*) FROM range(3000000000) a, range(1000) b WHERE a.range * b.range = -1;\n")
    terminal.until("= -1;")
    time.sleep(1.0)
    terminal.interrupt()
    assert "(1 row)" in terminal.ask("SELECT 1;")
