"""Newton's method for smooth maps over cones, also where a derivative is infinite."""
