"""What is to be run: every option of `audit run` as one value, and the recipe that rebuilds the pipeline from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from audit.engines.declared_heads import (
    DeclaredHead,
    HeadTargets,
    Output,
    declare_heads,
    heads_from_recipe,
    heads_to_recipe,
)
from audit.engines.failure_limit import FailureLimit
from audit.errors import StoreDamaged, UsageError
from audit.records import DEFAULT_BUDGET, LEVELS, Progress
from audit.sources.absolute_names import absolute_dataset, absolute_spec

#: Where the work is done: DataLoader workers on this machine, or Ray's on a cluster.
ENGINES = ("local", "ray")
DEFAULT_STALL_TIMEOUT = 600.0
#: The options that decide what a sample becomes, and so belong to the recipe. No other key of one becomes an option.
_RECIPE = (
    "dataset",
    "pipeline",
    "model",
    "arch",
    "trust",
    "mode",
    "seed",
    "limit",
    "batch_size",
    "workers",
    "device",
    "output",
)
#: What a pipeline's first stage is given: pictures as RGB, as torchvision's ImageFolder does it, or in their own mode.
MODES = ("rgb", "keep")


@dataclass(slots=True)
class RunRequest:
    """Everything that `audit run` can be asked."""

    dataset: str
    store: str
    model: str | None = None
    pipeline: str | None = None
    arch: str | None = None
    trust: bool = False
    #: One of MODES; None for what the pipeline says (its `mode`), else rgb.
    mode: str | None = None
    name: str | None = None
    capture: str = "auto"
    capture_budget: int = DEFAULT_BUDGET
    capture_where: str | None = None
    workers: int | None = None
    start_method: str | None = None
    batch_size: int = 32
    device: str = "cpu"
    #: What the model's output means; of several graded outputs each, by its key or position.
    output: Output = None
    #: Of several graded outputs: where in an item the target of each is. Without it, at the key of the same name.
    target: HeadTargets = None
    limit: int | None = None
    seed: int = 0
    strict: bool = False
    #: The most samples that may fail (10, or "2%") before the run counts as failed; None for all but the last one.
    max_failures: int | str | None = None
    #: Seconds between commits; None for often at first and ever more rarely in a long run.
    commit_every: float | None = None
    #: Seconds after which a sample that is not made is given up; 0 for never.
    stall_timeout: float = DEFAULT_STALL_TIMEOUT
    engine: str = "local"
    #: Of the engine ray: the cluster (None for one of its own), models in its pool, GPUs for each.
    address: str | None = None
    actors: int | None = None
    gpus_per_actor: float = 0
    tags: Mapping[str, str] = field(default_factory=dict)
    command: str | None = None
    progress: Callable[[Progress], None] | None = None

    def __post_init__(self) -> None:
        if self.capture not in ("auto", *LEVELS):
            raise UsageError(f"capture cannot be {self.capture!r}.", hint=f"Choose one of auto, {', '.join(LEVELS)}.")
        if self.mode is not None and self.mode not in MODES:
            raise UsageError(f"mode cannot be {self.mode!r}.", hint=f"Choose one of {', '.join(MODES)}.")
        if self.batch_size < 1:
            raise UsageError(f"batch_size cannot be {self.batch_size}.", hint="Give a whole number of at least 1.")
        if self.workers is not None and self.workers < 0:
            raise UsageError(f"workers cannot be {self.workers}.", hint="Give a whole number of at least 0.")
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"limit cannot be {self.limit}.", hint="Give a whole number of at least 1.")
        if not self.stall_timeout >= 0:
            raise UsageError(
                f"stall_timeout cannot be {self.stall_timeout}.", hint="Give seconds, or 0 to wait for ever."
            )
        if self.max_failures is not None:
            FailureLimit.parse(self.max_failures)
        self._check_engine()
        self.heads  # noqa: B018 - what is declared wrongly is an error now
        if not -(2**63) <= self.seed < 2**63:
            raise UsageError("seed does not fit 64 bits.", hint="Give a smaller number.")
        if self.capture_where and not self.model:
            raise UsageError(
                "capture_where needs predictions, but there is no model.",
                hint="Pass a model, or leave capture_where out.",
            )

    def _check_engine(self) -> None:
        if self.engine not in ENGINES:
            raise UsageError(f"engine cannot be {self.engine!r}.", hint=f"Choose one of {', '.join(ENGINES)}.")
        if self.engine == "local" and (self.address is not None or self.actors is not None or self.gpus_per_actor):
            raise UsageError(
                "address, actors and gpus_per_actor are options of the engine ray.", hint="Give --engine ray too."
            )
        if self.actors is not None and self.actors < 1:
            raise UsageError(f"actors cannot be {self.actors}.", hint="Give a whole number of at least 1.")
        if self.gpus_per_actor < 0 or (self.gpus_per_actor > 1 and self.gpus_per_actor % 1):
            raise UsageError(
                f"gpus_per_actor cannot be {self.gpus_per_actor}.",
                hint="Give a share of one, such as 0.5, or a whole number.",
            )

    @property
    def heads(self) -> tuple[DeclaredHead, ...]:
        """The graded outputs, where there are several."""
        return declare_heads(self.output, self.target)

    @property
    def head_targets(self) -> dict[str, str | int]:
        """Where in an item the target of each graded output is."""
        return {head.name: head.target for head in self.heads}

    @property
    def single_output(self) -> str | None:
        """What the one graded output means, if that was declared."""
        return self.output if isinstance(self.output, str) else None

    def report_progress(self, doing: str, done: int = 0, total: int | None = None, failed: int = 0) -> None:
        """Call the user's `progress`, if there is one."""
        if self.progress is not None:
            self.progress(Progress(done, total, failed, doing))

    def report_note(self, note: str) -> None:
        """Hand something that the user should know at once to their `progress`, if there is one."""
        if self.progress is not None:
            self.progress(Progress(note=note))

    def recipe(self) -> dict[str, Any]:
        """Return what is needed to rebuild the pipeline later, elsewhere and in another process."""
        recipe = {name: getattr(self, name) for name in _RECIPE} | {"output": self.single_output}
        if heads := self.heads:
            recipe["graded_outputs"] = heads_to_recipe(heads)
        paths = {name: absolute_spec(recipe[name]) for name in ("pipeline", "model", "arch") if recipe[name]}
        return recipe | paths | {"dataset": absolute_dataset(self.dataset), "kind": "run"}

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any], store: str, *, trust: bool, **changes: Any) -> RunRequest:
        """Return the request that a recorded recipe stands for. The caller decides whose code may run: `trust` never
        comes from the recipe (see sources.trust)."""
        if recipe.get("kind") != "run":
            raise UsageError(
                "This run was not recorded by `audit run`, so its pipeline cannot be rebuilt from its recipe."
            )
        options = {key: recipe[key] for key in _RECIPE if key in recipe}
        for key in ("dataset", "pipeline", "model", "arch"):
            # A recipe is data from a store: what is not a text would not be asked about, and an open() takes a number.
            if not isinstance((options | changes).get(key), str if key == "dataset" else str | None):
                raise StoreDamaged(f"The recipe of the run says {key} = {options.get(key)!r}, which is not a name.")
        for key in ("seed", "batch_size", "device"):
            if options.get(key, "absent") is None:
                raise StoreDamaged(f"The recipe of the run says nothing of its {key}.")
        if recipe.get("graded_outputs") is not None:
            options["output"], options["target"] = heads_from_recipe(recipe["graded_outputs"])
        # Recipes from before there was a choice were recorded with pictures in their own mode.
        return cls(**{"mode": "keep", **options, "store": store, **changes, "trust": trust})
