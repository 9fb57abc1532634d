"""Are the values as the pipeline intends: finite, in range, of one shape."""
