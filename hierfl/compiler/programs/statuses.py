"""How a program ended, and whether its answer is the only one."""

SOLVED, EMPTY, UNBOUNDED, FAILED = 0, 1, 2, 3

# whether y has no other value: several (and the upper objective tells them apart), one, alike (it does not), unknown, or twisted:
# the conditions are those of a map that is not monotone, and others far away may hold as well
SEVERAL, ONE, ALIKE, UNKNOWN, TWISTED = 0, 1, 2, -1, -2
