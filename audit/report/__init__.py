"""Render results for people and tools. No SQL here, and no torch."""
