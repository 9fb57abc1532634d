"""Run a dataset through its pipeline and a model, recording all of it.

request           what is to be run, and the recipe that rebuilds it
assemble          dataset, stages and model from a request
plan              the samples that are left to do, new run or resumed
executor          counts, budget and end of a run, for both engines
forward           a batch through the model, and its rows
run               which engine records a request
local             DataLoader workers on this machine
resilient_loader  a loader that survives the death of its workers
workers           how a worker's death is recognised and reported
watchdog          how a worker that hangs is found and ended
batch_calls       the model's calls, batch by batch, or sample by sample if a batch fails
model_output      the graded outputs of one model for one batch
declared_heads    what --output and --target name
ray               Ray Data on a cluster: cluster connects, work is what its workers do
record_pipelines  the same data through several pipelines
failure_limit     how many samples may fail
"""
