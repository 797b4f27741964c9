"""Private parts of the training loop."""
