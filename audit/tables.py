"""The tables of a run, as they are stored: one class for each, one line for each column.

No other place lists them. The Arrow schema (store/schema.py) and the tables of docs/FORMAT.md are made from these classes,
and readers return rows of these types. Column names are a contract with users. CONTRIBUTING.md says
how to add a column or a table.
"""

from __future__ import annotations

from typing import Annotated, TypedDict

from audit.columns import BIGINT, BIGINTS, BLOB, BOOLEAN, DOUBLE, FLOAT, FLOATS, INTEGER, RUN_ID, VARCHAR, VARCHARS
from audit.records import Stage


class VisitRow(TypedDict):
    """The key of a visit, with which most tables begin."""

    run_id: Annotated[str, RUN_ID]
    epoch: Annotated[int, INTEGER("number of the epoch, from 0")]
    index: Annotated[int, BIGINT("the sample's place in the dataset")]
    visit: Annotated[int, INTEGER("how often this index was drawn earlier in the epoch; 0 the first time")]


class SampleRow(VisitRow):
    """One row per visit, failed ones included."""

    split: Annotated[str | None, VARCHAR("train, test…", null="unknown")]
    source: Annotated[
        str | None,
        VARCHAR(
            "path below `root` as UTF-8 text, or a URI such as `dataset://7` (for a Subset or a wrapper, the index in the dataset "
            "behind it); if the dataset does not list its files, the first picture, sound or video that was opened "
            "while the item was made, else a file opened that belongs to this sample alone (DATASETS.md); bytes that are not UTF-8 are shown as `\\xff`",
            null="unknown",
        ),
    ]
    root: Annotated[str | None, VARCHAR("the dataset's folder", null="the source is not a file")]
    source_raw: Annotated[bytes | None, BLOB("the path's bytes", null="`source` is exactly them")]
    source_digest: Annotated[
        str | None, VARCHAR("SHA-256 of the file's bytes, hex", null="no file, or it could not be read")
    ]
    source_bytes: Annotated[int | None, BIGINT("the file's length", null="no file, or it could not be read")]
    label: Annotated[int | None, BIGINT("class number", null="unlabelled")]
    label_name: Annotated[str | None, VARCHAR("its name", null="unlabelled, or names unknown")]
    status: Annotated[str, VARCHAR("`ok` or `failed`")]
    failed_stage: Annotated[
        str | None,
        VARCHAR(
            "name of the stage that failed; `load`, `dataset`, `worker`, `model` outside of stages", null="status is ok"
        ),
    ]
    error: Annotated[str | None, VARCHAR("the error's type and message", null="status is ok")]
    worker: Annotated[int | None, INTEGER("the loader's worker", null="made in the main process")]
    rank: Annotated[int | None, INTEGER("the process of a distributed run", null="not distributed")]
    batch: Annotated[
        int | None,
        BIGINT("number of the batch in its epoch, from 0; loaders of one epoch share the numbers", null="not batched"),
    ]
    position: Annotated[int | None, INTEGER("place in the batch", null="not batched")]
    batch_label: Annotated[
        int | None,
        BIGINT(
            "class number that the batch has for the sample, where a collate function of the user's own made it: of "
            "one-hot and smoothed labels their class",
            null="made by torch's own collate function, mixed, or not certain",
            since=9,
        ),
    ]


class SampleSourceRow(VisitRow):
    """One row for each file that a visit's sample was read from.

    First the files that the dataset names, then others that were opened for reading while the item was made (code and files of
    installed packages left out). The first is the one in `samples`, if that has a file.
    """

    ordinal: Annotated[int, INTEGER("from 0, in this order")]
    role: Annotated[str | None, VARCHAR("what it is for the sample, such as `mask`", null="nobody named it")]
    source: Annotated[
        str,
        VARCHAR(
            "path below `root`, or a URI; a member of an archive or a row of a table is `FILE#MEMBER` or `FILE#ROW`"
        ),
    ]
    root: Annotated[str | None, VARCHAR("a folder", null="the source is not a file")]
    digest: Annotated[
        str | None,
        VARCHAR(
            "SHA-256 of its bytes, hex", null="no file, it could not be read, or the dataset opened more than 256 MiB"
        ),
    ]
    bytes: Annotated[int | None, BIGINT("its length", null="no file, or it could not be read")]
    source_raw: Annotated[bytes | None, BLOB("the path's bytes", null="`source` is exactly them")]


