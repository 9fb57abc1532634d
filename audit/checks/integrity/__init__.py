"""Is the record complete and correct: every visit recorded once, every digest unchanged."""
