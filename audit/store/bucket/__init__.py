"""A store in an object store."""
