"""How records become the catalog's rows: readings of files, and the summary of a run, both pure."""
