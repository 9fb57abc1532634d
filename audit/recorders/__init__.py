"""Collect facts while a pipeline runs, and change nothing about it.

calls/           find stages by their calls, and report changes that no stage shows
files/           know which files a sample is read from
items/           take an item apart: input, label, further targets
stages/          find the stages of any dataset, and observe them in the places they sit in
visit/           one sample on its way: its stages' outputs become rows
randomness/      seed, watch and restore the generators that a visit draws from
activity         what each process of a loader is doing now
seeded_dataset   the dataset that `audit run` gives to its loader
loop/            a user's own loop: `Recording`, loaders, datasets, and the recording's state
model/           a recorded model: which samples it was given, its predictions, what its layers saw
capture          how much of each stage output is kept
envelope         a batch on its way to the recording, with the rows of its samples
problems         what could not be recorded, marked on the run
"""
