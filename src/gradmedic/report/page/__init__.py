"""One page, two lives: what the report and the live page show of a run, and how."""