class StageOutputRow(VisitRow):
    """One row per visit and stage."""

    stage: Annotated[int, INTEGER("the stage")]
    name: Annotated[str, VARCHAR("its name")]
    # docs/make_format.py writes the names of all kinds of audit/values there.
    kind: Annotated[str, VARCHAR("{kinds}")]
    dtype: Annotated[str | None, VARCHAR("element type", null="the kind has none")]
    shape: Annotated[list[int] | None, BIGINTS("lengths of the axes", null="the kind has none")]
    mode: Annotated[str | None, VARCHAR("an image's mode, a tensor's own type", null="has none")]
    digest: Annotated[
        str | None,
        VARCHAR(
            "XXH3-128 of the value, hex",
            null="the value cannot be compared by a digest",
        ),
    ]
    changed: Annotated[
        bool | None, BOOLEAN("whether it differs from what the stage was given", null="one of the two has no digest")
    ]
    params: Annotated[str | None, VARCHAR("JSON: what a random stage drew", null="drew nothing that is known")]
    min: Annotated[float | None, DOUBLE("least finite element", null="no finite numbers")]
    max: Annotated[float | None, DOUBLE("greatest finite element", null="no finite numbers")]
    mean: Annotated[float | None, DOUBLE("of the finite elements", null="no finite numbers")]
    std: Annotated[float | None, DOUBLE("of the finite elements, population", null="no finite numbers")]
    zeros: Annotated[int | None, BIGINT("elements that are zero", null="no numbers")]
    nonfinite: Annotated[int | None, BIGINT("elements that are NaN or infinite", null="no numbers")]
    bytes: Annotated[int | None, BIGINT("size of the value in memory", null="unknown")]
    microseconds: Annotated[
        float | None,
        FLOAT("time in the stage, without the time of recording", null="the stage works on whole batches"),
    ]
    payload: Annotated[str, VARCHAR("`none`, `preview` or `full`: the most exact form of it in `payloads`")]
    target: Annotated[
        str | None,
        VARCHAR(
            "JSON: of a picture with its target `height` and `width` of the picture, `boxes` [[x1, y1, x2, y2]…] with "
            "`classes` and `format` (where they name one), `mask` (pixels of each class); the statistics are then the "
            "picture's",
            null="the output is not a picture with boxes or a mask",
            since=4,
        ),
    ]


class PayloadRow(VisitRow):
    """Stored stage outputs and previews, in a table of their own so that ordinary queries never read them."""

    stage: Annotated[int, INTEGER("the first stage that had this output")]
    form: Annotated[str, VARCHAR("`preview` or `full`")]
    kind: Annotated[str, VARCHAR("kind of the encoded value")]
    encoding: Annotated[str, VARCHAR("`full`: an encoding of FORMAT-values.md; `preview`: a media type")]
    data: Annotated[bytes, BLOB("the bytes")]


