"""Statistics of scores and games: aggregates, intervals, comparisons, ratings, the stopping rule. Pure."""
