"""audit.toml, or [tool.audit] in pyproject.toml: which checks, thresholds, severities, allow-lists, baseline.

Everything is read strictly: an unknown check or key and a value of the wrong type are errors that name the place and
the nearest right name. A misspelled name must never disable a check.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from datetime import date
from typing import Any, cast

from audit.checks.base import SEVERITIES, Check, Option, Severity
from audit.checks.narrowing import Narrowing
from audit.checks.own_checks import own_checks
from audit.checks.registry import all_checks, require_check
from audit.checks.shared.allow_list import AllowedFinding, AllowList
from audit.checks.yours.sql import Sql
from audit.config import Settings
from audit.errors import UsageError

FILE = "audit.toml"
#: `defaults` is read elsewhere (see audit.config).
_TOP = ("defaults", "baseline", "fail_on", "max_findings", "select", "skip", "checks", "sql")
#: Keys that every check accepts in addition to its own options.
COMMON = ("enabled", "severity", "splits", "classes", "stages", "pipelines", "datasets", "allow")
_ALLOW = ("source", "digest", "stage", "message", "reason", "expires")
DEFAULT_MOST = 100


@dataclass(slots=True)
class Setting:
    """One check with its configured options."""

    check: type[Check]
    name: str
    options: dict[str, Any]
    enabled: bool
    given_severity: Severity | None = None
    narrowing: Narrowing = field(default_factory=Narrowing)
    allow: AllowList = field(default_factory=AllowList)

    @property
    def severity(self) -> Severity:
        """Return the configured severity, or else the check's own."""
        return self.given_severity or self.check.severity


@dataclass(slots=True)
class Configuration:
    """A configuration as read: every check that is known, in order, enabled or not."""

    settings: list[Setting]
    fail_on: Severity = "error"
    max_findings: int = DEFAULT_MOST
    baseline: str | None = None
    path: str | None = None
    notes: list[str] = field(default_factory=list)

    def choose_settings(self, only: Sequence[str] = (), skip: Sequence[str] = ()) -> list[Setting]:
        """Return the enabled checks, or those named by `only`, without those named by `skip`."""
        known = {setting.name for setting in self.settings}
        for name in (*only, *skip):
            if name not in known:
                require_check(name, known)  # raises an error with the nearest name
        wanted = [s for s in self.settings if s.name in only or s.check.name in only] if only else self.settings
        return [s for s in wanted if (only or s.enabled) and s.name not in skip and s.check.name not in skip]


def load_configuration(
    path: str | os.PathLike[str] | None = None, *, checks: Sequence[str] = (), trust: bool = False
) -> Configuration:
    """Read the given file, or ./audit.toml, or [tool.audit] in ./pyproject.toml, or use the defaults.

    `checks` names Python files with checks of one's own. `trust` lets the files run that only the configuration names.
    """
    content, found = _find_settings(path)
    return parse_configuration(content, found, own_checks(content, found, checks, trust=trust))


def _find_settings(path: str | os.PathLike[str] | None) -> tuple[Settings, str | None]:
    """Return the configuration's content and its file."""
    if path is not None:
        return _section(os.fspath(path)), os.fspath(path)
    if os.path.isfile(FILE):
        return _section(FILE), FILE
    if os.path.isfile("pyproject.toml") and (section := _section("pyproject.toml")):
        return section, "pyproject.toml"
    return {}, None


def _section(path: str) -> Settings:
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} is not valid TOML: {error}.", hint="Fix it, or pass another file with --config."
        ) from error
    except OSError as error:
        raise UsageError(
            f"The configuration {path} cannot be read: {error.strerror}.", hint="Write one with: audit check --init"
        ) from error
    if os.path.basename(path) != "pyproject.toml":
        return content
    section: Any = content
    for key in ("tool", "audit"):
        section = section.get(key, {})
        if not isinstance(section, dict):
            raise UsageError(f"{key} in {path} must be a table, got {section!r}.", hint="Write [tool.audit].")
    return dict(section)


def parse_configuration(content: Settings, path: str | None, own: Sequence[type[Check]] = ()) -> Configuration:
    """Read a configuration from its tables; raise UsageError with the wrong key and its place.

    `own` are checks that are not registered: those of the user's own files.
    """
    where = path or "the configuration"
    _refuse_unknown_keys(content, _TOP, where)
    select = _names(content, "select", where)
    skip = _names(content, "skip", where)
    tables = {
        key: table for key, table in (_check_type(content, "checks", dict, where) or {}).items() if key != "paths"
    }
    available = [*all_checks(), *own]
    settings = []
    for name in (*select, *skip, *tables):
        if name == Sql.name:
            raise UsageError(f"{where} configures 'sql' as a check.", hint="Write your queries as [[sql]] tables.")
        require_check(name, {check.name for check in own})
    for check in available:
        if check is Sql:
            continue
        table = tables.get(check.name, {})
        at = f"[checks.{check.name}] in {where}"
        if not isinstance(table, dict):
            raise UsageError(f"{at} must be a table, got {table!r}.", hint=f"Write [checks.{check.name}].")
        default = check.name in select if select else check.default or bool(table)
        settings.append(_read_setting(check, check.name, table, at, default and check.name not in skip))
    settings += _queries(content, where, {check.name for check in available})
    severity = content.get("fail_on", "error")
    baseline = _check_type(content, "baseline", str, where)
    most = _check_type(content, "max_findings", int, where)
    if most is not None and most < 1:
        raise UsageError(
            f"max_findings in {where} must be at least 1, got {most}.", hint="Give a whole number of at least 1."
        )
    notes = [note for setting in settings for note in setting.allow.notes(setting.name)]
    return Configuration(settings, _severity(severity, "fail_on", where), most or DEFAULT_MOST, baseline, path, notes)


