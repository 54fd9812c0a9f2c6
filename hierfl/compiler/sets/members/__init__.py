"""What a set consists of once its numbers are compiled: bounds of single entries, bands of parallel rows, memberships."""
