"""Says which package it found, so that a test can see that the build installed it."""

import sys
from importlib.metadata import version

sys.stdout.write(f"hello with six {version('six')}\n")
