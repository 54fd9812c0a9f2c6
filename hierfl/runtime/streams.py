"""Keys of a round beside those of its clients, whose indices are the smaller numbers; the same on every runtime."""

ROUND_STREAM = 2**31 - 1  # what the algorithm draws at the server
COHORT_STREAM = 2**31 - 2  # who takes part
SERVER_STREAM = 2**31 - 3  # what the server draws as a holder of data
VALUE_STREAM = 2**31 - 4  # the algorithm's own value at the end
