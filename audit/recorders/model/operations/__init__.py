"""Rules that follow samples through the operations of a loop: one rule for each operation, and a table of all of them.

A rule answers only where it is certain: operations that mix in values of another origin (a learned weight, a
perturbation, a generated picture) have no rule, or their rule returns None.
"""
