"""One family of atoms a file, one row an atom: adding an atom is a row in its family and a test."""
