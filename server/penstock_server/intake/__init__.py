"""What sites upload, hostile until proven."""
