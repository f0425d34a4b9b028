"""What a reward is made of: one small pure module for each component of a recipe."""
