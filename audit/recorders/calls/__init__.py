"""Stages found by the calls that a dataset makes."""