def _queries(content: Settings, where: str, taken: Set[str]) -> list[Setting]:
    queries = _check_type(content, "sql", list, where) or []
    settings: list[Setting] = []
    for number, table in enumerate(queries, 1):
        at = f"[[sql]] number {number} in {where}"
        if not isinstance(table, dict):
            raise UsageError(f"{at} is not a table.", hint="Write it as [[sql]] with a `query`.")
        given = dict(table)
        name = given.pop("name", None) or f"sql-{number}"
        if not isinstance(name, str) or not given.get("query"):
            raise UsageError(f"{at} has no query.", hint='Give it one, such as query = "FROM failures".')
        if name in {setting.name for setting in settings} or name in taken:
            raise UsageError(
                f"{at} has the name {name!r}, which another check already has.", hint="Give it a different name."
            )
        settings.append(_read_setting(Sql, name, given, at, True))
    return settings


def _read_setting(check: type[Check], name: str, table: Settings, at: str, default: bool) -> Setting:
    _refuse_unknown_keys(table, (*COMMON, *check.options), at)
    options = {key: option.default for key, option in check.options.items()}
    for key, value in table.items():
        if key in check.options:
            options[key] = _option(check.options[key], key, value, at)
    enabled = _check_type(table, "enabled", bool, at)
    severity = _severity(table["severity"], "severity", at) if "severity" in table else None
    narrowing = Narrowing(*(tuple(_names(table, key, at)) for key in COMMON[2:7]))
    allow = AllowList(tuple(_read_allow_list(table, at)))
    return Setting(check, name, options, default if enabled is None else enabled, severity, narrowing, allow)


def _option(option: Option, key: str, value: Any, at: str) -> Any:
    wanted = option.type
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise _wrong_type(key, value, wanted, at)
    if wanted is float and value != value:
        raise UsageError(f"{key} in {at} is not a number.", hint="Give a number.")
    return value


def _read_allow_list(table: Settings, at: str) -> Iterable[AllowedFinding]:
    for entry in _check_type(table, "allow", list, at) or []:
        here = f"allow in {at}"
        if not isinstance(entry, dict):
            raise UsageError(
                f"{here} holds {entry!r}, which is not an exception.",
                hint='Write { source = "a/b.png", reason = "why" }.',
            )
        _refuse_unknown_keys(entry, _ALLOW, here)
        source, digest, stage, message = (_check_type(entry, key, str, here) for key in _ALLOW[:4])
        reason, expires = _check_type(entry, "reason", str, here), entry.get("expires")
        if [source is not None, digest is not None, stage is not None or message is not None].count(True) != 1:
            raise UsageError(
                f"{here} needs a source or a digest, and not both; for a finding without a source, a stage or a message.",
                hint='Write for example { message = "The class cat is right in *", reason = "why" }.',
            )
        if digest is not None and not re.fullmatch("[0-9a-fA-F]{8,64}", digest):
            raise UsageError(
                f"{here} has the digest {digest!r}, which is too short or not hexadecimal.",
                hint="Give at least the first 8 digits, as `audit trace` shows them.",
            )
        if not reason:
            raise UsageError(
                f"{here} gives no reason for {source or digest or message or stage!r}.", hint='Add reason = "…".'
            )
        if expires is not None and not isinstance(expires, date):
            raise _wrong_type("expires", expires, date, here)
        yield AllowedFinding(source, digest, reason, expires, stage, message)


_TYPE_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", list: "a list",
           dict: "a table", date: "a date such as 2027-01-31"}  # fmt: skip


def _wrong_type(key: str, value: Any, wanted: type, at: str) -> UsageError:
    return UsageError(f"{key} in {at} is {value!r}, but must be {_TYPE_NAMES.get(wanted, wanted.__name__)}.")


def _check_type(table: Settings, key: str, wanted: type, at: str) -> Any:
    value = table.get(key)
    if value is not None and (not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool)):
        raise _wrong_type(key, value, wanted, at)
    return value


def _names(table: Settings, key: str, at: str) -> list[str]:
    values = _check_type(table, key, list, at) or []
    for value in values:
        if not isinstance(value, (str, int)) or isinstance(value, bool):
            raise UsageError(f"{key} in {at} holds {value!r}, but must be a list of names.")
    return [str(value) for value in values]


def _severity(value: Any, key: str, at: str) -> Severity:
    if value not in SEVERITIES:
        raise UsageError(
            f"{key} in {at} must be a severity, got {value!r}.", hint=f"Choose one of {', '.join(SEVERITIES)}."
        )
    return cast(Severity, value)


def _refuse_unknown_keys(table: Settings, known: Sequence[str], at: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(known)}."
            raise UsageError(f"{at} has the unknown key {key!r}.", hint=hint)
