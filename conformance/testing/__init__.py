"""Code that two or more files of tests share."""
