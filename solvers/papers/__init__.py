"""What the papers prescribe: the schedules of their theorems, and the settings of their own experiments."""
