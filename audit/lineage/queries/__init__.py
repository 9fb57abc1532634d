"""Answer the questions that pages and reports ask of a run."""
