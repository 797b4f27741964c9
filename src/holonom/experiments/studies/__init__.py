"""One file per figure or table: set-up, optimizers, claims."""
