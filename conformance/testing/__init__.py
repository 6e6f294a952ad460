"""What two files or more use to test with."""
