"""Open a store and query it with DuckDB."""
