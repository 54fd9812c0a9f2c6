"""``problem.check()``: which assumptions of the papers hold, how that is known, and what the theorems then prescribe."""
