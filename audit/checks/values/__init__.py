"""Are the values what the pipeline means them to be: finite, in range, of one shape."""
