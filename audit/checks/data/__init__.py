"""Does the dataset have defects: duplicates, leakage, damaged pictures, missing classes."""
