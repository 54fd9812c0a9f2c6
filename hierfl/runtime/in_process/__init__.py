"""All clients simulated in this process: blocks of rounds as compiled programs, on one core or on several."""
