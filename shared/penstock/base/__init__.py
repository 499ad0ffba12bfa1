"""What everything stands on: errors, checks of values, pictures' files."""
