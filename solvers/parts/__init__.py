"""What algorithms share: binding to a problem, tables of schedules, directions, estimators, local steps, checks of settings."""
