"""Record on a Ray cluster."""
