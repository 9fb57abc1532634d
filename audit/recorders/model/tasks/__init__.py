"""Rows of predictions that are boxes, masks or tokens, one file each."""
