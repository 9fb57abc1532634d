"""Every check by name, in the order of their groups; plugins add theirs through the entry points `audit.checks`."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from importlib import import_module

from audit.checks.base import Check
from audit.errors import UsageError
from audit.registry import Registry

#: One module for each check: the folder is the group, the file is the name.
BUILT_IN: dict[str, tuple[str, ...]] = {
    "integrity": (
        *("coverage", "alignment", "unreadable", "source_unchanged", "model_unchanged", "code_unchanged"),
        *("stable_load", "reproducible", "store", "hooks", "stage_coverage", "loader_order"),
    ),
    "values": (
        *("finite", "probabilities", "stage_contract", "blank", "clipped", "scale", "preprocessing"),
        *("channel_order", "augmentation", "repeated_draws"),
    ),
    "data": (
        *("duplicates", "near_duplicates", "conflicting_labels", "leakage", "image_quality", "exif_orientation"),
        *("alpha_dropped", "class_balance", "missing_classes", "shortcuts", "split_drift", "outliers"),
        *("target_boxes", "lost_boxes", "target_masks"),
    ),
    "model": (
        *("label_range", "class_order", "label_issues", "accuracy", "per_class_accuracy", "calibration"),
        *("weak_segments", "head", "evaluation_mode", "dead_layers", "exploding_layers", "missed_by_size", "probe"),
    ),
    "against": ("pipeline_changed", "dataset_changed", "prediction_flips", "class_regressions", "losses", "drift"),
    "yours": ("sql",),
}

CHECKS: Registry[type[Check]] = Registry("check", "audit.checks")

for _group, _names in BUILT_IN.items():
    for _name in _names:
        CHECKS.add(_name, import_module(f"audit.checks.{_group}.{_name}").CHECK)


def require_check(name: str, own: Collection[str] = ()) -> None:
    """Raise UsageError with the nearest names unless there is a registered check, or one of `own`, of that name."""
    if name in own:
        return
    if name not in CHECKS and (near := difflib.get_close_matches(name, own, n=3)):
        raise UsageError(f"There is no check called {name!r}.", hint=f"Did you mean {', '.join(near)}?")
    _require_check(name, CHECKS.get(name))


def all_checks() -> list[type[Check]]:
    """Return every check, built-ins first."""
    try:
        return [_require_check(name, CHECKS.get(name)) for name in CHECKS]
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"A plugin's check cannot be loaded: {type(error).__name__}: {error}.",
            hint="Fix or uninstall the package that names it in its entry points audit.checks.",
        ) from error


def _require_check(name: str, found: object) -> type[Check]:
    if not isinstance(found, type) or not issubclass(found, Check) or getattr(found, "name", None) != name:
        raise UsageError(
            f"The entry point {name!r} of the group audit.checks gives {found!r}, which is not a check of that name.",
            hint="It must be a subclass of audit.checks.base.Check whose `name` is the entry point's.",
        )
    return found
