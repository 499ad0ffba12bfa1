"""Private trajectories: particles at time points, coupled, and paths through them.

Nothing is imported here, so that what prices a study needs no torch.
"""
