"""How hard hypothesis tries: the profiles of the suite, chosen with `pytest --hypothesis-profile NAME`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

#: How many examples a property tries that does not say.
_USUAL_COUNT = 50
#: How many times as many examples a property tries as it says.
PROFILES = {"quick": 0.2, "default": 1.0, "thorough": 40.0}


def register_profiles() -> None:
    """Register every profile and load the default one. pytest's option comes later and wins."""
    for name, factor in PROFILES.items():
        settings.register_profile(
            name,
            max_examples=round(_USUAL_COUNT * factor),
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
    settings.load_profile("default")


def examples(count: int) -> int:
    """Return how many examples a property tries under the chosen profile, where the default is `count`."""
    return max(3, round(count * PROFILES.get(settings.get_current_profile_name(), 1.0)))
