"""Networks of rectified units and bilevel problems, [NN] §5 and [2S] §6.1 to §6.3: Figures 1 to 4."""
