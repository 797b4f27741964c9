"""Networks that people train, with constraints around their optimizers."""
