"""What answers will be worth, before anything is charged: from planning values, not from rows."""
