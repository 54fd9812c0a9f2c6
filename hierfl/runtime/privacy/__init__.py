"""What keeps a client's data from whoever reads its messages: clipping and noise at the site, with the guarantee that they give."""
