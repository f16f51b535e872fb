"""Transactions: half messages, their ends, and the questions to their producers."""
