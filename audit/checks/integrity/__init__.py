"""Is the record whole and true: every visit there once, every digest as it was."""
