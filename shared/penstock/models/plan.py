"""interim"""
from penstock.models.mechanism import Plan, plan
