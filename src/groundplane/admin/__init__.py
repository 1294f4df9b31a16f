"""The administrator's workflow: each step is a plan that can be printed before it is carried out."""
