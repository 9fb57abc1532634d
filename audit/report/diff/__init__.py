"""Show a comparison of two runs."""
