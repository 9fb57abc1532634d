"""Find the stages of any dataset, and observe them in the places they sit in."""
