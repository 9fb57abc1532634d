"""Find, seed, watch and restore the random generators that a visit draws from."""
