"""Who may come to the coordinator, and who came."""
