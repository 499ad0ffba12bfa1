"""What a report shows of tables beside its answers: curves, ranges, distances, transitions."""
