"""Where the implicit function is not smooth on a line: the search for kinks, one-sided slopes, jumps and their causes."""
