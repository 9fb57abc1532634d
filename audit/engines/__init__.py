"""Run a dataset through its pipeline and a model, recording all of it.

request      what is to be run, and the recipe that rebuilds it
assemble     dataset, stages and model from a request
environment  versions, host and commit of the run
plan         the samples that are left to do, new run or resumed
underway     counts, budget and end of a run, whoever does the work
forward      a batch through the model, and its rows
local        DataLoader workers on this machine
workers      how their death looks, and when it is heard of
ray          Ray Data on a cluster: ray_cluster connects, ray_work is what its workers do
choice       which of the two
"""
