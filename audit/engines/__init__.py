"""Run a dataset through its pipeline and a model, recording all of it.

request      what is to be run, and the recipe that rebuilds it
assemble     dataset, stages and model from a request
environment  versions, host and commit of the run
local        DataLoader workers on this machine
"""
