"""Take an item apart: the model's input, the label, further targets, and the key that it was asked for with."""
