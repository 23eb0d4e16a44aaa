"""`python -m grpo` is `grpo`."""

import sys

from grpo.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
