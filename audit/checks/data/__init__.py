"""Is the dataset sound: duplicates, leakage, broken pictures, missing classes."""
