"""What an owner brings to a site: the data, the rules, the log, and a rehearsal of what would leave."""
