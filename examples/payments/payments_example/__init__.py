"""Payments that Stripe tells of, once each and in their own order: seed 004, on todoku."""
