"""The result of each run of the suite, and the page and the table made from these files."""
