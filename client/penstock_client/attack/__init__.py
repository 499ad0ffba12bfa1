"""Membership inference on a request, for the steward's eyes."""
