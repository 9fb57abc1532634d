"""A map of a run's samples: a vector for each, from a layer, the logits or the pixels, and its place in two dimensions.

The vectors are reduced to their principal components before they are stored, so that similar samples can be looked up
by SQL over millions of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from audit.errors import MissingExtra, NotFound, UsageError
from audit.lineage.layer_values import layer_vectors
from audit.lineage.queries.overview import last_epoch
from audit.lineage.small_pictures import small_pictures
from audit.records import Progress, Run
from audit.store.maintain.embeddings import write_embeddings
from audit.store.read.reader import Reader

Method = Literal["pca", "umap", "tsne"]
METHODS: tuple[Method, ...] = ("pca", "umap", "tsne")
Epochs = Literal["last", "all"]
#: Vectors that every run with predictions, or with previews, has.
LOGITS, PIXELS = "logits", "pixels"
_COMPONENTS = 32

Vectors = npt.NDArray[np.float32]
Key = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Embedding:
    """What `Store.embed` made."""

    run_id: str
    layer: str
    method: Method
    samples: int
    dimensions: int


def embed(
    reader: Reader,
    run: Run,
    layer: str = LOGITS,
    method: Method = "pca",
    *,
    epochs: Epochs = "last",
    trust: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Embedding:
    """Compute and store the map of a run's last epoch, or of all its epochs, in place of an earlier one."""
    if method not in METHODS:
        raise UsageError(f"{method!r} is not a method.", hint=f"Choose one of {', '.join(METHODS)}.")
    if epochs not in ("last", "all"):
        raise UsageError(f"{epochs!r} is not a choice of epochs.", hint="Choose last or all.")
    numbers = range(last_epoch(reader, run) + 1) if epochs == "all" else [last_epoch(reader, run)]
    found = [_vectors(reader, run, layer, epoch, trust, progress) for epoch in numbers]
    if len({vectors.shape[1] for _, vectors in found}) != 1:
        raise NotFound(f"The epochs of the run {run.run_id} have {layer} of different lengths.")
    keys, vectors = [key for some, _ in found for key in some], np.concatenate([some for _, some in found])
    kept = np.asarray(np.isfinite(vectors).all(axis=1))
    keys, vectors = [key for key, good in zip(keys, kept, strict=True) if good], vectors[kept]
    if len(keys) < 2:
        raise NotFound(f"The run {run.run_id} has fewer than two samples with finite values of {layer}.")
    components = principal_components(vectors, _COMPONENTS)
    places = components[:, :2] if method == "pca" else _project(components, method)
    if places.shape[1] == 1:
        places = np.concatenate([places, np.zeros_like(places)], axis=1)
    write_embeddings(reader, run.run_id, layer, method, np.asarray(keys, np.int64), places, components)
    return Embedding(run.run_id, layer, method, len(keys), vectors.shape[1])


def principal_components(vectors: Vectors, most: int) -> Vectors:
    """Return each vector's coordinates along the directions of the largest variance, with a fixed sign."""
    centred = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    variances, directions = np.linalg.eigh(centred.T @ centred)
    chosen = directions[:, np.argsort(-variances, kind="stable")[:most]]
    # An eigenvector's sign is arbitrary: the same run must give the same map.
    signs = np.sign(chosen[np.abs(chosen).argmax(0), np.arange(chosen.shape[1])])
    return np.asarray(centred @ (chosen * np.where(signs == 0, 1, signs)), np.float32)


def _project(components: Vectors, method: Method) -> Vectors:
    made: Any
    if method == "tsne":
        try:
            from sklearn.manifold import TSNE
        except ImportError:
            raise MissingExtra("scikit-learn", "t-SNE", "embed") from None
        made = TSNE(random_state=0, perplexity=min(30.0, (len(components) - 1) / 3))
    else:
        try:
            from umap import UMAP  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError:
            raise MissingExtra("umap-learn", "UMAP", "embed") from None
        made = UMAP(random_state=0, n_jobs=1)
    return np.asarray(made.fit_transform(components), np.float32)


def _vectors(
    reader: Reader, run: Run, layer: str, epoch: int, trust: bool, progress: Callable[[Progress], None] | None
) -> tuple[list[Key], Vectors]:
    if layer == LOGITS:
        return _logits(reader, run, epoch)
    if layer == PIXELS:
        return _pixels(reader, run, epoch)
    if (kept := layer_vectors(reader, run, layer, epoch)) is not None:
        return kept
    if run.recipe.get("kind") != "run":
        raise UsageError(
            f"The run {run.run_id} was recorded in a user's own loop without the values of the layer {layer!r}.",
            hint=f"Keep them: run.model(model, layers=[{layer!r}], keep='full'). Or use the logits: --layer logits",
        )
    from audit.lineage.replay.layer_outputs import layer_outputs

    return layer_outputs(reader, run, layer, epoch, trust=trust, progress=progress)


def _logits(reader: Reader, run: Run, epoch: int) -> tuple[list[Key], Vectors]:
    rows = reader.sql(
        "SELECT epoch, index, visit, logits FROM graded_predictions "
        "WHERE run_id = ? AND epoch = ? AND logits IS NOT NULL ORDER BY index, visit",
        parameters=[run.run_id, epoch],
    ).fetchall()
    if len({len(row[3]) for row in rows}) != 1:
        held = "logits of different lengths" if rows else "no logits"
        raise NotFound(f"The run {run.run_id} has {held}.", hint="Use the pixels: --layer pixels")
    return [(row[0], row[1], row[2]) for row in rows], np.array([row[3] for row in rows], np.float32)


def _pixels(reader: Reader, run: Run, epoch: int) -> tuple[list[Key], Vectors]:
    found = small_pictures(reader, run, epoch)
    if not len(found.keys):
        raise NotFound(f"The run {run.run_id} has no previews of pictures.", hint="Record with --capture preview.")
    return [(int(a), int(b), int(c)) for a, b, c in found.keys], found.pixels.astype(np.float32)
