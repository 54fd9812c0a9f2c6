"""Sites as workers of a Dask cluster, reached by actors (the extra ``hierfl[dask]``)."""
