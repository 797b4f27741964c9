"""One optimizer step: buckets, the letters' coefficients, the reference integrator, checks and checkpoints."""
