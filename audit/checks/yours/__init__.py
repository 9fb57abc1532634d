"""Your own rules: a query that must return no rows, or a value within bounds."""
