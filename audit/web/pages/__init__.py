"""One file per page: a request to plain data. No SQL here, no HTML, no torch."""
