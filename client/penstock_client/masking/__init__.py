"""A gate's part in sums of many sites, and its durable record."""
