"""What to do next: engine states, recovery and conditions, as pure functions that take ``now``."""
