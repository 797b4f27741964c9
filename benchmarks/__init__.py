"""How long a step takes, beside SGD and beside the libraries one would use instead: ``python -m benchmarks.run``."""
