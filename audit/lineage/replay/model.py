"""A run's model, loaded again for a replay: what it says of inputs that were made again."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from audit.engines.assemble import pipeline_builder
from audit.engines.request import RunRequest
from audit.errors import UsageError
from audit.models import load
from audit.recorders.model.output_reader import OutputReader
from audit.records import Run
from audit.sources.trust import require_trust


class ReplayModel:
    """The run's model, or another checkpoint, for logits of replayed inputs."""

    def __init__(self, run: Run, store: str, checkpoint: str | None, *, trust: bool = False) -> None:
        if run.recipe.get("kind") != "run" and checkpoint is None:
            raise UsageError(
                f"The run {run.run_id} was recorded in a user's own loop: the store does not say where its model is.",
                hint="Name a checkpoint: --model CKPT, or store.replay(…, model='ckpt.pt').",
            )
        recipe = run.recipe if run.recipe.get("kind") == "run" else {"kind": "run", "dataset": "", "model": checkpoint}
        using = ("pipeline", "arch") if checkpoint else ("pipeline", "arch", "model")
        vouched = require_trust(run, trust, using)
        # Another checkpoint than the recorded one is executed only if its user says so now.
        request = RunRequest.from_recipe(recipe, store, trust=trust if checkpoint else vouched)
        name = checkpoint or request.model
        if name is None:
            raise UsageError(f"The run {run.run_id} was recorded without a model.", hint="Name one: --model CKPT")
        builder = pipeline_builder(request.pipeline) if request.pipeline is not None else None
        self._device = request.device
        self._model = load(name, arch=request.arch, trust=request.trust, device=request.device, builder=builder)
        self.digest = self._model.digest
        # Of several graded outputs the first counts for the run.
        pick = request.heads[0].key if request.heads else None
        self._reader = OutputReader(self._model.module, self._model.name, None, pick)
        self._least = 0.5 if run.output in ("sigmoid", "probabilities") else 0.0

    @contextmanager
    def watch_layer(self, layer: str) -> Iterator[list[Any]]:
        """Yield a list to which a layer's outputs are added while the model is called."""
        try:
            module = self._model.module.get_submodule(layer)
        except AttributeError:
            names = [name for name, _ in self._model.module.named_modules() if name]
            near = difflib.get_close_matches(layer, names, n=3) or names[-8:]
            raise UsageError(
                f"The model has no layer {layer!r}.", hint=f"Choose for instance {', '.join(near)}."
            ) from None
        seen: list[Any] = []
        handle = module.register_forward_hook(lambda _, __, output: seen.append(output))
        try:
            yield seen
        finally:
            handle.remove()

    def logits(self, inputs: list[Any]) -> list[list[float]]:
        """Return the logits of each input, computed in one batch where they have one shape."""
        with torch.inference_mode():
            try:
                return self._call(torch.utils.data.default_collate(inputs), len(inputs))
            except (RuntimeError, TypeError):
                if len(inputs) == 1:
                    raise
            return [self._call(torch.utils.data.default_collate([value]), 1)[0] for value in inputs]

    def predict(self, inputs: list[Any]) -> list[int]:
        """Return the class of each input, as the run grades it: of one number, class 1 if it is a logit or a share that says so."""
        return [
            int(row[0] > self._least) if len(row) == 1 else max(range(len(row)), key=row.__getitem__)
            for row in self.logits(inputs)
        ]

    def _call(self, batch: Any, count: int) -> list[list[float]]:
        moved = batch.to(self._device) if isinstance(batch, torch.Tensor) else batch
        found: list[list[float]] = self._reader.values(self._model.module(moved), count).float().cpu().tolist()
        return found
