"""What keeps a client's data from whoever reads its messages: noise that sites add, and masks under which the server sees sums."""
