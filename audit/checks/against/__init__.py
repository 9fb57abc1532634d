"""What differs from a baseline: pipeline, dataset, predictions, distributions."""
