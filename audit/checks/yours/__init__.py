"""Your own rules: a query that must return nothing, or a value within bounds."""
