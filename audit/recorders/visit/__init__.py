"""Make one visit, and turn what was observed into rows."""
