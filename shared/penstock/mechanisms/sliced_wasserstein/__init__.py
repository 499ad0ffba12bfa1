"""Particles that flow towards noisy projections of private rows: the sliced-Wasserstein flow.

================== ============================================================================
`sketch`           noisy distribution functions of projections, measured once (the default)
`batches`          noisy projections of rows themselves (the paper's two variants)
`targets`          from a sketch to smooth distribution functions: post-processing
`tuning`           how many directions and bins, and which share of the budget: public
`directions`       those for tables: pairs of columns first
`goals`            what each step moves towards, and how far
`particles`        one step of the flow, exactly, for particles on any device
`arithmetic`       what a flow computes with: numpy on a CPU, else torch
`flow`             the flow as a fixed map, from standard Gaussians to rows
`body`             all of it as the body of a table's fit
================== ============================================================================

Source: Sebag et al. 2025, "Differentially Private Gradient Flow based on the Sliced Wasserstein
Distance" (arXiv 2312.08227); what differs is said where it does.
"""
