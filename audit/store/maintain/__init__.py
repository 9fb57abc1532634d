"""Verify, compact, amend and remove committed runs."""