class PredictionRow(VisitRow):
    """One row for each sample of each matched call of a recorded model.

    If a visit has several, those of the model that was recorded first come first, then in the order of the calls. The first
    one is graded (view `graded_predictions`); all other views, checks and counts use only that one. A row whose input was
    mixed from several samples (MixUp, CutMix) has `mix` among its `operations`, no label and no grade, and a `call` above 0;
    `parents` has the samples that it was mixed from, and the view `mixed_predictions` joins both.
    """

    label: Annotated[int | None, BIGINT("class number", null="unlabelled")]
    label_name: Annotated[str | None, VARCHAR("its name", null="unlabelled, or names unknown")]
    predicted: Annotated[int | None, BIGINT("most probable class, the lowest of equals", null="a logit is not finite")]
    predicted_name: Annotated[str | None, VARCHAR("its name", null="as above, or names unknown")]
    confidence: Annotated[float | None, FLOAT("its probability", null="a logit is not finite")]
    correct: Annotated[bool | None, BOOLEAN("predicted = label; false when a logit is not finite", null="unlabelled")]
    loss: Annotated[
        float | None,
        FLOAT("cross entropy; may be NaN or infinite", null="unlabelled, or the label is outside the outputs"),
    ]
    margin: Annotated[
        float | None, FLOAT("probability of the best class less that of the second", null="a logit is not finite")
    ]
    entropy: Annotated[float | None, FLOAT("of the probabilities, natural logarithm", null="a logit is not finite")]
    label_rank: Annotated[
        int | None,
        INTEGER(
            "1 when the label is the most probable class", null="no label inside the outputs, or a logit is not finite"
        ),
    ]
    logits: Annotated[
        list[float] | None,
        FLOATS(
            "as the model gave them, NaN and infinity included; `runs.output` says what they are",
            null="a task without classes",
        ),
    ]
    probabilities: Annotated[
        list[float] | None,
        FLOATS(
            "what follows from `logits` and `runs.output`: softmax of logits, for one output the two of its sigmoid; "
            "the values themselves where they are probabilities",
            null="a task without classes",
        ),
    ]
    input_digest: Annotated[
        str | None,
        VARCHAR(
            "digest of what the model was given: that of the visit's last stage that is not a target stage",
            null="unknown",
        ),
    ]
    batch: Annotated[
        int | None,
        BIGINT("number of the batch in its epoch, from 0; loaders of one epoch share the numbers", null="not batched"),
    ]
    position: Annotated[int | None, INTEGER("place in the batch", null="not batched")]
    step: Annotated[
        int | None, BIGINT("number of the step, which all calls with the same samples share", null="unknown")
    ]
    model: Annotated[
        str | None, VARCHAR("the name given to the model, else its architecture or class", null="unknown", since=3)
    ]
    call: Annotated[
        int | None,
        INTEGER(
            "0, 1, … among the predictions of one visit; 0 is graded, and is never of an input mixed from several samples",
            null="written before this column existed: 0",
            since=3,
        ),
    ]
    number: Annotated[int | None, BIGINT("the row of `calls`", null="logged by hand", since=3)]
    operations: Annotated[
        list[str] | None,
        VARCHARS(
            "what the loop did to the sample between its last stage and the model; `part`: the model was given one tensor "
            "of the item, and the last stage's output is another one or all of them",
            null="nothing, or unknown",
            since=3,
        ),
    ]
    target: Annotated[
        list[float] | None,
        FLOATS(
            "what the output was to be, for tasks without classes",
            null="a task with classes, or none was found",
            since=3,
        ),
    ]
    output: Annotated[
        list[float] | None,
        FLOATS("what the model gave, for tasks without classes", null="a task with classes", since=3),
    ]
    head: Annotated[
        str | None,
        VARCHAR(
            "key or position of the output, where several outputs of the model have targets of their own; the first of "
            "them has the lower `call`",
            null="the model has one graded output",
            since=5,
        ),
    ]


class CallRow(TypedDict):
    """One row for each call of a recorded model."""

    run_id: Annotated[str, RUN_ID]
    number: Annotated[int, BIGINT("0, 1, … in the order of the calls")]
    model: Annotated[str, VARCHAR("as in predictions")]
    epoch: Annotated[int | None, INTEGER("that of its samples", null="it was matched to none")]
    step: Annotated[int | None, BIGINT("as in predictions", null="it was matched to none")]
    phase: Annotated[str, VARCHAR("`train` or `eval`: the mode of the model")]
    rows: Annotated[int | None, BIGINT("rows of the input", null="the input is not a tensor")]
    samples: Annotated[int, BIGINT("rows that were matched to a sample")]
    evidence: Annotated[
        str | None,
        VARCHAR(
            "`batch` (the batch itself), `operations` (made of a batch), `view` (of its memory), `content` (each row "
            "has the digest of a sample), `object`",
            null="it was matched to none",
        ),
    ]
    operations: Annotated[
        list[str] | None, VARCHARS("what the loop did to the batch on its way", null="nothing, or unknown")
    ]
    reason: Annotated[str | None, VARCHAR("why it was matched to no sample", null="it was matched")]
    rank: Annotated[int | None, INTEGER("the process of a distributed loop", null="not distributed")]
    other_mode: Annotated[
        list[str] | None,
        VARCHARS(
            "layers, 20 at most, that were in the other mode than the model: in training while the model was not, or "
            "the reverse",
            null="none, or not recorded",
            since=4,
        ),
    ]


