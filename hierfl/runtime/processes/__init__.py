"""Each client in a process of its own on this machine: the contract at its plainest, and what it is tested with.

The server runs ``algorithm.round`` as plain Python. A client receives what the algorithm sends and nothing else: the name of
a step, the broadcast, its own part, the round and a key; it answers with the message. Each process declares the problem
anew, from a name, so that it need not know anybody else's data, and a client's memory never leaves its process. Runs take
the path that ``InProcess`` takes, which is what the tests compare.

It is no runtime for real federations, which ``hf.runtime.Dask`` is: here a client that fails, or does not answer in time, ends the run.
Nothing hides a client's messages from the server; several seeds run one after another; messages are pickled, so that both ends must
trust each other; and the clients' answers to a ``query`` have no derivative.
"""
