"""What sister figures share: problems, networks, optimizers and what is looked at."""
