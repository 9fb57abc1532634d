"""Make recorded visits again and compare them with the record."""
