"""Entry point of ``python -m tests.testbed``."""

import signal
import sys

from .cli import main

if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # "logs | head" is no failure
    sys.exit(main())
