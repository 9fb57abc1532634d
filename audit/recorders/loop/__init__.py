"""Record a user's own loop: loaders, datasets, and the state of the recording."""
