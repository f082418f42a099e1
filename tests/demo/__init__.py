"""``make demo``: from an empty machine to a served model."""
