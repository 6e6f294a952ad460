"""Every option of drafting and of decoding reaches the code that uses it, in each command."""