class ActivationRow(TypedDict):
    """What hooked layers saw or produced."""

    run_id: Annotated[str, RUN_ID]
    epoch: Annotated[int, INTEGER("number of the epoch, from 0")]
    step: Annotated[int, BIGINT("number of the model's call")]
    index: Annotated[int | None, BIGINT("the sample", null="the value belongs to the batch, or to a mixed input")]
    visit: Annotated[int | None, INTEGER("its visit", null="as above")]
    layer: Annotated[str, VARCHAR("the layer's name in the model")]
    layer_type: Annotated[str, VARCHAR("its class")]
    direction: Annotated[str, VARCHAR("`forward` or `backward`")]
    port: Annotated[str, VARCHAR("`input.0`, `output.1`…")]
    shape: Annotated[list[int], BIGINTS("lengths of the axes")]
    dtype: Annotated[str, VARCHAR("element type")]
    mean: Annotated[float | None, DOUBLE("of the finite elements", null="no finite numbers")]
    std: Annotated[float | None, DOUBLE("of the finite elements, population", null="no finite numbers")]
    min: Annotated[float | None, DOUBLE("least finite element", null="no finite numbers")]
    max: Annotated[float | None, DOUBLE("greatest finite element", null="no finite numbers")]
    p01: Annotated[float | None, DOUBLE("1st percentile", null="not recorded")]
    p25: Annotated[float | None, DOUBLE("25th percentile", null="not recorded")]
    p50: Annotated[float | None, DOUBLE("median", null="not recorded")]
    p75: Annotated[float | None, DOUBLE("75th percentile", null="not recorded")]
    p99: Annotated[float | None, DOUBLE("99th percentile", null="not recorded")]
    zero_fraction: Annotated[float | None, DOUBLE("share of zeros", null="not recorded")]
    nonfinite: Annotated[int | None, BIGINT("elements that are NaN or infinite", null="not recorded")]
    norm: Annotated[float | None, DOUBLE("Euclidean norm", null="not recorded")]
    digest: Annotated[str | None, VARCHAR("as of a tensor", null="not recorded")]
    payload: Annotated[bytes | None, BLOB("the exact value, encoded as a tensor", null="not recorded")]
    axis: Annotated[
        str | None,
        VARCHAR("what is known of the first axis, as in `outputs`", null="as there, or not recorded", since=7),
    ]


class StepRow(TypedDict):
    """One row per call of the model in a recorded loop."""

    run_id: Annotated[str, RUN_ID]
    epoch: Annotated[int, INTEGER("number of the epoch, from 0")]
    step: Annotated[int, BIGINT("number of the model's call")]
    batch: Annotated[
        int | None,
        BIGINT("number of the batch in its epoch, from 0; loaders of one epoch share the numbers", null="not batched"),
    ]
    phase: Annotated[str, VARCHAR("`train` or `eval`: the mode the model was in")]
    loss: Annotated[float | None, DOUBLE("mean of the predictions' losses", null="nothing was graded")]
    learning_rate: Annotated[float | None, DOUBLE("of the optimizer's step that followed", null="no training step")]
    gradient_norm: Annotated[float | None, DOUBLE("of all parameters' gradients at that step", null="no training step")]
    samples: Annotated[int, BIGINT("visits in the batch")]
    rank: Annotated[int | None, INTEGER("the process of a distributed run", null="not distributed")]


