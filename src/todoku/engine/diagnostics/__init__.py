"""Answers for operators: a summary, why a delivery has not run, whether invariants and set-up are sound."""
