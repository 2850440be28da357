"""How much memory training takes, before it starts, and how to stay within a budget.

``estimate`` walks over the lowered graph in the order in which it runs; ``plan`` finds the largest
micro-batch that fits. Measured against real runs in docs/memory.md.
"""

from edge_train.memory.budget import parse_budget
from edge_train.memory.estimation import Estimate, Files, Footprint, estimate
from edge_train.memory.graphs import Choices
from edge_train.memory.planning import Plan, plan

__all__ = ["Choices", "Estimate", "Files", "Footprint", "Plan", "estimate", "parse_budget", "plan"]
