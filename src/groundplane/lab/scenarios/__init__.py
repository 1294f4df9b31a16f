"""Stories that a lab goes through: told step by step, by what is seen, and judged at their end."""
