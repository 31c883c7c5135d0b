"""A gang's supervisor, and the indexer of records."""
