"""Who holds which data: clients, federations of them, and the schemes that split one data set among clients."""
