"""What privacy costs, and the noise that buys it: events, accounting, filters, noise."""
