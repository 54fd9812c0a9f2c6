"""Each client in a process of its own on this machine: what the contract is tested with.

Every process is the site of one client, and declares the problem anew, from a name, so that it need not know anybody else's data; the
pipes to them carry the messages of a run. A client's memory never leaves its process, but for a checkpoint. Runs take the path that
``InProcess`` takes, which is what the tests compare.

It is no runtime for real federations, which ``hf.runtime.Dask`` is: several seeds run one after another, and messages are pickled, so that
both ends must trust each other.
"""
