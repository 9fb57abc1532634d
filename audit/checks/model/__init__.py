"""Do labels and model agree: label range, class order, label issues, accuracy, layers."""
