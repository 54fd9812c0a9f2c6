"""Sites that have joined a Dask scheduler (the extra ``hierfl[dask]``), or are processes on this machine, asked over sockets."""
