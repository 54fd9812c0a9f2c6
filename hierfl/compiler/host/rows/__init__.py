"""What is special to programs over rows: pivots, least gaps, costs that hardly differ, and greatest pieces of which few are close."""
