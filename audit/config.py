"""Defaults: where the store is, and the options that a project or a user always gives.

The first that says something wins: an option, the environment, ./audit.toml ([defaults]), ./pyproject.toml
([tool.audit.defaults]), the user's own config.toml, what is built in.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit.errors import UsageError

#: Named settings as a file or a caller gives them; each is checked where it is used.
Settings = Mapping[str, Any]

DEFAULT_STORE = "lineage"
STORE_VARIABLE = "AUDIT_STORE"
#: Set to 1, readers leave aside runs whose manifest is damaged, instead of refusing the store.
DAMAGED_VARIABLE = "AUDIT_ALLOW_DAMAGED"
#: 1 lets readers check every part against its digest, those of a bucket too; 0 lets them check none.
VERIFY_VARIABLE = "AUDIT_VERIFY_READS"
SECTION = "defaults"
#: Options that let code run (at `address` too, where results are unpickled). A file that lies in the working directory
#: may come from a stranger: it cannot set them.
_RUNS_CODE = frozenset({"address", "arch", "checks", "dataset", "data", "model", "pipeline", "pipelines"})
#: Options of `audit ui` that let others in, or let them change something: neither can it set these.
_OPENS = frozenset({"ui.host", "ui.token", "ui.write", "ui.replay"})
#: Options that name a place to write to: in such a file, one below the working directory.
_WRITES = frozenset({"output", "export_to"})


@dataclass(frozen=True, slots=True)
class Default:
    """One setting: its name (`store`, or `run.workers` for an option of a command), its value, and who says so."""

    name: str
    value: Any
    origin: str


def store_location(given: str | os.PathLike[str] | None = None) -> str:
    """Return the store's place: --store, else $AUDIT_STORE, else the configured one, else ./lineage."""
    if given is not None:
        return os.fspath(given)
    return str(store_default().value)


def store_default() -> Default:
    """Return the place of the store when no option names one, and where that comes from."""
    if place := os.environ.get(STORE_VARIABLE):
        return Default("store", place, f"${STORE_VARIABLE}")
    for path, section in _sections():
        if "store" in section:
            # A path in a file is meant from that file's folder, wherever the command is run.
            place = os.path.expanduser(str(section["store"]))
            return Default("store", place if "://" in place else str(path.parent / place), str(path))
    return Default("store", DEFAULT_STORE, "built in")


def option_defaults() -> list[Default]:
    """Return the configured options of commands, such as `run.workers`; the first file that names one wins."""
    found: dict[str, Default] = {}
    for path, section in _sections():
        for command, options in section.items():
            if command == "store":
                continue
            if not isinstance(options, Mapping):
                raise UsageError(
                    f"{path}: [{SECTION}] has {command} = {options!r}.",
                    hint=f"It takes store, and a table for each command, such as [{SECTION}.run] with workers = 4.",
                )
            for option, value in options.items():
                name = f"{command}.{option.replace('-', '_')}"
                _check_harmless(path, name, value)
                found.setdefault(name, Default(name, value, str(path)))
    return list(found.values())


def _check_harmless(path: Path, name: str, value: Any) -> None:
    """Refuse a default by which a stranger's folder could do harm without a word of the user."""
    if name.endswith(".trust"):
        raise UsageError(f"{path} sets {name}, which would let code run.", hint="It must be passed with each command.")
    if path != user_file() and (harm := _why_refused(name, value)) is not None:
        raise UsageError(
            f"{path} sets {name}, which would {harm}.", hint=f"Pass it with the command, or set it in {user_file()}."
        )


def _why_refused(name: str, value: Any) -> str | None:
    """Return what a default of the working directory would do that it must not; None if it may be set."""
    option = name.partition(".")[2]
    if option in _RUNS_CODE:
        return "let code run"
    if name in _OPENS:
        return "open the store to others"
    if (option, value) in (("allow_damaged", True), ("verify_reads", False)):
        return "hide damage"
    # What `audit run` calls output is a kind, not a place.
    is_place = option in _WRITES and name != "run.output"
    here = os.path.join(os.path.realpath(os.getcwd()), "")
    return "write outside of this directory" if is_place and not os.path.realpath(str(value)).startswith(here) else None


def user_file() -> Path:
    """Return the user's own configuration file, whether it exists or not."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "audit" / "config.toml"


def _sections() -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield every file's defaults, the nearest first."""
    for path, keys in (
        (Path("audit.toml"), (SECTION,)),
        (Path("pyproject.toml"), ("tool", "audit", SECTION)),
        (user_file(), (SECTION,)),
    ):
        section: Any = _read(path)
        for key in keys:
            section = section.get(key, {}) if isinstance(section, Mapping) else {}
        if isinstance(section, Mapping) and section:
            yield path, section


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}", hint="Correct the file.") from error


def allows_damaged(given: bool | None = None) -> bool:
    """Return whether a store with a damaged manifest may be read: as given, else by $AUDIT_ALLOW_DAMAGED."""
    return os.environ.get(DAMAGED_VARIABLE) == "1" if given is None else given


def verifies_reads(given: bool | None = None) -> bool | None:
    """Return whether parts are checked before they are read: as given, else by $AUDIT_VERIFY_READS; None if neither says so."""
    return given if given is not None else {"0": False, "1": True}.get(os.environ.get(VERIFY_VARIABLE, ""))


def half_of_memory() -> int:
    """Return half of the bytes of memory that this machine, or the container, has."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            most = min(most, int(Path(limit).read_text()))
    return most // 2


def parse_bytes(text: str) -> int:
    """Return the number that a text such as 512MB, 2GiB or 1000000 means; UsageError for any other."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    if found is None or not float(found[1]):
        raise UsageError(f"{text!r} is not an amount of memory.", hint="Write for instance 512MB or 4GB.")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2].lower() or " "))
