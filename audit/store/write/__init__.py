"""Write rows as parts, and commit them."""
