"""Run an untrusted query in a confined process."""