class ParentRow(TypedDict):
    """Which samples a mixed sample was made of."""

    run_id: Annotated[str, RUN_ID]
    epoch: Annotated[int, INTEGER("number of the epoch, from 0")]
    batch: Annotated[int, BIGINT("number of the batch in its epoch, from 0; loaders of one epoch share the numbers")]
    position: Annotated[int, INTEGER("place in the batch")]
    parent_index: Annotated[int, BIGINT("a sample that went into it")]
    weight: Annotated[float | None, DOUBLE("its share", null="unknown")]
    number: Annotated[
        int | None,
        BIGINT(
            "the row of `calls` for which the loop mixed it",
            null="mixed before it came to the loop, or declared with `run.parents`",
            since=5,
        ),
    ]


class TaskRow(VisitRow):
    """The key of a prediction, with which the tables of single tasks begin."""

    model: Annotated[str | None, VARCHAR("the name of the model", null="it has none")]
    call: Annotated[int, INTEGER("which of the visit's predictions, as in `predictions`")]


class BoxRow(TaskRow):
    """One row for each target box and each predicted box of a detector's prediction.

    Boxes are matched by COCO's rule at an overlap of 0.5: within a class, from the highest score down.
    """

    box: Annotated[int, INTEGER("its place among the targets, or among the predicted boxes, of the visit")]
    kind: Annotated[str, VARCHAR("`target` or `predicted`")]
    class_: Annotated[int, BIGINT("class number")]
    class_name: Annotated[str | None, VARCHAR("its name", null="names unknown, or the number is beyond them")]
    score: Annotated[float | None, DOUBLE("the model's confidence", null="a target")]
    x1: Annotated[float, DOUBLE("left, in pixels of the model's input")]
    y1: Annotated[float, DOUBLE("top")]
    x2: Annotated[float, DOUBLE("right")]
    y2: Annotated[float, DOUBLE("bottom")]
    sx1: Annotated[
        float | None, DOUBLE("left, in pixels of the decoded source", null="the stages between are not known")
    ]
    sy1: Annotated[float | None, DOUBLE("top", null="as above")]
    sx2: Annotated[float | None, DOUBLE("right", null="as above")]
    sy2: Annotated[float | None, DOUBLE("bottom", null="as above")]
    matched: Annotated[int | None, INTEGER("`box` of the partner", null="it has none")]
    iou: Annotated[float | None, DOUBLE("overlap with the partner", null="it has none")]
    outcome: Annotated[
        str | None,
        VARCHAR(
            "`tp`: matched; `fp`: a predicted box without a target; `fn`: a target that was not found",
            null="the sample has no target boxes recorded, a crowd, a box with NaN or a negative size, or a predicted "
            "box without a partner where such a target is of its class",
        ),
    ]
    crowd: Annotated[bool | None, BOOLEAN("the target stands for many objects (COCO's iscrowd)", null="not said")]
    keypoints: Annotated[
        list[float] | None,
        FLOATS(
            "x, y and visibility of each keypoint, one after the other, in pixels of the model's input",
            null="it has none",
            since=5,
        ),
    ]
    keypoint_scores: Annotated[
        list[float] | None, FLOATS("the model's score of each keypoint", null="a target, or none", since=5)
    ]
    oks: Annotated[
        float | None,
        DOUBLE(
            "COCO's object keypoint similarity with the partner",
            null="it has no partner, or its keypoints are not COCO's 17 of a person",
            since=5,
        ),
    ]
    area: Annotated[
        float | None,
        DOUBLE("the target's own area in pixels, by which keypoints are compared", null="it says none", since=6),
    ]


class MaskScoreRow(TaskRow):
    """One row for each class that the target or the predicted mask of a visit has. Pixels of class 255 are left out."""

    class_: Annotated[int, BIGINT("class number")]
    class_name: Annotated[str | None, VARCHAR("its name", null="names unknown, or the number is beyond them")]
    target_pixels: Annotated[int, BIGINT("pixels of this class in the target")]
    predicted_pixels: Annotated[int, BIGINT("pixels that are predicted as this class")]
    shared_pixels: Annotated[int, BIGINT("pixels that are both")]
    iou: Annotated[float, DOUBLE("shared pixels, divided by those that are either")]
    accuracy: Annotated[float | None, DOUBLE("share of the target's pixels that is found", null="the target has none")]


