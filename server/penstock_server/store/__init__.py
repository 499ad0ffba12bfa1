"""What the coordinator keeps: one SQL database, and leases in it."""
