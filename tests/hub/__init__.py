"""A stand-in for the hub: the paths, headers and codes that its library knows of the real one."""