class MaskRow(TaskRow):
    """The target and the predicted mask of a visit."""

    kind: Annotated[str, VARCHAR("`target` or `predicted`")]
    height: Annotated[int, INTEGER("in pixels of the model's output")]
    width: Annotated[int, INTEGER("in pixels of the model's output")]
    digest: Annotated[str, VARCHAR("as of a tensor of 64-bit numbers (H, W)")]
    form: Annotated[str | None, VARCHAR("`full`, or `preview`: made smaller", null="the capture level is digest")]
    data: Annotated[bytes | None, BLOB("a PNG of class numbers, of 8 or 16 bits", null="the capture level is digest")]


class TokenRow(TaskRow):
    """One row for each token of a sequence; positions whose target is to be ignored (-100) have none."""

    position: Annotated[int, INTEGER("place in the sequence of outputs")]
    target: Annotated[int | None, BIGINT("the token that was wanted", null="there is no target")]
    predicted: Annotated[int | None, BIGINT("the most probable token", null="a logit is not finite")]
    probability: Annotated[
        float | None, DOUBLE("of the wanted token; without a target, of the predicted", null="as above")
    ]
    loss: Annotated[float | None, DOUBLE("cross entropy", null="no target, or it is beyond the outputs")]
    correct: Annotated[bool | None, BOOLEAN("predicted = target", null="there is no target")]


class OutputRow(TypedDict):
    """One row for each tensor that a model returned for a visit, or for a whole call, where it returned several or none is graded.

    A tensor with as many entries as the call had rows has a row for each sample: its entry at the place of the sample. `axis`
    says whether the calls show that the entry is the sample's own. Every other tensor belongs to the call. Where none of them could be graded, `call` is a number that no prediction of the visit has.
    """

    run_id: Annotated[str, RUN_ID]
    epoch: Annotated[int, INTEGER("number of the epoch, from 0")]
    index: Annotated[
        int | None, BIGINT("the sample's place in the dataset", null="the value belongs to the whole call")
    ]
    visit: Annotated[
        int | None, INTEGER("how often this index was drawn earlier in the epoch; 0 the first time", null="as above")
    ]
    model: Annotated[str | None, VARCHAR("the name of the model", null="it has none")]
    call: Annotated[int | None, INTEGER("which of the visit's predictions, as in `predictions`", null="as above")]
    port: Annotated[
        str,
        VARCHAR(
            "where it was in what the model returned: a key or position, as `1`; deeper `hidden_states.0`; `output` if it is all that was returned"
        ),
    ]
    dtype: Annotated[str, VARCHAR("as of a tensor")]
    shape: Annotated[list[int], BIGINTS("of the visit's own row, or of the whole value")]
    digest: Annotated[str | None, VARCHAR("as of a tensor", null="it could not be computed")]
    min: Annotated[float | None, DOUBLE("least finite element", null="no element is finite")]
    max: Annotated[float | None, DOUBLE("greatest finite element", null="as above")]
    mean: Annotated[float | None, DOUBLE("mean of the finite elements", null="as above")]
    std: Annotated[float | None, DOUBLE("standard deviation of the finite elements", null="as above")]
    nonfinite: Annotated[int, BIGINT("elements that are NaN or infinite")]
    number: Annotated[int | None, BIGINT("the row of `calls`", null="written before this column existed", since=7)]
    axis: Annotated[
        str | None,
        VARCHAR(
            "what is known of the first axis: `samples`, where calls of different length had as many entries as rows; "
            "`other`, where a call had another number, or it is the memory of a weight",
            null="all calls until then had as many entries as rows and one length, which may be chance",
            since=7,
        ),
    ]
    form: Annotated[
        str | None, VARCHAR("what `data` is: `full` or `preview`", null="the capture level is digest", since=7)
    ]
    encoding: Annotated[
        str | None,
        VARCHAR(
            "`full`: an encoding of FORMAT-values.md for tensors; `preview`: a media type", null="as above", since=7
        ),
    ]
    data: Annotated[bytes | None, BLOB("the exact value, or its preview", null="as above", since=7)]


