"""Show findings, one file for each format."""
