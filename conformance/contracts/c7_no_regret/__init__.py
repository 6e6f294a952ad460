"""C7: drafting that does not pay is shortened, and nothing is measured."""
