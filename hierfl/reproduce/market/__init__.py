"""The Stackelberg game of [2S] §6.4: Table 4 and Figure 5."""
