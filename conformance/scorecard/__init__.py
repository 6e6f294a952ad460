"""One JSON file a run of the suite, and the page and the table that are made from such files."""
