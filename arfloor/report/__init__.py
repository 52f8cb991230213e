"""What a user reads: tables, plots, HTML and Markdown made from a run directory."""
