"""What all mechanisms share that release synthetic tables."""
