"""The projections on the components of a set, a kind of set a file; ``choose`` lists them in the order of trial."""
