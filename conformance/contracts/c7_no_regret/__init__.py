"""C7: drafting that does not pay is shortened, without extra passes to measure costs."""
