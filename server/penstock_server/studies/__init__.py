"""What people ask: the life of a study."""
