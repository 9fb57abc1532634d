"""Try to break it, again and again: see __main__.py for the table of members."""
