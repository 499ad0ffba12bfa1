"""A site's end of Flower: the SuperNode, and the runner that answers in its place."""
