"""What recorded runs tell: trace one prediction back to its source file."""
