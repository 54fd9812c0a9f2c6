"""Programs of one form, solved together."""
