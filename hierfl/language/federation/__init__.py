"""Who holds which data: clients, the federation, and the schemes that split one data set among them."""
