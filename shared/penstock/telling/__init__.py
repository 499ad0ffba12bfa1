"""How estimates are told: their scales, words and marks, and forest plots."""
