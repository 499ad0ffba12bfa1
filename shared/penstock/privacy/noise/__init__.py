"""Where noise comes from, and how it is made discrete."""
