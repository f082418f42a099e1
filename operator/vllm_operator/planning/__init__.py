"""Where the model goes: inventory, pod shapes, and whether they can exist.  Pure."""
