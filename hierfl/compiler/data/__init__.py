"""The parties' data as the oracles read them: tables of rows, where they are stored, distributions, the rows of a cohort."""
