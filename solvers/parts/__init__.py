"""What algorithms share: binding to a problem, requirements, tables of schedules; directions, estimators and control variates;
local steps, what travels up, and what a round's record says."""
