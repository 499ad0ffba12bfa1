"""Wide tables as classes of persons: within one, columns are independent."""
