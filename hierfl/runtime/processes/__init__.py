"""Each client in a process of its own on this machine: the seed of a runtime for real federations.

The server runs ``algorithm.round`` as plain Python. A client receives what the algorithm sends and nothing else: the name of
a step, the broadcast, its own part, the round and a key; it answers with the message. Each process declares the problem
anew, from a name, so that it need not know anybody else's data, and a client's memory never leaves its process. Runs take
the path that ``InProcess`` takes, which is what the tests compare.

What is not there yet: a client that fails, or does not answer in time, ends the run; nothing is saved from which a run could
go on; nothing hides a client's messages from the server; several seeds run one after another; messages are pickled, so that
both ends must trust each other; and the clients' answers to a ``query`` have no derivative.
"""
