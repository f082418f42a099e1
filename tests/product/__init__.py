"""The product on the test bed: how it is built and installed there, and what a user would ask it."""
