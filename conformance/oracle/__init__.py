"""What a decode did, what it should have done, and the sentence that says what differs."""