class FindingRow(TypedDict):
    """What checks found."""

    run_id: Annotated[str, RUN_ID]
    check_name: Annotated[str, VARCHAR("the check")]
    severity: Annotated[str, VARCHAR("`error`, `warning` or `info`")]
    status: Annotated[str, VARCHAR("`pass`, `fail`, `skip`, `error`")]
    message: Annotated[str, VARCHAR("one sentence")]
    index: Annotated[int | None, BIGINT("the sample", null="not about one")]
    source: Annotated[str | None, VARCHAR("its source", null="not about one")]
    stage: Annotated[int | None, INTEGER("the stage", null="not about one")]
    value: Annotated[float | None, DOUBLE("what was measured", null="nothing was measured")]
    threshold: Annotated[float | None, DOUBLE("what was allowed", null="there is no limit")]
    evidence: Annotated[str | None, VARCHAR("JSON", null="none")]


class EmbeddingRow(VisitRow):
    """The map of a run's samples, made by `audit embed`: one row for each sample of its last epoch, or of every epoch."""

    layer: Annotated[str, VARCHAR("a layer of the model, `logits` or `pixels`")]
    method: Annotated[str, VARCHAR("`pca`, `umap` or `tsne`")]
    x: Annotated[float, FLOAT("place on the map")]
    y: Annotated[float, FLOAT("place on the map")]
    vector: Annotated[list[float], FLOATS("the first principal components of the layer's output")]


class TagRow(TypedDict):
    """Tags that a person gave to samples."""

    run_id: Annotated[str, RUN_ID]
    index: Annotated[int, BIGINT("the sample")]
    source: Annotated[str | None, VARCHAR("its source", null="it has none")]
    tag: Annotated[str, VARCHAR("the tag")]
    note: Annotated[str | None, VARCHAR("what the person wrote about it", null="nothing")]
    tagged_at: Annotated[str, VARCHAR("when, in UTC, as ISO 8601")]
    split: Annotated[
        str | None,
        VARCHAR("its split: loaders of one run may have samples of the same index", null="unknown", since=8),
    ]
    root: Annotated[
        str | None,
        VARCHAR(
            "its dataset's folder. A row without split and folder is about every sample of its index",
            null="it has none",
            since=8,
        ),
    ]


class GeneratorStateRow(VisitRow):
    """Generator states, only for visits that drew random numbers and were not seeded per visit."""

    generator: Annotated[str, VARCHAR("which, see below")]
    state: Annotated[bytes, BLOB("what of the state differs from visit to visit")]
    block_digest: Annotated[
        str | None, VARCHAR("digest of the large part of the state, which many visits share", null="the state is whole")
    ]
    block: Annotated[bytes | None, BLOB("that part, once per digest", null="another row of the run holds it")]


#: A table's name, and the class of its rows.
TABLES: dict[str, type] = {
    "samples": SampleRow,
    "sample_sources": SampleSourceRow,
    "stages": Stage,
    "stage_outputs": StageOutputRow,
    "payloads": PayloadRow,
    "predictions": PredictionRow,
    "calls": CallRow,
    "boxes": BoxRow,
    "mask_scores": MaskScoreRow,
    "masks": MaskRow,
    "tokens": TokenRow,
    "outputs": OutputRow,
    "activations": ActivationRow,
    "steps": StepRow,
    "parents": ParentRow,
    "findings": FindingRow,
    "tags": TagRow,
    "embeddings": EmbeddingRow,
    "rng": GeneratorStateRow,
}
#: The class of a table's rows, and the table's name.
TABLE_NAMES: dict[type, str] = {row: name for name, row in TABLES.items()}
