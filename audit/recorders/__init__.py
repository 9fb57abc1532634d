"""Collect facts while a pipeline runs, and change nothing about it.

Stages of one sample:
    pipeline, slots   find the stages of any dataset or transform, and the places they sit in
    observed          what sits in a slot while a visit is under way
    visit             one sample on its way: its stages' outputs become rows
    inside            `audit.stage`: stages that a dataset's own code tells of
    drawn, describe   what a random stage drew; what a stage is
    randomness, generators, holders   seeding generators per visit, and keeping their states
    provenance, items which file an index means; what in an item is the input, and what the label
    dataset           a dataset whose items leave rows behind, for `audit run`

A user's own loop:
    session           `Recording`, what users call; ledger: what it knows while it is open
    loader, fetching  a recorded DataLoader; proxy: a recorded Dataset
    item_recorder     gathers rows in the process that makes the items; envelope, intake: their way to the recording
    pending           batches that wait for predictions: which samples was the model given?
    watching, hooks   a recorded model; layers, activations, describe_tensor: what its layers saw
    steps, predictions, optimizers, logged   one call of a model, and its rows
    mixing, parentage MixUp and CutMix: what a place in a batch was mixed from
    stages, visits, clock   ordinals of stages, numbers of visits, epochs
    levels, budget    how much is kept
    problems, pickling, forking   what goes wrong, and how it is told
"""
