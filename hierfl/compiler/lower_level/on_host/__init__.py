"""A lower level as the host engine sees it."""
