"""The theorem for the declared class: its remaining hypotheses, and its numbers where all of them are proved."""
