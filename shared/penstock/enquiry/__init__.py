"""What an analyst asks of released tables, at no further cost: from a formula to one answer."""
