"""Synthetic tables of mixed columns: noisy margins and moments, a flow, and the outcome's score.

What mechanisms for tables share. Each adds a *body* (:class:`.stages.Body`): what is fitted
to the rows once their margins and moments are known, at which price, and with how much memory.
"""
