"""Render HTML: pages, reports and notebook cells."""
