"""Record a model: match its calls to samples, and keep its predictions and activations."""
