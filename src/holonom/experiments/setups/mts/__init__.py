"""Multiple time-stepping: resonances, slow biases, random slow subsets."""
