"""The parts of the page that `gscalar.views.report` writes; each turns a timeline or a diagnosis into markup."""
