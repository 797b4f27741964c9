"""``python -m holonom``, also for torchrun."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
