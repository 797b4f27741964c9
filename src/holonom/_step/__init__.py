"""One optimizer step: what moves together, the letters' coefficients, the reference integrator, checks and checkpoints."""
