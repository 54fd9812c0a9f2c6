"""What users write: samples, means, levels, federations, partition schemes, and their rendering."""
